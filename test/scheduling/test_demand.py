"""Demand: the load that the started work makes, and forgetting."""

import pytest

from sgl_entropic.scheduling import CostModel
from sgl_entropic.scheduling.demand import MEMORY_STEPS, Demand


def demand() -> Demand:
    return Demand(CostModel(frozen=True, prefill=(10.0, 0.1, 0.0), decode=(4.0, 2.0, 0.0)))


def test_before_any_step_there_is_none() -> None:
    fresh = demand()
    fresh.observe_started(100.0)
    assert fresh.load(3.0) == 0.0
    assert fresh.carries(3.0)


def test_it_is_the_started_work_for_each_ms_of_steps() -> None:
    measured = demand()
    measured.observe_steps(0, 0, 8, 0)
    for turn in range(1, 11):
        measured.observe_started(50.0)
        # 100 tokens of prefill and 10 steps of 8 rows each turn.
        measured.observe_steps(180 * turn, 10 * turn, 8, 0)
    # 10 prefills of 10 ms, 100 steps of 20 ms, 500 tokens of 2.5 ms.
    assert measured.load(2.5) == pytest.approx((100.0 + 500 * 2.5) / 2100.0, rel=0.02)
    assert measured.carries(2.5)
    assert not measured.carries(6.0)


def test_how_often_it_is_asked_does_not_matter() -> None:
    often, seldom = demand(), demand()
    for measured in (often, seldom):
        measured.observe_steps(0, 0, 8, 0)
        measured.observe_started(500.0)
    for step in range(1, 101):
        often.observe_steps(8 * step, step, 8, 0)
    seldom.observe_steps(800, 100, 8, 0)
    assert often.load(2.5) == pytest.approx(seldom.load(2.5), rel=0.03)


def test_old_work_is_forgotten() -> None:
    measured = demand()
    measured.observe_steps(0, 0, 1, 0)
    measured.observe_started(10_000.0)
    for turn in range(1, 21):
        steps = int(turn * MEMORY_STEPS / 4)
        measured.observe_steps(steps, steps, 1, 0)
    assert measured.load(6.0) < 0.05


def test_a_server_that_started_again_is_counted_from_there() -> None:
    measured = demand()
    measured.observe_steps(1000, 100, 1, 0)
    measured.observe_steps(0, 0, 1, 0)
    assert measured.load(1.0) == 0.0
