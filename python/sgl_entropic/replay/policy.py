"""What the cache asks of a policy, and the part that those with a fixed rank share."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from typing import Any

from sgl_entropic.replay.trace import Request, Trace


class Policy(ABC):
    """Chooses the block to evict."""

    @abstractmethod
    def asks(self, request: Request) -> None:
        """A request has arrived, and room will be made for it."""

    @abstractmethod
    def served(self, number: int, request: Request, matched: int) -> None:
        """Its path is cached now; the first ``matched`` blocks already were."""

    @abstractmethod
    def may_go(self, node: int) -> None:
        """A block has become a leaf that may be evicted."""

    @abstractmethod
    def stays(self, node: int) -> None:
        """A block may not be evicted, perhaps not any more."""

    @abstractmethod
    def victim(self) -> int | None:
        """The block that is evicted now, ``None`` if there is none."""


class FixedRank(Policy):
    """Evicts the leaf of smallest rank, where a rank changes only when its node is touched.

    So each leaf has one valid entry in a heap, and costs the logarithm of their number.

    Attributes:
        last: number of the request that touched each node last.
        first: number of the request that computed it.
        hits: how often it was found since then.
        longest: most prompt tokens of a request through it, ever.
    """

    def __init__(self, trace: Trace) -> None:
        nodes = len(trace.parent)
        self.trace = trace
        self.last = [0] * nodes
        self.first = [0] * nodes
        self.hits = [0] * nodes
        self.longest = [0] * nodes
        self._heap: list[tuple[Any, int, int]] = []
        self._entry: dict[int, int] = {}
        self._entries = 0

    @abstractmethod
    def rank(self, node: int) -> Any:
        """Larger is evicted later; of equal ones, the one that became a leaf first goes."""

    def asks(self, request: Request) -> None:
        """Nothing depends on the time of a decision."""

    def served(self, number: int, request: Request, matched: int) -> None:
        """Note the touch."""
        for place, node in enumerate(request.path):
            self.last[node] = number
            if place < matched:
                self.hits[node] += 1
            else:
                self.first[node], self.hits[node] = number, 0
            self.longest[node] = max(self.longest[node], request.input_tokens)

    def may_go(self, node: int) -> None:
        """Rank it."""
        self._entries += 1
        self._entry[node] = self._entries
        heapq.heappush(self._heap, (self.rank(node), self._entries, node))

    def stays(self, node: int) -> None:
        """Its entry is void."""
        self._entry.pop(node, None)

    def victim(self) -> int | None:
        """The valid entry of smallest rank."""
        while self._heap:
            _, entry, node = heapq.heappop(self._heap)
            if self._entry.get(node) == entry:
                del self._entry[node]
                return node
        return None
