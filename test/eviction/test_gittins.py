"""The index against its definition, and what it means for recency."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_entropic.eviction.gittins import gittins_index

_HAZARDS = st.lists(st.floats(0.001, 0.9), min_size=1, max_size=6)


def _by_definition(hazard: list[float], widths_s: list[float], age: int) -> float:
    best = 0.0
    for end in range(age + 1, len(hazard) + 1):
        alive, seconds = 1.0, 0.0
        for at in range(age, end):
            seconds += widths_s[at] * (alive + alive * (1 - hazard[at])) / 2
            alive *= 1 - hazard[at]
        best = max(best, (1 - alive) / seconds)
    return best


@given(_HAZARDS, st.floats(0.5, 50.0))
def test_the_index_is_the_best_rate_of_any_horizon(hazard, width_s) -> None:
    widths = [width_s * (at + 1) for at in range(len(hazard))]
    index = gittins_index(np.array([hazard]), np.array(widths))
    expected = [_by_definition(hazard, widths, age) for age in range(len(hazard))]
    assert index[0] == pytest.approx(expected)


def test_it_rises_where_a_return_is_due() -> None:
    """Nobody returns in the first ten seconds, most in the next ten: worth more after ten than at once."""
    index = gittins_index(np.array([[0.001, 0.8, 0.001]]), np.array([10.0, 10.0, 10.0]))[0]
    assert index[1] > index[0] > index[2]


def test_a_falling_hazard_is_recency() -> None:
    index = gittins_index(np.array([[0.5, 0.4, 0.3, 0.2]]), np.array([1.0, 2.0, 4.0, 8.0]))[0]
    assert np.all(np.diff(index) < 0)
