"""Tiers follow gravity and entropy, with hysteresis."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_entropic.gravity.settings import TIERS, GravitySettings, Thresholds, Tier
from sgl_entropic.gravity.tiers import TierGate, fleet_share

SETTINGS = GravitySettings(
    strong=Thresholds(0.5, 1.0),
    medium=Thresholds(0.3, 2.0),
    gravity_margin=0.1,
    entropy_margin_nats=0.5,
    dwell_tokens=3,
    opening_tokens=0,
)
DECIDED, HALF, OPEN = (0.9, 0.1), (0.4, 1.5), (0.0, 5.0)

readings = st.lists(st.tuples(st.floats(-1, 1), st.floats(0, 12)), max_size=60)


def tiers_of(told: list[tuple[float, float]], settings: GravitySettings = SETTINGS) -> list[Tier]:
    gate = TierGate(settings)
    return [gate.step(index, *reading) for index, reading in enumerate(told)]


def test_both_gravity_and_entropy_are_asked_for() -> None:
    assert tiers_of([DECIDED]) == ["strong"]
    assert tiers_of([HALF]) == ["medium"]
    assert tiers_of([OPEN]) == ["weak"]
    assert tiers_of([(0.9, 5.0)]) == ["weak"]
    assert tiers_of([(0.0, 0.1)]) == ["weak"]
    assert tiers_of([(0.5, 0.1)]) == ["medium"], "the threshold itself is not above the threshold"


def test_what_holds_a_tier_would_not_enter_it() -> None:
    within = (0.42, 1.4)
    assert tiers_of([DECIDED, within, within]) == ["strong"] * 3
    assert tiers_of([within]) == ["medium"]
    assert tiers_of([DECIDED, (0.39, 0.1)]) == ["strong", "medium"]
    assert tiers_of([DECIDED, (0.9, 1.51)]) == ["strong", "medium"]
    assert tiers_of([DECIDED, OPEN]) == ["strong", "weak"]


def test_a_rise_waits_and_a_fall_does_not() -> None:
    assert tiers_of([DECIDED, OPEN, DECIDED, DECIDED, DECIDED]) == [
        "strong",
        "weak",
        "weak",
        "weak",
        "strong",
    ]


def test_an_opening_and_what_is_unknown_are_weak() -> None:
    opening = replace(SETTINGS, opening_tokens=2)
    assert tiers_of([DECIDED] * 4, opening) == ["weak", "weak", "strong", "strong"]
    gate = TierGate(SETTINGS)
    assert gate.step(0, *DECIDED) == "strong"
    assert gate.step(1, None, 0.1) == "weak"
    assert TierGate(SETTINGS).step(0, 0.9, None) == "weak"


@given(readings, st.integers(1, 8))
def test_rises_are_at_least_a_dwell_apart_from_the_change_before(
    told: list[tuple[float, float]], dwell: int
) -> None:
    tiers = tiers_of(told, replace(SETTINGS, dwell_tokens=dwell))
    changes = [index for index in range(1, len(tiers)) if tiers[index] != tiers[index - 1]]
    for before, change in pairwise(changes):
        if TIERS.index(tiers[change]) < TIERS.index(tiers[change - 1]):
            assert change - before >= dwell


@given(
    st.sampled_from([(0.5, 1.0), (0.3, 2.0)]),
    st.lists(st.tuples(st.floats(-0.0999, 0), st.floats(0, 0.4999)), min_size=1, max_size=40),
)
def test_within_the_margin_nothing_flaps(
    threshold: tuple[float, float], offs: list[tuple[float, float]]
) -> None:
    """A tier that was entered stays while both readings are within the margin of its thresholds."""
    tier = "strong" if threshold[0] == 0.5 else "medium"
    start = (threshold[0] + 0.01, threshold[1] - 0.01)
    told = [(threshold[0] + off, threshold[1] + more) for off, more in offs]
    assert set(tiers_of([start, *told])) == {tier}


@given(readings)
def test_no_tier_is_held_beyond_its_margin(told: list[tuple[float, float]]) -> None:
    asked = {"strong": SETTINGS.strong, "medium": SETTINGS.medium}
    for (gravity, entropy), tier in zip(told, tiers_of(told), strict=True):
        if tier != "weak":
            assert gravity >= asked[tier].gravity - SETTINGS.gravity_margin - 1e-12
            assert entropy <= asked[tier].entropy_nats + SETTINGS.entropy_margin_nats + 1e-12


@given(st.lists(st.sampled_from(TIERS)))
def test_the_share_of_the_fleet(tiers: list[Tier]) -> None:
    share = fleet_share(tiers)
    assert 0.0 <= share <= 1.0
    assert share * max(1, len(tiers)) == pytest.approx(sum(tier == "strong" for tier in tiers))
