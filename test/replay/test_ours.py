"""Our policy in the replay's cache."""

from __future__ import annotations

import numpy as np
import pytest

from sgl_entropic.eviction import EvictionSettings
from sgl_entropic.replay.cache import replay
from sgl_entropic.replay.ours import Ours
from sgl_entropic.replay.trace import build


def _conversations(rounds: int) -> list[list[int]]:
    """Two kinds in turn: a short one that grows, of which every path returns, and a document that never does."""
    paths = []
    for at in range(rounds):
        speaker = at % 4
        paths.append([1000 + speaker, *range(2000 * (speaker + 1), 2000 * (speaker + 1) + at // 4 % 6)])
        paths.append(list(range(50_000 + 10 * at, 50_008 + 10 * at)))
    return paths


def test_it_learns_to_keep_what_returns(trace_of, makers) -> None:
    """Documents fill the pool between two turns, so recency finds nothing."""
    trace = trace_of(*_conversations(150))
    found = {name: replay(trace, make(), 30).hit_blocks for name, make in makers(trace).items()}
    assert found["lru"] == 0
    assert found["ours"] > 0.6 * found["belady"] > 0


@pytest.mark.parametrize("ghosts", [0, 7])
def test_no_more_ghosts_than_allowed(trace_of, ghosts) -> None:
    trace = trace_of(*_conversations(20))
    policy = Ours(trace, np.full(len(trace.parent), np.nan), ghost_blocks=ghosts)
    replay(trace, policy, 30)
    assert len(policy._ghosts) == ghosts
    known = sum(visit is not None for visit in policy._visit)
    assert known <= 30 + ghosts


def test_a_block_is_cut_short_until_a_longer_prompt_shows_it_whole() -> None:
    """Its group after the first request does not depend on what comes later."""
    short = {"timestamp": 0, "input_length": 6, "output_length": 1, "hash_ids": [1, 2]}
    whole = {"timestamp": 9000, "input_length": 10, "output_length": 1, "hash_ids": [1, 2, 3]}
    alone, followed = build([short], 4), build([short, whole], 4)
    groups = []
    for trace in (alone, followed):
        policy = Ours(trace, np.full(len(trace.parent), np.nan))
        policy.asks(trace.requests[0])
        policy.served(0, trace.requests[0], 0)
        groups.append(policy._group[:2])
    assert groups[0] == groups[1]
    assert groups[0][0] != groups[0][1]
    policy.served(1, followed.requests[1], 2)
    assert policy._group[0] == policy._group[1] != policy._group[2]


def test_surprisal_does_nothing_outside_strong_gravity(trace_of) -> None:
    trace = trace_of(*_conversations(40))
    nats = np.linspace(0.1, 9.0, len(trace.parent))
    weighed = EvictionSettings(surprisal_weight=0.5)
    hits = {
        gravity: [
            replay(trace, Ours(trace, given, gravity, weighed), 30).hit_blocks for given in (nats, nats[::-1])
        ]
        for gravity in (0.0, 0.5)
    }
    assert len({found for pair in hits.values() for found in pair}) == 1
