"""What the scheduler remembers of a request stays aligned with its output, whatever order commits arrive in."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_entropic.feedback.entropic_time import EntropicTime
from sgl_entropic.request_params import RequestParams
from sgl_entropic.runtime.request_state import RequestState, state_of
from sgl_entropic.signals import TokenReading

UNKNOWN = TokenReading(None, None, None, None)


class Request:
    """Allows weak references, as SGLang's does."""

    def __init__(self, custom_params: Any) -> None:
        self.sampling_params = SimpleNamespace(custom_params=custom_params)


def reading(entropy_nats: float) -> TokenReading:
    return TokenReading(entropy_nats, 0.5, entropy_nats + 1.0, entropy_nats / 2.0)


@given(st.lists(st.tuples(st.integers(0, 6), st.floats(0.0, 12.0)), max_size=20))
def test_readings_and_summary_follow_the_output(commits: list[tuple[int, float]]) -> None:
    """A gap is filled with unknowns, an index seen before cuts the list there; the summary is that of the list."""
    state, model = RequestState(RequestParams()), list[TokenReading]()
    for index, entropy_nats in commits:
        state.add(index, reading(entropy_nats))
        model = [*model[:index], *[UNKNOWN] * (index - len(model)), reading(entropy_nats)]
    assert state.readings == model
    time = EntropicTime()
    for one in model:
        time.update(one.entropy_nats, one.surprisal_nats)
    assert state.time.summary() == time.summary()
    assert state.time.summary().tokens == len(model)


def test_a_gap_counts_as_invalid() -> None:
    state = RequestState(RequestParams())
    state.add(2, reading(1.0))
    assert state.readings == [UNKNOWN, UNKNOWN, reading(1.0)]
    assert (state.time.summary().tokens, state.time.summary().invalid) == (3, 2)


def test_two_requests_share_nothing() -> None:
    first, second = RequestState(RequestParams()), RequestState(RequestParams())
    first.add(0, reading(1.0))
    assert second.readings == []
    assert second.time.summary().tokens == 0


def test_the_state_of_a_request_is_made_once() -> None:
    req = Request(None)
    assert state_of(req) is state_of(req)
    assert state_of(req) is not state_of(Request(None))


@pytest.mark.parametrize(
    ("custom_params", "expected"),
    [
        (None, RequestParams()),
        ({}, RequestParams()),
        ({"entropic": {"return_entropy": True}}, RequestParams(return_entropy=True)),
        ({"entropic": {"return_summary": False}}, RequestParams(return_summary=False)),
        ({"thinking_budget": 3, "entropic": None}, RequestParams()),
    ],
)
def test_parameters_are_read_from_the_request(custom_params: Any, expected: RequestParams) -> None:
    assert state_of(Request(custom_params)).params == expected


@pytest.mark.parametrize("custom_params", ["entropic", [1], {"entropic": 1}, {"entropic": {"x": True}}])
def test_malformed_parameters_get_no_readings(custom_params: Any) -> None:
    """A request that no front process has checked is served, without anything of ours in its response."""
    assert state_of(Request(custom_params)).params == RequestParams(return_summary=False)


def test_the_request_that_sglang_adds_is_no_obstacle() -> None:
    """For custom logit processors SGLang puts the request itself into ``custom_params``."""
    req = Request(None)
    ours = {"entropic": {"return_entropy": True}}
    req.sampling_params.custom_params = {**ours, "limit": 3, "__req__": weakref.proxy(req)}
    assert state_of(req).params == RequestParams(return_entropy=True)
