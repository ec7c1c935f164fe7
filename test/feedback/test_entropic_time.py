"""Entropic time: its identities, its gaps, its copies."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_entropic.feedback.entropic_time import EntropicTime, efficiency

ENTROPIES = st.lists(st.floats(0.0, 12.0), min_size=1, max_size=60)
READINGS = st.lists(st.none() | st.floats(0.0, 12.0), max_size=60)
TOLERANCE_NATS = 1e-9  # 60 float64 sums of numbers up to 12


def accumulate(readings: list[float | None]) -> EntropicTime:
    state = EntropicTime()
    for reading in readings:
        state.update(reading)
    return state


@given(ENTROPIES)
def test_time_is_the_sum_of_the_positive_flows(entropies: list[float]) -> None:
    state = accumulate([*entropies])
    flows = [before - after for before, after in pairwise(entropies)]
    assert state.tau_nats == pytest.approx(sum(max(0.0, flow) for flow in flows), abs=TOLERANCE_NATS)
    assert state.total_variation_nats == pytest.approx(sum(map(abs, flows)), abs=TOLERANCE_NATS)
    assert state.net_drop_nats == entropies[0] - entropies[-1]
    assert state.last_flow_nats == (flows[-1] if flows else None)


@given(ENTROPIES)
def test_removed_minus_regained_is_the_net_drop(entropies: list[float]) -> None:
    state = accumulate([*entropies])
    regained = state.total_variation_nats - state.tau_nats
    assert state.tau_nats - regained == pytest.approx(state.net_drop_nats, abs=TOLERANCE_NATS)
    assert state.tau_nats >= 0.0
    assert state.tau_nats >= state.net_drop_nats - TOLERANCE_NATS


@given(st.floats(0.0, 12.0), st.integers(1, 50))
def test_no_time_passes_while_the_entropy_is_constant(entropy: float, tokens: int) -> None:
    state = accumulate([entropy] * tokens)
    assert (state.tau_nats, state.net_drop_nats, state.total_variation_nats) == (0.0, 0.0, 0.0)


def test_oscillation_grows_the_time_but_not_the_net_drop() -> None:
    state = accumulate([2.0, 1.0] * 10)
    assert (state.tau_nats, state.net_drop_nats, state.total_variation_nats) == (10.0, 1.0, 19.0)


@given(READINGS)
def test_an_undefined_reading_is_counted_and_the_flow_taken_across_it(readings: list[float | None]) -> None:
    valid = [reading for reading in readings if reading is not None]
    with_gaps, without = accumulate(readings), accumulate([*valid])
    assert with_gaps.invalid_count == len(readings) - len(valid)
    assert with_gaps.count == len(valid)
    for name in ("tau_nats", "net_drop_nats", "total_variation_nats", "last_flow_nats", "mean_entropy_nats"):
        assert getattr(with_gaps, name) == getattr(without, name)
    assert with_gaps.max_entropy_nats == max(valid, default=None)
    assert with_gaps.min_entropy_nats == min(valid, default=None)


@pytest.mark.parametrize("reading", [math.nan, math.inf, -math.inf])
def test_a_non_finite_reading_does_not_poison_the_sums(reading: float) -> None:
    state = EntropicTime()
    state.update(2.0, 1.0)
    state.update(reading, reading)
    state.update(1.0, 3.0)
    assert state.invalid_count == 1
    assert state.tau_nats == 1.0
    assert state.mean_entropy_nats == 1.5
    assert state.mean_surprisal_nats == 2.0


@given(READINGS, READINGS)
def test_a_clone_continues_alone(first: list[float | None], second: list[float | None]) -> None:
    state = accumulate(first)
    before = state.summary()
    branch = state.clone()
    for reading in second:
        branch.update(reading)
    assert state.summary() == before
    assert branch.summary() == accumulate([*first, *second]).summary()


@given(READINGS)
def test_reset_forgets_everything(readings: list[float | None]) -> None:
    state = accumulate(readings)
    state.reset()
    assert state.summary() == EntropicTime().summary()
    assert state.last_flow_nats is None


def test_a_request_without_a_token_has_nothing_to_report() -> None:
    assert EntropicTime().summary().to_dict() == {
        "tokens": 0,
        "tau_nats": None,
        "net_drop_nats": None,
        "total_variation_nats": None,
        "mean_entropy_nats": None,
        "max_entropy_nats": None,
        "last_entropy_nats": None,
        "mean_surprisal_nats": None,
        "invalid": 0,
    }


def test_the_summary_of_a_short_request() -> None:
    state = EntropicTime()
    for entropy, surprisal in [(3.0, 2.0), (1.0, 0.5), (None, None), (2.0, 0.5)]:
        state.update(entropy, surprisal)
    assert state.summary().to_dict() == {
        "tokens": 4,
        "tau_nats": 2.0,
        "net_drop_nats": 1.0,
        "total_variation_nats": 3.0,
        "mean_entropy_nats": 2.0,
        "max_entropy_nats": 3.0,
        "last_entropy_nats": 2.0,
        "mean_surprisal_nats": 1.0,
        "invalid": 1,
    }


def test_efficiency_is_time_over_cost() -> None:
    assert efficiency(3.0, 2.0) == 1.5


@pytest.mark.parametrize("cost", [0.0, -1.0, math.nan, math.inf])
def test_an_unmeasured_cost_has_no_efficiency(cost: float) -> None:
    assert efficiency(3.0, cost) is None
