"""The queues find what ranking all leaves anew would find."""

from __future__ import annotations

import math
import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl_entropic.eviction import EvictionSettings, Leaves
from sgl_entropic.eviction.returns import EDGES_S
from sgl_entropic.replay import baselines
from sgl_entropic.replay.cache import replay
from sgl_entropic.replay.ours import Ours
from sgl_entropic.replay.queues import LeafQueues
from sgl_entropic.replay.trace import Trace, build


class _Checked(Ours):
    """Ranks all leaves by the policy itself whenever one is chosen."""

    def __init__(self, trace: Trace, nats: np.ndarray, gravity: float, made: EvictionSettings) -> None:
        super().__init__(trace, nats, gravity, made)
        self.nats, self.gravity = nats, gravity
        self.context = np.array(trace.context_tokens, dtype=np.float64)
        self.free: set[int] = set()
        self.chosen = 0

    def may_go(self, node: int) -> None:
        super().may_go(node)
        self.free.add(node)

    def stays(self, node: int) -> None:
        super().stays(node)
        self.free.discard(node)

    def victim(self) -> int | None:
        nodes = np.array(sorted(self.free), dtype=np.int64)
        leaves = Leaves(
            np.array(self._group)[nodes],
            self._now_s - np.array(self._last_s)[nodes],
            self.context[nodes],
            self.nats[nodes],
            np.zeros(len(nodes), dtype=np.bool_),
        )
        ranks = self._policy.rank(leaves, self.gravity) if len(nodes) else np.zeros(0)
        node = super().victim()
        if node is None:
            assert not len(nodes)
            return None
        weighs = self.gravity > 0.5 or self._policy.settings.work_weight
        # Index and weight are exact up to the share of recency, weights up to a step.
        slack = 2e-4 + (math.exp(1 / 64) - 1 if weighs else 0.0)
        # Within rounding of an edge a leaf may be of either age.
        at_edge = np.abs(leaves.idle_s[:, None] - np.array(EDGES_S[1:])).min() < 1e-9
        assert at_edge or ranks[nodes == node][0] <= ranks.min() * (1 + slack)
        self.free.remove(node)
        self.chosen += 1
        return node


def _trace(seed: int, requests: int, gap_s: float) -> Trace:
    """Conversations that grow, and documents, at random times of which some are equal."""
    draw = random.Random(seed)
    rows, now_s, grown = [], 0.0, dict.fromkeys(range(12), 1)
    for at in range(requests):
        now_s += draw.choice([0.0, draw.expovariate(1 / gap_s)])
        if draw.random() < 0.6:
            speaker = draw.randrange(12)
            grown[speaker] = grown[speaker] % 6 + draw.randrange(2)
            ids = [0, *range(100 * speaker + 1, 100 * speaker + 1 + grown[speaker])]
        else:
            ids = [0, *range(10_000 + 9 * at, 10_000 + 9 * at + draw.randrange(1, 8))]
        rows.append(
            {
                "timestamp": 1000 * now_s,
                "input_length": 512 * len(ids) - draw.randrange(512),
                "output_length": 1,
                "hash_ids": ids,
            }
        )
    return build(rows)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    gap_s=st.sampled_from([0.05, 1.0, 20.0, 400.0]),
    pool=st.integers(10, 60),
    running=st.integers(1, 5),
    gravity=st.sampled_from([0.0, 1.0]),
    work=st.sampled_from([0.0, 1.0]),
    refresh=st.sampled_from([1, 8, 32]),
)
def test_the_smallest_rank_goes(seed, gap_s, pool, running, gravity, work, refresh) -> None:
    trace = _trace(seed, 150, gap_s)
    nats = np.random.default_rng(seed).lognormal(0.7, 0.5, len(trace.parent))
    made = EvictionSettings(
        surprisal_weight=0.5, work_weight=work, work_per_context=1e-4, refresh_visits=refresh
    )
    policy = _Checked(trace, nats, gravity, made)
    replay(trace, policy, pool, running=running)
    assert policy.chosen


def test_leaves_wait_in_order_of_last_use_and_age_brings_them_forward() -> None:
    index = np.full((256, 200), 2.0)
    index[:, 1:] = 1.0
    queues = LeafQueues(lambda: index, np.ones(9))
    for node, last_s in enumerate((3.0, 1.0, 2.0, 2.0)):
        queues.add(node, node % 2, last_s, 3.0)
    assert queues.pop(3.0) == 1
    queues.discard(2)
    queues.add(2, 0, 3.5, 3.5)
    queues.add(4, 5, 0.5, 3.5)
    # Those of another age have the smaller index.
    assert [queues.pop(6.5) for _ in range(5)] == [4, 3, 0, 2, None]
    assert len(queues) == 0


def test_weights_and_a_new_index_count() -> None:
    indices = [np.full((256, 200), 1.0), np.full((256, 200), 1.0)]
    indices[1][3] = 0.01
    queues = LeafQueues(lambda: indices[0], np.array([3.0, 1.0, 2.0, 9.0, 1.0]))
    for node in range(4):
        queues.add(node, 3 if node == 3 else 0, 0.0, 0.0)
    assert queues.pop(0.0) == 1
    indices.pop(0)
    assert queues.pop(0.0) == 2
    queues.add(1, 0, 0.0, 0.0)
    queues.refresh()
    assert [queues.pop(0.0) for _ in range(4)] == [3, 1, 0, None]


def test_what_is_no_leaf_any_more_is_not_kept() -> None:
    index = np.ones((256, 200))
    queues = LeafQueues(lambda: index, np.ones(2))
    queues.add(0, 0, 0.0, 0.0)
    for at in range(1, 5000):
        queues.add(1, 0, float(at), float(at))
        queues.discard(1)
        if at % 32 == 0:
            queues.refresh()
            queues.add(1, 1, at + 0.5, at + 0.5)
            assert queues.pop(at + 0.5) is not None
            queues.discard(1)
            queues.add(0, 0, 0.0, at + 0.5)
    assert sum(len(queue.entries) for queue in queues._queues.values()) < 3000


def test_no_leaf_and_no_trace_of_blocks() -> None:
    trace = build([{"timestamp": 0.0, "input_length": 0, "output_length": 1, "hash_ids": []}])
    assert Ours(trace, np.zeros(0)).victim() is None
    assert replay(trace, baselines.Lru(trace), 1).blocks == 0
