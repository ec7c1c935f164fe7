"""The chunks that leave the scheduler: aligned with the tokens sent, each reading once, the summary at the end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_entropic.runtime.output_streamer import EntropicOutputStreamer
from sgl_entropic.runtime.request_state import state_of
from sgl_entropic.runtime.response import INFO_KEY, PROMPT_FIELDS
from sgl_entropic.signals import TokenReading

MEASURED = ("entropy_nats", "surprisal_nats", "sampled_entropy_nats")
ASKS = {"entropic": {"return_entropy": True}}


class Request:
    """As much of a request as the streamer looks at; ``end`` tokens have been sent along."""

    def __init__(self, custom_params: Any = ASKS, *, end: int = 0, beam: bool = False) -> None:
        self.sampling_params = SimpleNamespace(custom_params=custom_params)
        self.beam_group = object() if beam else None
        self.send_token_offset = end
        self.done = False

    def finished(self) -> bool:
        return self.done


def chunks_of(*reqs: Request) -> list[list[dict[str, Any]]]:
    """What the streamer adds for ``reqs``; it reads nothing of itself."""
    streamer = EntropicOutputStreamer.__new__(EntropicOutputStreamer)
    info: dict[str, list[Any]] = streamer.build_additional_customized_info(list(reqs))
    assert list(info) == [INFO_KEY]
    return info[INFO_KEY]


def reading(value: float) -> TokenReading:
    return TokenReading(value, 0.0, value + 0.25, value / 2)


@given(steps=st.lists(st.integers(0, 5), max_size=6), lagging=st.booleans())
def test_every_token_is_sent_once_and_in_order(steps: list[int], *, lagging: bool) -> None:
    """However many tokens go out at a time; a token whose reading is not there is null, not left out."""
    req, sent = Request(), {name: list[float | None]() for name in MEASURED}
    total = sum(steps)
    known = total - 1 if lagging and total else total
    for index in range(known):
        state_of(req).add(index, reading(float(index)))
    for step in steps:
        begin = req.send_token_offset
        req.send_token_offset += step
        ((chunk,),) = chunks_of(req)
        assert chunk["start"] == begin
        assert {len(chunk[name]) for name in MEASURED} == {step}
        for name in MEASURED:
            sent[name] += chunk[name]
    missing = [None] * (total - known)
    assert sent["entropy_nats"] == [*map(float, range(known)), *missing]
    assert sent["surprisal_nats"] == [*(i + 0.25 for i in range(known)), *missing]
    assert sent["sampled_entropy_nats"] == [*(i / 2 for i in range(known)), *missing]


def test_tokens_beyond_what_is_sent_wait() -> None:
    """Of a stop string's tokens SGLang may hold some back."""
    req = Request(end=1)
    for index in range(3):
        state_of(req).add(index, reading(float(index)))
    ((chunk,),) = chunks_of(req)
    assert chunk["entropy_nats"] == [0.0]


def test_numbers_are_rounded_and_infinities_are_null() -> None:
    req = Request(end=1)
    state_of(req).add(0, TokenReading(1.23456789, 0.0, float("inf"), -0.0))
    ((chunk,),) = chunks_of(req)
    assert (chunk["entropy_nats"], chunk["surprisal_nats"]) == ([1.234568], [None])
    assert str(chunk["sampled_entropy_nats"]) == "[0.0]"


def test_a_request_that_asked_for_nothing_sends_its_summary_only() -> None:
    req = Request(None, end=2)
    state_of(req).add(0, reading(1.0))
    state_of(req).add(1, reading(0.5))
    assert chunks_of(req) == [[]]
    req.done = True
    ((chunk,),) = chunks_of(req)
    assert list(chunk) == ["summary"]
    assert (chunk["summary"]["tokens"], chunk["summary"]["tau_nats"]) == (2, 0.5)


def test_prompt_readings_are_sent_once() -> None:
    req = Request({"entropic": {"return_prompt_surprisal": True}})
    state_of(req).prompt = [[None, 1.5], [None, 0.12345678]]
    assert chunks_of(req) == [[{PROMPT_FIELDS[0]: [None, 1.5], PROMPT_FIELDS[1]: [None, 0.123457]}]]
    assert chunks_of(req) == [[]]


def test_rows_of_a_beam_send_nothing() -> None:
    req = Request(end=1, beam=True)
    req.done = True
    assert chunks_of(req) == [[]]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_entries_are_aligned_with_the_requests(order: tuple[int, int]) -> None:
    quiet, asking = Request(None), Request(end=1)
    state_of(asking).add(0, reading(1.0))
    reqs = [quiet, asking]
    entries = chunks_of(*(reqs[i] for i in order))
    assert [len(entry) for entry in entries] == list(order)


def test_the_streamer_asks_for_the_extra_field() -> None:
    assert EntropicOutputStreamer.has_additional_customized_info is True
