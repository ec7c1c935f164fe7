"""Ranks: recency at first, then what was learnt; needs, surprisal and work."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from sgl_entropic.errors import ConfigError
from sgl_entropic.eviction import NEEDED_RANK, EvictionPolicy, EvictionSettings, Leaves, plain_rank


def _leaves(idle_s, *, group=7, context=0.0, surprisal=math.nan, needed=False) -> Leaves:
    idle = np.array(idle_s, dtype=np.float64)
    size = len(idle)

    def column(value, dtype) -> np.ndarray:
        return np.broadcast_to(np.array(value, dtype=dtype), size)

    return Leaves(
        column(group, np.int64),
        idle,
        column(context, np.float64),
        column(surprisal, np.float64),
        column(needed, np.bool_),
    )


def test_before_anything_is_learnt_the_order_is_recency() -> None:
    idle = [0.0, 1.0, 3.0, 5.0, 30.0, 200.0, 2000.0, 90_000.0]
    assert np.all(np.diff(EvictionPolicy().rank(_leaves(idle))) < 0)


def test_it_learns_who_comes_back() -> None:
    """Nodes of group 8 return after a minute, those of group 9 never do: then 8 stays, even where 9 is fresher."""
    policy, open_visits = EvictionPolicy(), []
    for turn in range(600):
        now_s = 10.0 * turn
        back = [open_visits.pop(0)] if len(open_visits) > 5 else []
        visit = policy.visited([8, 9], [(old, 8) for old in back], now_s)
        open_visits.append(visit)
    rank = policy.rank(_leaves([40.0, 1.0], group=[8, 9]))
    assert rank[0] > rank[1]


def test_what_a_waiting_request_needs_goes_last() -> None:
    rank = EvictionPolicy().rank(_leaves([500.0, 1.0, 900.0], needed=[True, False, True]))
    assert list(np.argsort(rank)) == [1, 2, 0]


def test_no_weight_lifts_a_node_above_what_is_needed() -> None:
    policy = EvictionPolicy(EvictionSettings(work_weight=4.0, work_per_context=1e-3))
    dear = policy.rank(_leaves([1.0], context=100_000.0))
    assert dear[0] < policy.rank(_leaves([1000.0], needed=True))[0]


def test_what_is_needed_keeps_its_order_where_ranks_are_small() -> None:
    """Recency is a small share of a rank, and a rank may be small: nothing of both is lost."""
    policy = EvictionPolicy()
    for turn in range(3000):
        policy.visited([7], [], 10.0 * turn)
    idle_s = np.linspace(3000.0, 3000.2, 5).tolist()
    plain, needed = policy.rank(_leaves(idle_s)), policy.rank(_leaves(idle_s, needed=True))
    assert plain[0] < 1e-4
    assert (np.diff(plain) < 0).all()
    assert (np.diff(needed) < 0).all()
    assert plain_rank(needed).tolist() == plain.tolist() == plain_rank(plain).tolist()
    assert plain.max() < NEEDED_RANK <= needed.min()


@pytest.mark.parametrize(("gravity", "first"), [(0.0, 1), (0.5, 1), (1.0, 0)])
def test_the_predictable_goes_first_only_under_strong_gravity(gravity, first) -> None:
    leaves = _leaves([10.0, 11.0], surprisal=[0.5, 4.0])
    assert np.argmin(EvictionPolicy(EvictionSettings(surprisal_weight=0.5)).rank(leaves, gravity)) == first


def test_surprisal_does_nothing_unless_it_is_given_a_weight() -> None:
    leaves = _leaves([10.0, 11.0], surprisal=[0.5, 4.0])
    assert EvictionPolicy().rank(leaves, 1.0).tolist() == EvictionPolicy().rank(leaves, 0.0).tolist()


def test_unknown_surprisal_is_like_the_mean() -> None:
    policy = EvictionPolicy(EvictionSettings(surprisal_weight=0.5))
    rank = policy.rank(_leaves([10.0, 10.0, 10.0], surprisal=[1.0, math.nan, 3.0]), 1.0)
    assert rank[0] < rank[1] < rank[2]
    assert policy.rank(_leaves([10.0]), 1.0) == pytest.approx(policy.rank(_leaves([10.0])))


def test_dear_tokens_stay_longer_where_work_counts() -> None:
    leaves = _leaves([10.0, 10.0], context=[0.0, 50_000.0])
    assert len(set(EvictionPolicy().rank(leaves))) == 1
    rank = EvictionPolicy(EvictionSettings(work_weight=1.0)).rank(leaves)
    assert rank[1] == pytest.approx(1.5 * rank[0])


def test_the_same_visits_give_the_same_ranks() -> None:
    def ranks() -> list[float]:
        draw, policy = random.Random(1), EvictionPolicy()
        for at in range(100):
            policy.visited([draw.randrange(256) for _ in range(5)], [], float(at))
        return policy.rank(_leaves([1.0, 50.0, 300.0])).tolist()

    assert ranks() == ranks()


@pytest.mark.parametrize(
    "setting",
    [{"surprisal_weight": -1.0}, {"cell_prior": 0.0}, {"refresh_visits": 0}, {"work_weight": math.inf}],
)
def test_settings_out_of_range_are_named(setting) -> None:
    with pytest.raises(ConfigError, match=f"eviction.{next(iter(setting))}"):
        EvictionSettings(**setting)


def test_a_return_may_be_told_before_the_next_visit() -> None:
    """As where a request holds what it found until it ends."""
    together, apart = EvictionPolicy(), EvictionPolicy()
    for policy in (together, apart):
        first = policy.visited([3], [], 0.0)
        if policy is apart:
            policy.returned([(first, 3)], 50.0)
            policy.visited([3], [], 50.0)
        else:
            policy.visited([3], [(first, 3)], 50.0)
    assert np.array_equal(together._times.returned, apart._times.returned)
    assert np.array_equal(together._times.exposed, apart._times.exposed)
