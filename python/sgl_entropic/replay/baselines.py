"""The policies that ours is compared with; each is its rank. Larger is evicted later."""

from __future__ import annotations

from sgl_entropic.replay.policy import FixedRank
from sgl_entropic.replay.prefill import PrefillCost
from sgl_entropic.replay.trace import Request, Trace


class Lru(FixedRank):
    """Least recently used first."""

    def rank(self, node: int) -> int:
        """Last use."""
        return self.last[node]


class Fifo(FixedRank):
    """Computed first, evicted first."""

    def rank(self, node: int) -> int:
        """When it was computed."""
        return self.first[node]


class Lfu(FixedRank):
    """Least hits since it was computed first."""

    def rank(self, node: int) -> tuple[int, int]:
        """Hits, then last use."""
        return self.hits[node], self.last[node]


class Slru(FixedRank):
    """Segmented LRU (Karedla et al. 1994): blocks without enough hits go first.

    SGLang's ``slru`` counts the first computing as a hit, so its threshold of 2 is 1 here.
    """

    def __init__(self, trace: Trace, protected_hits: int) -> None:
        super().__init__(trace)
        self._protected_hits = protected_hits

    def rank(self, node: int) -> tuple[bool, int]:
        """Segment, then last use."""
        return self.hits[node] >= self._protected_hits, self.last[node]


class TailLru(FixedRank):
    """T-LRU (Zhang et al. 2025, arXiv:2510.15152): first what a conversation can spare without a late first token.

    A conversation of L tokens whose next prompt adds Q needs L + Q - threshold of them cached; blocks behind are free.
    """

    def __init__(self, trace: Trace, threshold_tokens: int, next_prompt_tokens: int) -> None:
        super().__init__(trace)
        self._spared_tokens = threshold_tokens - next_prompt_tokens

    def rank(self, node: int) -> tuple[bool, int]:
        """Whether it is needed, then last use."""
        needed = self.trace.context_tokens[node] < self.longest[node] - self._spared_tokens
        return needed, self.last[node]


class HitsPerToken(FixedRank):
    """Least hits for each token of the block first."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self._tokens = [trace.block_tokens] * len(trace.parent)

    def served(self, number: int, request: Request, matched: int) -> None:
        """Note how long the blocks are, as far as has been seen."""
        super().served(number, request, matched)
        path = request.path
        if matched < len(path):
            self._tokens[path[-1]] = 0
        for node in path[max(0, matched - 1) : -1]:
            self._tokens[node] = self.trace.block_tokens
        self._tokens[path[-1]] = max(self._tokens[path[-1]], request.last_tokens)

    def rank(self, node: int) -> tuple[float, int]:
        """Hits for each token, then last use."""
        return self.hits[node] / self._tokens[node], self.last[node]


class Gdsf(FixedRank):
    """Greedy dual size frequency (Cherkasova 1998), the cost of a block being its prefill.

    rank = floor + uses x cost / tokens, where the floor is the rank of what was evicted last.
    """

    def __init__(self, trace: Trace, cost: PrefillCost) -> None:
        super().__init__(trace)
        self._cost = cost
        self._floor_ms = 0.0
        self._rank_ms = [0.0] * len(trace.parent)

    def served(self, number: int, request: Request, matched: int) -> None:
        """Raise what was touched above the floor."""
        super().served(number, request, matched)
        for node in request.path:
            each_ms = self._cost.token_ms(self.trace.context_tokens[node])
            self._rank_ms[node] = self._floor_ms + (self.hits[node] + 1) * each_ms

    def rank(self, node: int) -> float:
        """As of its last touch."""
        return self._rank_ms[node]

    def victim(self) -> int | None:
        """The least, which is the new floor."""
        node = super().victim()
        if node is not None:
            self._floor_ms = max(self._floor_ms, self._rank_ms[node])
        return node


class Belady(FixedRank):
    """Furthest next use first (Belady 1966), which needs the future.

    Among all blocks that is the optimum of hits in blocks where every block must be cached. Here only leaves may go, but
    whoever uses a block uses all ahead of it, so that the furthest next use is always found at a leaf, too: the restriction
    costs nothing while nothing is locked. With several requests running it is a bound up to what they lock, and in tokens up
    to blocks that are cut short.
    """

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self._uses = trace.next_uses()
        self._next = [0] * len(trace.parent)

    def served(self, number: int, request: Request, matched: int) -> None:
        """Look ahead."""
        super().served(number, request, matched)
        for node, use in zip(request.path, self._uses[number], strict=True):
            self._next[node] = use

    def rank(self, node: int) -> int:
        """Sooner is larger."""
        return -self._next[node]
