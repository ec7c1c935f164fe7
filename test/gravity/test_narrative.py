"""One request's readings: proxies, free energy, summary, and their place in the output."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_entropic.gravity.narrative import UNREAD, Narrative, free_energy
from sgl_entropic.gravity.settings import GravitySettings, Signal

VOCABULARY = 1000


def narrative(signal: Signal = "hidden", window: int = 2) -> Narrative:
    return Narrative(GravitySettings(signal=signal, window=window, opening_tokens=0), VOCABULARY)


def test_entropy_is_a_cost() -> None:
    """The sign that docs/adr/0006 fixes: certain and close is cheap."""
    assert free_energy(0.25, 0.0, VOCABULARY) == 0.25
    assert free_energy(0.25, math.log(VOCABULARY), VOCABULARY, temperature=2.0) == pytest.approx(2.25)
    assert (
        free_energy(0.2, 1.0, VOCABULARY)
        < free_energy(0.2, 2.0, VOCABULARY)
        < free_energy(0.9, 2.0, VOCABULARY)
    )


def test_free_energy_needs_both_its_terms() -> None:
    told = narrative()
    known = told.add(0, entropy_nats=1.0, surprisal_nats=2.0, gravity=0.1, energy=0.5)
    assert known.free_energy == pytest.approx(0.5 + 1.0 / math.log(VOCABULARY))
    assert told.add(1, entropy_nats=None, surprisal_nats=2.0, gravity=0.1, energy=0.5).free_energy is None
    assert told.add(2, entropy_nats=1.0, surprisal_nats=2.0, gravity=0.0, energy=None).free_energy is None


@pytest.mark.parametrize("signal", ["entropy", "surprisal"])
def test_without_hidden_states_gravity_is_an_inverse_perplexity(signal: Signal) -> None:
    """Over the window; what hidden states say is not looked at."""
    told = narrative(signal)
    values = [math.log(2.0), math.log(8.0), 0.0, 0.0]
    readings = [
        told.add(
            index,
            entropy_nats=value if signal == "entropy" else 9.0,
            surprisal_nats=value if signal == "surprisal" else 9.0,
            gravity=0.7,
            energy=0.7,
        )
        for index, value in enumerate(values)
    ]
    assert [reading.gravity for reading in readings] == pytest.approx([0.0, 0.25, 8.0**-0.5, 1.0])
    assert {reading.energy for reading in readings} == {None}


def test_an_unknown_surprisal_is_no_gravity_until_it_has_left_the_window() -> None:
    told = narrative("surprisal")
    gravities = [
        told.add(i, entropy_nats=0.1, surprisal_nats=s).gravity for i, s in enumerate([0.0, None, 0.0, 0.0])
    ]
    assert gravities == [0.0, 0.0, 0.0, 1.0]


@given(st.lists(st.tuples(st.integers(0, 6), st.floats(-1, 1)), min_size=1, max_size=12))
def test_readings_stay_at_their_token(told: list[tuple[int, float]]) -> None:
    """Tokens that nothing was measured of are unread, and what is told anew replaces what came after it."""
    one = narrative()
    expected: dict[int, float] = {}
    for index, gravity in told:
        one.add(index, entropy_nats=1.0, surprisal_nats=1.0, gravity=gravity, energy=0.5)
        expected = {at: known for at, known in expected.items() if at < index} | {index: gravity}
    assert len(one.readings) == max(expected) + 1
    for at in range(8):
        assert one.at(at).gravity == expected.get(at)
    assert one.at(99) == UNREAD


def test_the_summary_is_over_what_is_known() -> None:
    told = narrative()
    assert told.summary() == {
        "mean_gravity": None,
        "mean_energy": None,
        "mean_free_energy": None,
        "strong_share": None,
        "medium_share": None,
    }
    told.add(0, entropy_nats=0.0, surprisal_nats=0.0, gravity=0.0, energy=None)
    told.add(1, entropy_nats=0.0, surprisal_nats=0.0, gravity=0.9, energy=0.5)
    summary = told.summary()
    assert summary["mean_gravity"] == pytest.approx(0.45)
    assert summary["mean_energy"] == summary["mean_free_energy"] == pytest.approx(0.5)
    assert (summary["strong_share"], summary["medium_share"]) == (0.5, 0.0)
    assert (told.tier, told.changes) == ("strong", 1)
