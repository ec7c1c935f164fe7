"""The leaves in the order of ``EvictionPolicy.rank``, kept up to date instead of ranked anew for every request.

    rank = index(group, age)  x  weight  x  (1 - a share of idle time, too small to change any other order)

So leaves of one group, age and weight form a queue in order of last use, and only the heads of the queues are compared, by
``index x weight`` and then by last use. A leaf changes its queue when it reaches the next age; an index changes only when
the policy's estimates are computed anew. Weights are of the node and never change. They are taken in steps of 1.6 %.
"""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections import deque
from collections.abc import Callable

import numpy as np

from sgl_entropic.eviction.arrays import FloatArray
from sgl_entropic.eviction.returns import AGES, EDGES_S, age_of

_STEP = 1.0 / 64.0
_LEAST_WEIGHT = 1e-300
_Entry = tuple[float, int]
"""Last use in seconds, node. A leaf has one valid entry, told by identity."""


class _Queue:
    """Leaves of one group, weight and age.

    Attributes:
        group: of all.
        step: logarithm of their weight, in steps.
        age: of all.
        key: orders queues.
        value: index times weight.
        entries: in order; some may not be leaves any more.
        told: the entry that competes for this queue.
        due_s: when its head reaches the next age.
    """

    __slots__ = ("age", "due_s", "entries", "group", "key", "step", "told", "value")

    def __init__(self, group: int, step: int, age: int, value: float) -> None:
        self.group, self.step, self.age = group, step, age
        self.key = (group, step, age)
        self.value = value
        self.entries: deque[_Entry] = deque()
        self.told: _Entry | None = None
        self.due_s = math.inf


class LeafQueues:
    """Chooses the leaf of smallest rank.

    Args:
        index: gives the rank of a node of weight 1, [group, age]; asked again after ``refresh``.
        weights: factor of each node's rank.
    """

    def __init__(self, index: Callable[[], FloatArray], weights: FloatArray) -> None:
        self._steps: list[int] = (
            np.rint(np.log(np.maximum(weights, _LEAST_WEIGHT)) / _STEP).astype(np.int64).tolist()
        )
        self._ask = index
        self._index: list[list[float]] = []
        self._leaf: dict[int, _Entry] = {}
        self._queues: dict[tuple[int, int, int], _Queue] = {}
        self._first: list[tuple[float, _Entry, tuple[int, int, int]]] = []
        self._calendar: list[tuple[float, tuple[int, int, int]]] = []

    def __len__(self) -> int:
        """Leaves."""
        return len(self._leaf)

    def refresh(self) -> None:
        """The index has changed."""
        self._index = []

    def add(self, node: int, group: int, last_s: float, now_s: float) -> None:
        """A node has become a leaf that may go."""
        entry = (last_s, node)
        self._leaf[node] = entry
        self._place(entry, group, self._steps[node], age_of(now_s - last_s))

    def discard(self, node: int) -> None:
        """It may not."""
        self._leaf.pop(node, None)

    def pop(self, now_s: float) -> int | None:
        """Take the leaf of smallest rank at that time, which never goes back; ``None`` if there is none."""
        if self._calendar and self._calendar[0][0] <= now_s:
            self._advance(now_s)
        if not self._index:
            self._compare_anew()
        while self._first:
            _, entry, key = heapq.heappop(self._first)
            queue = self._queues[key]
            if queue.told is not entry:
                continue
            alive = self._leaf.get(entry[1]) is entry
            if alive:
                queue.entries.popleft()
                del self._leaf[entry[1]]
            self._tell(queue)
            if alive:
                return entry[1]
        return None

    def _place(self, entry: _Entry, group: int, step: int, age: int) -> None:
        key = (group, step, age)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _Queue(group, step, age, self._value(group, step, age))
        entries = queue.entries
        if not entries or entries[-1] <= entry:
            entries.append(entry)
        elif entry < entries[0]:
            entries.appendleft(entry)
        else:
            insort(entries, entry)
        if entries[0] is entry:
            self._tell(queue)

    def _tell(self, queue: _Queue) -> None:
        """Let the head of a queue, which has changed, compete."""
        entries, leaf = queue.entries, self._leaf
        while entries and leaf.get(entries[0][1]) is not entries[0]:
            entries.popleft()
        if not entries:
            queue.told, queue.due_s = None, math.inf
            return
        head = queue.told = entries[0]
        heapq.heappush(self._first, (queue.value, head, queue.key))
        if queue.age + 1 < AGES:
            due_s = head[0] + EDGES_S[queue.age + 1]
            # What is due later than was thought is found out when that time comes.
            if due_s < queue.due_s:
                queue.due_s = due_s
                heapq.heappush(self._calendar, (due_s, queue.key))

    def _advance(self, now_s: float) -> None:
        """Move what has reached the next age."""
        while self._calendar and self._calendar[0][0] <= now_s:
            due_s, key = heapq.heappop(self._calendar)
            queue = self._queues.get(key)
            if queue is None or queue.due_s != due_s:
                continue
            after_s = EDGES_S[queue.age + 1]
            entries = queue.entries
            while entries and entries[0][0] + after_s <= now_s:
                entry = entries.popleft()
                if self._leaf.get(entry[1]) is entry:
                    age = max(queue.age + 1, age_of(now_s - entry[0]))
                    self._place(entry, queue.group, queue.step, age)
            queue.due_s = math.inf
            self._tell(queue)

    def _compare_anew(self) -> None:
        self._index = self._ask().tolist()
        self._first = []
        live = self._leaf
        held = sum(len(queue.entries) for queue in self._queues.values())
        for key, queue in list(self._queues.items()):
            if held > 2 * len(live) + 1000:
                queue.entries = deque(entry for entry in queue.entries if live.get(entry[1]) is entry)
            queue.value = self._value(*key)
            self._tell(queue)
            if not queue.entries:
                del self._queues[key]
        # What is said of a queue that is gone or empty is dropped when its time comes.

    def _value(self, group: int, step: int, age: int) -> float:
        return self._index[group][age] * math.exp(_STEP * step) if self._index else 0.0
