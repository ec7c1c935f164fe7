"""Chunks of the scheduler add up to the public document."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sgl_entropic.runtime.response import (
    END_FIELDS,
    PROMPT_FIELDS,
    REQUEST_FIELDS,
    TOKEN_FIELDS,
    ResponseReadings,
)

values = st.lists(st.one_of(st.none(), st.floats(0.0, 12.0)), max_size=4)


def token_chunk(start: int, numbers: list[float | None]) -> dict[str, Any]:
    return {"start": start, **{name: list(numbers) for name in TOKEN_FIELDS}}


@given(st.lists(values, min_size=1, max_size=5))
def test_token_lists_are_joined_in_order(parts: list[list[float | None]]) -> None:
    readings, whole = ResponseReadings(), list[float | None]()
    for part in parts:
        readings.add(token_chunk(len(whole), part))
        whole += part
    assert len(readings) == len(whole)
    assert readings.document() == dict.fromkeys(TOKEN_FIELDS, whole)


@given(st.lists(values, min_size=1, max_size=5))
def test_increments_of_a_stream_add_up_to_the_whole(parts: list[list[float | None]]) -> None:
    """Each increment begins where the last one ended, and says where that is."""
    readings = ResponseReadings()
    seen: dict[str, list[float | None]] = {name: [] for name in TOKEN_FIELDS}
    for part in parts:
        start = len(readings)
        readings.add(token_chunk(start, part))
        increment = readings.document(start=start)
        assert increment.get("output_index", 0) == len(seen["entropy_nats"])
        for name in TOKEN_FIELDS:
            seen[name] += increment[name]
    assert seen == readings.document()


def test_nothing_known_is_an_empty_document() -> None:
    assert ResponseReadings().document() == {}
    assert len(ResponseReadings()) == 0


def test_parts_can_be_left_out() -> None:
    readings = ResponseReadings()
    prompt = {PROMPT_FIELDS[0]: [None, 1.0], PROMPT_FIELDS[1]: [None, 2.0]}
    readings.add({**token_chunk(0, [0.5]), **prompt})
    readings.add({"summary": {"tokens": 1}})
    tokens = {name: [0.5] for name in TOKEN_FIELDS}
    assert readings.document() == {**tokens, **prompt, "summary": {"tokens": 1}}
    assert readings.document(with_prompt=False, with_summary=False) == tokens
    assert readings.document(with_prompt=False) == {**tokens, "summary": {"tokens": 1}}


def test_the_page_on_answers_names_every_field() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/requests.md").read_text()
    _, _, answers = page.partition("## Answers")
    table = [line.split("|")[1] for line in answers.partition("### Streams")[0].splitlines() if "|" in line]
    named = set(re.findall(r"`(\w+)`", " ".join(table)))
    assert named == {*TOKEN_FIELDS, *REQUEST_FIELDS, *PROMPT_FIELDS, *END_FIELDS, "output_index"}


def test_a_later_chunk_without_summary_keeps_it() -> None:
    readings = ResponseReadings()
    readings.add({"summary": {"tokens": 1}})
    readings.add({})
    assert readings.document() == {"summary": {"tokens": 1}}


def test_the_scheduler_s_lists_are_not_shared() -> None:
    """Two requests that got the same chunk grow apart."""
    chunk, first, second = token_chunk(0, [1.0]), ResponseReadings(), ResponseReadings()
    first.add(chunk)
    second.add(chunk)
    first.add(token_chunk(1, [2.0]))
    assert second.document() == {name: [1.0] for name in TOKEN_FIELDS}
    assert chunk == token_chunk(0, [1.0])
