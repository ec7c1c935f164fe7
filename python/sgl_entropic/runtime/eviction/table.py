"""What is known of each node of the prefix tree: columns for what a ranking reads, an object for the rest.

A ranking looks at every leaf whenever the pool is full, so what it reads lies in arrays, one row a node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sgl_entropic.eviction import Leaves, Visit
from sgl_entropic.eviction.arrays import IntArray

_ATTRIBUTE = "_sgl_entropic_eviction"
_FIRST_ROWS = 1024
_COLUMNS = (
    "group",
    "last_s",
    "context_tokens",
    "surprisal_nats",
    "surprisal_read",
    "leaf",
    "needed",
    "saved",
)


@dataclass(slots=True, eq=False)
class Facts:
    """What is read at visits and splits only.

    Attributes:
        row: the node's row of the table.
        placed: whether the node's place in the tree has been noted; not yet between its creation and the end of its insert.
        visit: the request that touched it last; ``None`` while a request uses it, and before the first one has ended.
        hits: requests that asked for it after it was first computed.
        continuations: different nodes that ever followed it.
        births: how often it got a child: a match that ended here may go on since.
        hasher: state of the hash of all tokens up to its end, once asked for.
    """

    row: int
    placed: bool = False
    visit: Visit | None = None
    hits: int = 0
    continuations: int = 0
    births: int = 0
    hasher: Any = None


class NodeTable:
    """Rows are reused. All times are readings of the policy's clock, in seconds.

    Attributes:
        group: see ``group_of``.
        last_s: last touch.
        context_tokens: tokens ahead of the node.
        surprisal_nats: mean surprisal of its tokens; NaN where unknown.
        surprisal_read: whether that was looked for.
        leaf: it may be evicted now.
        needed: a waiting request will match it.
        saved: that has been counted as having spared it.
        nodes: by row.
    """

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self._free: list[int] = []
        self._allocate(_FIRST_ROWS)

    def _allocate(self, rows: int) -> None:
        self.group = np.zeros(rows, dtype=np.int64)
        self.last_s = np.zeros(rows)
        self.context_tokens = np.zeros(rows)
        self.surprisal_nats = np.full(rows, np.nan)
        self.surprisal_read = np.zeros(rows, dtype=np.bool_)
        self.leaf = np.zeros(rows, dtype=np.bool_)
        self.needed = np.zeros(rows, dtype=np.bool_)
        self.saved = np.zeros(rows, dtype=np.bool_)

    def clear(self) -> None:
        """Forget all nodes."""
        self.nodes, self._free = [], []
        self._allocate(_FIRST_ROWS)

    def facts(self, node: Any) -> Facts:
        """The facts of ``node``, which gets a row when it has none."""
        facts: Facts | None = node.__dict__.get(_ATTRIBUTE)
        if facts is None:
            facts = Facts(self._row(node))
            setattr(node, _ATTRIBUTE, facts)
        return facts

    def _row(self, node: Any) -> int:
        if self._free:
            row = self._free.pop()
            self.nodes[row] = node
            self.surprisal_read[row] = False
            return row
        row = len(self.nodes)
        self.nodes.append(node)
        if row == len(self.group):
            self._grow()
        return row

    def _grow(self) -> None:
        before = {name: getattr(self, name) for name in _COLUMNS}
        self._allocate(2 * len(self.group))
        for name, column in before.items():
            getattr(self, name)[: len(column)] = column

    def has(self, node: Any) -> bool:
        """Whether ``node`` is still in the tree."""
        row = self.facts(node).row
        return row < len(self.nodes) and self.nodes[row] is node

    def release(self, node: Any) -> None:
        """``node`` has left the tree; its row is another one's from now on."""
        row = self.facts(node).row
        self.nodes[row] = None
        self.surprisal_nats[row] = np.nan
        # Nothing is to be read where no node is.
        self.surprisal_read[row] = True
        self.leaf[row] = self.needed[row] = self.saved[row] = False
        self._free.append(row)

    def leaf_rows(self) -> IntArray:
        """Rows of the nodes that may be evicted now."""
        return np.flatnonzero(self.leaf[: len(self.nodes)])

    def columns(self, now_s: float) -> Leaves:
        """All rows as the policy takes them; those that are no leaves are ranked for when they become one."""
        used = len(self.nodes)
        return Leaves(
            self.group[:used],
            np.maximum(now_s - self.last_s[:used], 0.0),
            self.context_tokens[:used],
            self.surprisal_nats[:used],
            self.needed[:used],
        )


class LeafSet(set[Any]):
    """SGLang's set of evictable nodes, which tells the table who is in it."""

    def __init__(self, table: NodeTable) -> None:
        super().__init__()
        self._table = table

    def add(self, node: Any) -> None:
        """``node`` may be evicted."""
        super().add(node)
        # A new row may lie in new columns.
        row = self._table.facts(node).row
        self._table.leaf[row] = True

    def discard(self, node: Any) -> None:
        """It may not."""
        if node in self:
            super().discard(node)
            self._table.leaf[self._table.facts(node).row] = False
