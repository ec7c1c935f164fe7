"""Exposures and returns are counted at the right ages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_entropic.eviction import returns
from sgl_entropic.eviction.returns import AGES, EDGES_S, ReturnTimes, age_of


def test_an_age_begins_at_its_edge() -> None:
    assert [age_of(seconds) for seconds in (0.0, 3.9, 4.0, 6.7, 6.8, 1e9)] == [0, 0, 1, 1, 2, AGES - 1]


def test_what_returns_is_counted_where_it_returns_and_exposed_until_then() -> None:
    times = ReturnTimes()
    times.advance(0.0)
    visit = times.visited([5, 5, 5, 5, 9], 0.0)
    times.advance(5.0)
    times.came_back(visit, 9, 5.0)
    times.advance(100.0)
    # four nodes that go together weigh two
    reached = age_of(100.0)
    assert times.exposed[5].tolist() == pytest.approx([2.0] * (reached + 1) + [0.0] * (AGES - reached - 1))
    assert times.exposed[9].tolist() == pytest.approx([1.0, 1.0] + [0.0] * (AGES - 2))
    assert times.returned[9, 1] == 1.0
    assert times.returned.sum() == 1.0


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0.0, 900.0), st.booleans()), max_size=30))
def test_no_more_returns_than_were_exposed(steps) -> None:
    times, now_s, open_visits = ReturnTimes(), 0.0, []
    for group, pause_s, comes_back in steps:
        now_s += pause_s
        times.advance(now_s)
        if comes_back and open_visits:
            times.came_back(*open_visits.pop(0), now_s)
        open_visits.append((times.visited([group], now_s), group))
    times.advance(now_s)
    assert np.all(times.returned <= times.exposed + 1e-9)


def test_a_node_that_was_divided_returns_in_parts() -> None:
    times = ReturnTimes()
    visit = times.visited([5], 0.0)
    times.divided(visit, 5)
    times.came_back(visit, 5, 1.0)
    assert visit.left == {5: 1.0}
    times.came_back(visit, 5, 1.0)
    assert visit.left == {5: 0.0}


def test_the_oldest_visits_are_given_up_when_there_are_too_many(monkeypatch) -> None:
    monkeypatch.setattr(returns, "MOST_OPEN_VISITS", 3)
    times = ReturnTimes()
    visits = [times.visited([group], float(group)) for group in range(5)]
    times.came_back(visits[0], 0, 5.0)
    times.divided(visits[1], 1)
    for group in (2, 3, 4):
        times.came_back(visits[group], group, 5.0)
    assert times.returned.sum(axis=1)[:6].tolist() == [0, 0, 1, 1, 1, 0]
    times.advance(1e6)
    # All have run out: there is room for as many again.
    later = [times.visited([group], 1e6) for group in range(3)]
    assert all(visit.weight for visit in later)


def test_what_was_flushed_is_neither_exposed_nor_returned() -> None:
    times = ReturnTimes()
    times.visited([5], 0.0)
    times.advance(1.0)
    times.flushed()
    times.advance(100.0)
    assert times.exposed[5].tolist() == [1.0] + [0.0] * (AGES - 1)


def test_a_visit_is_forgotten_after_the_last_age() -> None:
    times = ReturnTimes()
    times.visited([1], 0.0)
    times.advance(EDGES_S[-1] + 1.0)
    assert not any(times._reaching)


def test_forgetting_keeps_the_ratio() -> None:
    times = ReturnTimes()
    times.visited([1], 0.0)
    times.advance(0.0)
    times.forget(0.25)
    assert times.exposed[1, 0] == 0.25
