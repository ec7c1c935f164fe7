"""Rewriting OpenAI responses: whatever way the bytes are cut, each event comes out once, in order, and complete."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_entropic.request_params import RequestParams
from sgl_entropic.runtime.openai_response import FIELD, JsonRewriter, SseRewriter
from sgl_entropic.runtime.response import INFO_KEY, TOKEN_FIELDS
from sgl_entropic.runtime.response_collector import ResponseCollector

# Characters of one to four bytes in UTF-8, and those that JSON escapes.
texts = st.text(st.sampled_from('aé漢🙂\n"\\ \u2028'), max_size=6)
# Not JSON objects: they pass byte for byte.
foreign = st.sampled_from(
    [
        b": keep-alive",
        b"data:",
        b"data: ",
        b"data: [DONE]",
        b"event: x\ndata: 1",
        b"data: {broken",
        b"",
        b"id: 7",
    ]
)


def document(values: list[float]) -> dict[str, Any]:
    return {name: [value + i for value in values] for i, name in enumerate(TOKEN_FIELDS)}


def collector(documents: dict[int, dict[str, Any]] | None = None) -> ResponseCollector:
    return ResponseCollector(RequestParams(return_entropy=True), dict(documents or {}))


@st.composite
def cut(draw: st.DrawFn, body: bytes) -> list[bytes]:
    """``body`` in parts, some of them empty."""
    places = sorted(draw(st.lists(st.integers(0, len(body)), max_size=8)))
    return [body[a:b] for a, b in zip([0, *places], [*places, len(body)], strict=True)]


def fed(rewriter: JsonRewriter | SseRewriter, parts: list[bytes]) -> list[bytes]:
    return [rewriter.feed(part, end=number == len(parts) - 1) for number, part in enumerate(parts)]


def choice_event(index: int, text: str, finish_reason: str | None = None) -> bytes:
    choice = {"index": index, "text": text, "finish_reason": finish_reason}
    return b"data: " + orjson.dumps({"id": "x", "choices": [choice]})


@given(st.lists(st.one_of(foreign, texts.map(lambda text: choice_event(0, text))), max_size=6), st.data())
def test_a_stream_without_readings_passes_byte_for_byte(events: list[bytes], data: st.DataObject) -> None:
    """Comments, empty data, [DONE], broken JSON and choices nothing is known of; also a rest without an end."""
    body = b"".join(event + b"\n\n" for event in events) + data.draw(
        st.sampled_from([b"", b"data: {", b": x\n"])
    )
    assert b"".join(fed(SseRewriter(collector()), data.draw(cut(body)))) == body


@given(st.lists(st.tuples(st.integers(0, 2), texts), min_size=1, max_size=6), st.data())
def test_events_come_out_once_in_order_and_complete(said: list[tuple[int, str]], data: st.DataObject) -> None:
    """Foreign events stay in their places, texts stay as they were, and a choice's increments are its document."""
    documents = {index: document([index + 0.5, index + 0.25]) for index in range(3)}
    events: list[bytes] = []
    for index, text in said:
        events += data.draw(st.lists(foreign, max_size=1))
        events.append(choice_event(index, text))
    events += [*(choice_event(index, "", "stop") for index in range(3)), b"data: [DONE]"]
    body = b"".join(event + b"\n\n" for event in events)
    out = b"".join(fed(SseRewriter(collector(documents)), data.draw(cut(body))))
    seen: dict[int, list[dict[str, Any]]] = {0: [], 1: [], 2: []}
    *after, rest = out.split(b"\n\n")
    assert rest == b""
    for before, event in zip(events, after, strict=True):
        if b'"choices"' not in before:
            assert event == before
            continue
        content, original = orjson.loads(event[6:]), orjson.loads(before[6:])
        added = content["choices"][0].pop(FIELD, None)
        assert content == original
        if added is not None:
            seen[original["choices"][0]["index"]].append(added)
    for index, increments in seen.items():
        assert increments == [{**documents[index], "output_index": 0}]


@given(st.data())
def test_an_event_is_passed_on_as_soon_as_it_is_complete(data: st.DataObject) -> None:
    """A live stream must not wait for its next event."""
    rewriter, body, done = SseRewriter(collector()), choice_event(0, "é") + b"\n\n", b""
    for part in data.draw(cut(body)):
        done += rewriter.feed(part, end=False)
    assert done == body


def test_increments_follow_the_readings_as_they_arrive() -> None:
    known = collector()
    rewriter = SseRewriter(known)
    events = []
    for number in range(3):
        known.note({"index": 0, "meta_info": {INFO_KEY: document([float(i) for i in range(number + 1)])}})
        out = rewriter.feed(choice_event(0, "t") + b"\n\n", end=number == 2)
        events.append(orjson.loads(out[6:])["choices"][0][FIELD])
    assert [event["output_index"] for event in events] == [0, 1, 2]
    assert [event["entropy_nats"] for event in events] == [[0.0], [1.0], [2.0]]


def test_a_chunk_without_choices_is_not_ours() -> None:
    """The usage chunk at the end of a stream."""
    event = b'data: {"id": "x",  "choices": [], "usage": {"total_tokens": 3}}\n\n'
    rewriter = SseRewriter(collector({0: document([1.0])}))
    assert rewriter.feed(event, end=True) == event


@given(st.lists(texts, min_size=1, max_size=3), st.data())
def test_a_json_body_gets_its_readings_by_choice(said: list[str], data: st.DataObject) -> None:
    """Wherever it is cut, even inside a character; choices without readings and other fields stay."""
    documents = {index: document([float(index)]) for index in range(0, len(said), 2)}
    content: dict[str, Any] = {
        "id": "é",
        "choices": [{"index": i, "text": t} for i, t in enumerate(said)],
        "usage": {"n": 1},
    }
    *early, body = fed(JsonRewriter(collector(documents)), data.draw(cut(orjson.dumps(content))))
    assert b"".join(early) == b""
    expected: dict[str, Any] = {**content, "choices": [dict(choice) for choice in content["choices"]]}
    for index, readings in documents.items():
        expected["choices"][index][FIELD] = readings
    assert orjson.loads(body) == expected


def test_choices_are_found_by_index_not_by_place() -> None:
    body = b'{"choices": [{"index": 1}, {"index": 0}]}'
    out = orjson.loads(JsonRewriter(collector({1: document([7.0])})).feed(body, end=True))
    assert out == {"choices": [{"index": 1, FIELD: document([7.0])}, {"index": 0}]}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"\xff\xfe",
        b'{"choices": [',
        b"[1,  2]",
        b'{"choices":  null}',
        b'{"choices":  [1, "x"]}',
        b'{"error":  {"message": "no"}}',
        b'{"choices":  [{"index": 5}]}',
        b'{"choices":  [{"logprob": NaN, "index": 0}]}',
    ],
)
def test_a_body_with_nothing_to_add_passes_byte_for_byte(body: bytes) -> None:
    rewriter = JsonRewriter(collector({0: document([1.0])}))
    assert b"".join(fed(rewriter, [body[:3], body[3:]])) == body
