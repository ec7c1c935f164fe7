"""``sgl_entropic.eviction`` in the replay's cache."""

from __future__ import annotations

import heapq
from collections import OrderedDict

import numpy as np

from sgl_entropic.eviction import EvictionPolicy, EvictionSettings, Leaves, Touch, Visit, group_of, turn_of
from sgl_entropic.eviction.arrays import FloatArray, IntArray
from sgl_entropic.replay.policy import Policy
from sgl_entropic.replay.trace import Request, Trace

GHOST_BLOCKS = 200_000
"""Some tens of megabytes."""


class Ours(Policy):
    """Ranks all leaves anew for each request that needs room: ranks change with time.

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
        self._gravity = fleet_gravity
        self._surprisal = surprisal_nats
        self._context = np.array(trace.context_tokens, dtype=np.float64)
        self._group: IntArray = np.zeros(nodes, dtype=np.int64)
        self._last_s: FloatArray = np.zeros(nodes)
        self._visit: list[Visit | None] = [None] * nodes
        self._hits = [0] * nodes
        self._continuations = [0] * nodes
        self._ghosts: OrderedDict[int, None] = OrderedDict()
        self._ghost_blocks = ghost_blocks
        self._leaves: set[int] = set()
        self._heap: list[tuple[float, int]] | None = None
        self._now_s = 0.0

    def asks(self, request: Request) -> None:
        """Ranks of before are stale."""
        self._now_s = request.at_s
        self._heap = None

    def served(self, number: int, request: Request, matched: int) -> None:  # noqa: ARG002 -- the contract
        """Tell the policy who came back, and of what kind the path is now."""
        path = request.path
        returning = []
        for node in path:
            visit = self._visit[node]
            if visit is None:
                break
            returning.append((visit, int(self._group[node])))
        groups = self._touch(request, len(returning))
        visit = self._policy.visited(groups, returning, request.at_s)
        for node, group in zip(path, groups, strict=True):
            self._ghosts.pop(node, None)
            self._visit[node] = visit
            self._group[node] = group
            self._last_s[node] = request.at_s

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
        new_tokens = max(0, request.input_tokens - known * trace.block_tokens)
        groups: list[int] = []
        before: Touch | None = None
        for node in path:
            touch = Touch(
                cut_short=trace.tokens[node] < trace.block_tokens,
                new_tokens=new_tokens,
                hits=self._hits[node],
                continuations=self._continuations[node],
                turn=turn,
            )
            # Neighbours on a path are mostly of one kind.
            groups.append(groups[-1] if touch == before else group_of(touch))
            before = touch
        return groups

    def may_go(self, node: int) -> None:
        """Rank it, if ranks are being compared now."""
        self._leaves.add(node)
        if self._heap is not None:
            heapq.heappush(self._heap, (float(self._ranks(np.array([node]))[0]), node))

    def stays(self, node: int) -> None:
        """It is no leaf any more."""
        self._leaves.discard(node)

    def victim(self) -> int | None:
        """The leaf of smallest rank."""
        if self._heap is None:
            leaves = np.fromiter(self._leaves, np.int64, len(self._leaves))
            self._heap = list(zip(self._ranks(leaves).tolist(), leaves.tolist(), strict=True))
            heapq.heapify(self._heap)
        while self._heap:
            _, node = heapq.heappop(self._heap)
            if node in self._leaves:
                self._leaves.remove(node)
                self._remember(node)
                return node
        return None

    def _remember(self, node: int) -> None:
        self._ghosts[node] = None
        if len(self._ghosts) > self._ghost_blocks:
            forgotten, _ = self._ghosts.popitem(last=False)
            self._visit[forgotten] = None
            self._hits[forgotten] = self._continuations[forgotten] = 0

    def _ranks(self, nodes: IntArray) -> FloatArray:
        leaves = Leaves(
            self._group[nodes],
            self._now_s - self._last_s[nodes],
            self._context[nodes],
            self._surprisal[nodes],
            np.zeros(len(nodes), dtype=np.bool_),
        )
        return self._policy.rank(leaves, self._gravity)
