"""The order in which one call evicts: ranks are computed once for all nodes, and sorted only as far as is needed."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np

from sgl_entropic.eviction import NEEDED_RANK, needed_rank, plain_rank
from sgl_entropic.eviction.arrays import FloatArray, IntArray
from sgl_entropic.runtime.eviction.book import Book

_FIRST_SORTED = 32


class Walk:
    """Victims, smallest rank first.

    Args:
        book: of the tree.
        most_tokens: tokens to evict at most, before the last victim.
    """

    def __init__(self, book: Book, most_tokens: int) -> None:
        self.most_tokens = most_tokens
        self._book = book
        gravity = book.gravity()
        self._ranks = book.ranks(gravity)
        self._leaves = book.table.leaf_rows()
        weighs = book.policy.surprisal_exponent(gravity) > 0
        self._plain = book.ranks(0.0) if weighs else None
        self._sorted: IntArray = self._leaves[:0]
        self._next = 0
        # Nodes that became leaves since.
        self._heap: list[tuple[float, int]] = []
        self._last: Any = None
        self._victims: list[tuple[int, int]] = []

    def next(self) -> Any:
        """The next victim, which is evicted before the one after it is asked for; ``None`` when there is no more."""
        self._look_at_parent()
        self._sort_more()
        row = -1
        if self._next < len(self._sorted):
            row = int(self._sorted[self._next])
        if self._heap and (row < 0 or self._heap[0] < (float(self._ranks[row]), row)):
            _, row = heapq.heappop(self._heap)
        elif row >= 0:
            self._next += 1
        if row < 0:
            return None
        node = self._last = self._book.table.nodes[row]
        self._victims.append((row, len(node.key)))
        if self._ranks[row] >= NEEDED_RANK:
            self._book.counters.evicted_needed_tokens += len(node.key)
        return node

    def _look_at_parent(self) -> None:
        node, self._last = self._last, None
        if node is None:
            return
        table = self._book.table
        row = table.facts(node.parent).row
        if table.leaf[row]:
            # What a waiting request needs of the node, it needs of the parent as well.
            needed = self._ranks[table.facts(node).row] >= NEEDED_RANK and self._ranks[row] < NEEDED_RANK
            if needed:
                self._ranks[row : row + 1] = needed_rank(self._ranks[row : row + 1])
            heapq.heappush(self._heap, (float(self._ranks[row]), row))

    def _sort_more(self) -> None:
        if self._next < len(self._sorted) or len(self._sorted) == len(self._leaves):
            return
        size = min(max(_FIRST_SORTED, 4 * len(self._sorted)), len(self._leaves))
        order = self._ranks[self._leaves]
        # Ties in order of rows, which is the same on every rank.
        least = (
            np.flatnonzero(order <= np.partition(order, size - 1)[size - 1])
            if size < len(order)
            else np.arange(size)
        )
        self._sorted = self._leaves[least[np.argsort(order[least], kind="stable")]]

    def end(self) -> None:
        """Count what was done, and what was not because of what is known."""
        if not self._victims:
            return
        counters, table = self._book.counters, self._book.table
        counters.evict_calls += 1
        counters.evicted_tokens += sum(tokens for _, tokens in self._victims)
        if self._plain is not None:
            plain = self._plain[self._leaves]
            last = min(len(self._victims), len(plain)) - 1
            worst = np.partition(plain, last)[last]
            counters.evicted_predictable_tokens += sum(
                tokens for row, tokens in self._victims if self._plain[row] > worst
            )
        worst = max(self._ranks[row] for row, _ in self._victims)
        for row in self._spared(worst):
            table.saved[row] = True
            counters.lookahead_saved_tokens += len(table.nodes[row].key)

    def _spared(self, worst: float) -> list[int]:
        """Leaves that would have gone, were they not needed, and were not counted yet."""
        table = self._book.table
        if worst >= NEEDED_RANK or not table.needed.any():
            return []
        rows: IntArray = np.flatnonzero(table.needed & table.leaf & ~table.saved)
        rows = rows[rows < len(self._ranks)]
        ranks: FloatArray = self._ranks[rows]
        spared: list[int] = rows[(ranks >= NEEDED_RANK) & (plain_rank(ranks) < worst)].tolist()
        return spared
