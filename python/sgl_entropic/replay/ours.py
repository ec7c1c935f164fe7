"""``sgl_entropic.eviction`` in the replay's cache."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from sgl_entropic.eviction import EvictionPolicy, EvictionSettings, Leaves, Touch, Visit, group_of, turn_of
from sgl_entropic.eviction.arrays import FloatArray
from sgl_entropic.eviction.groups import GROUPS
from sgl_entropic.eviction.returns import EDGES_S
from sgl_entropic.replay.policy import Policy
from sgl_entropic.replay.queues import LeafQueues
from sgl_entropic.replay.trace import Request, Trace

GHOST_BLOCKS = 200_000
"""Some tens of megabytes."""
# Between two requests. Without it all of a trace with one timestamp is of one age, and so is much of a very fast one.
_LEAST_STEP_S = 0.1


class Ours(Policy):
    """Evicts the leaf of smallest rank at the time of the request that needs room; see ``queues`` for how it is found.

    What is known of a node outlives it in a table of ghosts (as in ARC, Megiddo and Modha 2003), so that a path that
    returns is known to return even where it was evicted.

    Args:
        trace: the requests.
        surprisal_nats: mean surprisal of each node, NaN where unknown.
        fleet_gravity: share of active requests in strong gravity, the same throughout.
        settings: of the policy.
        ghost_blocks: most evicted nodes that are remembered; those evicted first are forgotten first.
    """

    def __init__(
        self,
        trace: Trace,
        surprisal_nats: FloatArray,
        fleet_gravity: float = 0.0,
        settings: EvictionSettings | None = None,
        ghost_blocks: int = GHOST_BLOCKS,
    ) -> None:
        nodes = len(trace.parent)
        self._trace = trace
        self._policy = EvictionPolicy(settings)
        self._group = [0] * nodes
        self._last_s = [0.0] * nodes
        self._visit: list[Visit | None] = [None] * nodes
        self._hits = [0] * nodes
        self._continuations = [0] * nodes
        self._short: set[int] = set()
        self._ghosts: OrderedDict[int, None] = OrderedDict()
        self._ghost_blocks = ghost_blocks
        context = np.array(trace.context_tokens, dtype=np.float64)
        self._leaves = LeafQueues(self._index, self._weights(context, surprisal_nats, fleet_gravity))
        self._visits = 0
        self._now_s = 0.0

    def asks(self, request: Request) -> None:
        """Ranks change with time, which goes on even where a trace's clock stands still or hardly moves."""
        self._now_s = max(request.at_s, self._now_s + _LEAST_STEP_S)

    def served(self, number: int, request: Request, matched: int) -> None:  # noqa: ARG002 -- the contract
        """Tell the policy who came back, and of what kind the path is now."""
        path = request.path
        returning = []
        for node in path:
            visit = self._visit[node]
            if visit is None:
                break
            returning.append((visit, self._group[node]))
        groups = self._touch(request, len(returning))
        visit = self._policy.visited(groups, returning, self._now_s)
        if self._visits % self._policy.settings.refresh_visits == 0:
            self._leaves.refresh()
        self._visits += 1
        for node, group in zip(path, groups, strict=True):
            self._ghosts.pop(node, None)
            self._visit[node] = visit
            self._group[node] = group
            self._last_s[node] = self._now_s

    def _touch(self, request: Request, known: int) -> list[int]:
        path, trace = request.path, self._trace
        for node in path[:known]:
            self._hits[node] += 1
        turn = 0
        if known:
            deepest = path[known - 1]
            turn = turn_of(self._hits[deepest], self._continuations[deepest])
        for node in path[known:]:
            if trace.parent[node] >= 0:
                self._continuations[trace.parent[node]] += 1
        self._lengthen(request, known)
        new_tokens = max(0, request.input_tokens - known * trace.block_tokens)
        groups: list[int] = []
        before: Touch | None = None
        for node in path:
            touch = Touch(
                cut_short=node in self._short,
                new_tokens=new_tokens,
                hits=self._hits[node],
                continuations=self._continuations[node],
                turn=turn,
            )
            # Neighbours on a path are mostly of one kind.
            groups.append(groups[-1] if touch == before else group_of(touch))
            before = touch
        return groups

    def _lengthen(self, request: Request, known: int) -> None:
        """Blocks are as long as was seen until now; what a longer prompt will show is not known yet."""
        path = request.path
        self._short.difference_update(path[:-1])
        if request.last_tokens == self._trace.block_tokens:
            self._short.discard(path[-1])
        elif known < len(path):
            self._short.add(path[-1])

    def may_go(self, node: int) -> None:
        """It is a leaf now."""
        self._leaves.add(node, self._group[node], self._last_s[node], self._now_s)

    def stays(self, node: int) -> None:
        """It is no leaf any more."""
        self._leaves.discard(node)

    def victim(self) -> int | None:
        """The leaf of smallest rank."""
        node = self._leaves.pop(self._now_s)
        if node is not None:
            self._remember(node)
        return node

    def _remember(self, node: int) -> None:
        self._ghosts[node] = None
        if len(self._ghosts) > self._ghost_blocks:
            forgotten, _ = self._ghosts.popitem(last=False)
            self._visit[forgotten] = None
            self._hits[forgotten] = self._continuations[forgotten] = 0

    def _index(self) -> FloatArray:
        """Rank of a node that nothing else speaks for or against, at the beginning of each age [group, age]."""
        ages = len(EDGES_S)
        leaves = Leaves(
            np.repeat(np.arange(GROUPS), ages),
            np.tile(np.array(EDGES_S), GROUPS),
            np.zeros(GROUPS * ages),
            np.full(GROUPS * ages, np.nan),
            np.zeros(GROUPS * ages, dtype=np.bool_),
        )
        return self._policy.rank(leaves).reshape(GROUPS, ages)

    def _weights(self, context: FloatArray, surprisal_nats: FloatArray, gravity: float) -> FloatArray:
        """What context and surprisal multiply the rank of each node with [node]."""
        nodes = len(context)
        zeros, groups = np.zeros(nodes), np.zeros(nodes, dtype=np.int64)
        free = np.zeros(nodes, dtype=np.bool_)
        plain = self._policy.rank(Leaves(groups, zeros, zeros, np.full(nodes, np.nan), free))
        return self._policy.rank(Leaves(groups, zeros, context, surprisal_nats, free), gravity) / plain
