"""From the token stream to the HTTP response: choices stay apart, nothing is shown twice, nothing is lost."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_entropic.request_params import RequestParams
from sgl_entropic.runtime.response import INFO_KEY, PROMPT_FIELDS, TOKEN_FIELDS
from sgl_entropic.runtime.response_collector import SCOPE_KEY, ResponseCollector, collector_of

PROMPT = {name: [None, 0.5] for name in PROMPT_FIELDS}
SUMMARY = {"tokens": 3}


def collector() -> ResponseCollector:
    return ResponseCollector(RequestParams(return_entropy=True))


def tokens(begin: int, end: int) -> dict[str, list[float]]:
    """Readings of output tokens ``begin`` to ``end``, each with numbers of its own."""
    return {name: [10.0 * i + k for i in range(begin, end)] for k, name in enumerate(TOKEN_FIELDS)}


def response(document: dict[str, Any] | None, index: int = 0) -> dict[str, Any]:
    return {"index": index, "meta_info": {} if document is None else {INFO_KEY: document}}


def whole_document(steps: list[int]) -> dict[str, Any]:
    return {**tokens(0, sum(steps)), **PROMPT, "summary": SUMMARY}


def yielded(steps: list[int], *, incremental: bool) -> list[dict[str, Any]]:
    """The documents that the front process puts into a stream's ``meta_info``, step by step."""
    documents = []
    for number, (begin, end) in enumerate(itertools.pairwise([0, *itertools.accumulate(steps)])):
        first, last = number == 0, number == len(steps) - 1
        document: dict[str, Any] = tokens(begin if incremental else 0, end)
        if incremental and begin:
            document["output_index"] = begin
        if first or not incremental:
            document.update(PROMPT)
        if last:
            document["summary"] = SUMMARY
        documents.append(document)
    return documents


def joined(increments: list[dict[str, Any] | None]) -> dict[str, Any]:
    """What a client knows that puts the increments together as documented."""
    document: dict[str, Any] = {name: [] for name in TOKEN_FIELDS}
    for increment in increments:
        for key, value in (increment or {}).items():
            if key in TOKEN_FIELDS:
                assert increment is not None
                assert increment["output_index"] == len(document[key]), "not where the last one ended"
                document[key] = document[key] + value
            elif key != "output_index":
                assert key not in document, f"{key} is shown twice"
                document[key] = value
    return document


step_lists = st.lists(st.integers(1, 3), min_size=1, max_size=6)


@pytest.mark.parametrize("incremental", [False, True])
@given(steps=step_lists, data=st.data())
def test_increments_add_up_to_the_whole(*, incremental: bool, steps: list[int], data: st.DataObject) -> None:
    """Whichever of the server's yields become an event: increments overlap nowhere and leave nothing out."""
    one, increments = collector(), []
    for number, document in enumerate(yielded(steps, incremental=incremental)):
        one.note(response(document))
        if number < len(steps) - 1 and data.draw(st.booleans()):
            increments.append(one.increment(0, finished=False))
    # The last token and the reason for the end may come in two events.
    if data.draw(st.booleans()):
        increments.append(one.increment(0, finished=False))
    increments.append(one.increment(0, finished=True))
    assert one.whole(0) == whole_document(steps)
    assert joined(increments) == whole_document(steps)


@given(st.lists(step_lists, min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_choices_stay_apart(choices: list[list[int]], order: Any) -> None:
    """However the choices of a stream are interleaved."""
    one = collector()
    queues = {index: yielded(steps, incremental=True) for index, steps in enumerate(choices)}
    seen: dict[int, list[Any]] = {index: [] for index in queues}
    turns = [index for index, queue in queues.items() for _ in queue]
    order.shuffle(turns)
    for index in turns:
        document = queues[index].pop(0)
        one.note(response(document, index))
        seen[index].append(one.increment(index, finished=not queues[index]))
    for index, steps in enumerate(choices):
        assert joined(seen[index]) == whole_document(steps)


def test_the_responses_of_a_batch_are_its_choices() -> None:
    """In their order; the ``index`` that each carries is that within its own prompt."""
    one = collector()
    one.note([response(tokens(0, 1), 0), response(None, 0), response(tokens(0, 2), 0)])
    assert one.whole(0) == tokens(0, 1)
    assert one.whole(1) is None
    assert one.whole(2) == tokens(0, 2)


def test_nothing_new_is_no_increment() -> None:
    one = collector()
    assert one.increment(0, finished=False) is None
    one.note(response(tokens(0, 2)))
    assert one.increment(0, finished=False) == {**tokens(0, 2), "output_index": 0}
    assert one.increment(0, finished=False) is None
    assert one.increment(1, finished=True) is None


def test_a_prompt_that_comes_after_the_first_tokens_is_shown() -> None:
    one = collector()
    one.note(response(tokens(0, 1)))
    one.increment(0, finished=False)
    one.note(response({**tokens(0, 2), **PROMPT}))
    increment = one.increment(0, finished=False)
    assert increment == {**tokens(1, 2), "output_index": 1, **PROMPT}
    assert one.increment(0, finished=True) is None


def test_what_comes_with_the_summary_is_shown_at_the_end() -> None:
    one = ResponseCollector(RequestParams())
    document = {"summary": SUMMARY, "scheduling": {"wait_tokens": 3}, "attention": {"keep_ratio": 0.5}}
    one.note(response(document))
    assert one.increment(0, finished=False) is None
    assert one.increment(0, finished=True) == document


def test_a_summary_alone_is_shown_at_the_end() -> None:
    one = collector()
    one.note(response({"summary": SUMMARY}))
    assert one.increment(0, finished=False) is None
    assert one.increment(0, finished=True) == {"summary": SUMMARY}


@pytest.mark.parametrize("odd", [None, "text", 7, {}, {"meta_info": {}}, [{}]])
def test_responses_without_readings_are_passed_over(odd: Any) -> None:
    one = collector()
    one.note(odd)
    assert one.documents == {}


def test_a_collector_is_found_in_the_scope_of_its_request() -> None:
    one = collector()
    assert collector_of(SimpleNamespace(scope={SCOPE_KEY: one})) is one


@pytest.mark.parametrize(
    "request_", [None, SimpleNamespace(), SimpleNamespace(scope={}), SimpleNamespace(scope={SCOPE_KEY: 1})]
)
def test_a_request_without_one_has_none(request_: Any) -> None:
    """The offline engine has no request, other routes have no collector, and another tool may use the name."""
    assert collector_of(request_) is None
