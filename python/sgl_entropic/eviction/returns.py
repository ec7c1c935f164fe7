"""When nodes are asked for again: counts by group and age, learnt from all nodes, kept and forgotten ones alike.

Counting only what stayed in the cache would never learn that what is evicted early would have returned. So a visit, that
is a request's touch of its path, is remembered after its nodes are gone: a few numbers for each request, for at most
``EDGES_S[-1]`` seconds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sgl_entropic.eviction.arrays import FloatArray
from sgl_entropic.eviction.groups import GROUPS

EDGES_S = (0.0, *(4.0 * 1.7**step for step in range(20)))
"""Where the ages begin at which returns are counted [b], in seconds: 0, 4, 6.8 ... 95,600, more than a day, without an end.

Nodes of one group beyond the last edge are hardly told apart, so it has to lie beyond what any pool keeps.
"""
AGES = len(EDGES_S)
MOST_OPEN_VISITS = 100_000
"""Visits that are followed at a time, at about 600 bytes each; beyond that the oldest are given up, as if just seen."""


@dataclass(slots=True)
class Visit:
    """One request's touch of its path.

    Attributes:
        at_s: when.
        left: weight of its nodes that nobody has touched since, by group.
        weight: weight of each of its nodes, by group.
    """

    at_s: float
    left: dict[int, float]
    weight: dict[int, float]


class ReturnTimes:
    """Exposures and returns, [group, age].

    The n nodes of a group that one request touched return together or not at all. They count as the square root of n:
    as one they would hide how much memory is at stake, as n a single long prompt would outweigh many short ones.
    """

    def __init__(self) -> None:
        self.exposed: FloatArray = np.zeros((GROUPS, AGES))
        self.returned: FloatArray = np.zeros((GROUPS, AGES))
        # A visit waits in the queue of the age that it reaches next; queues are in order of time.
        self._reaching: list[deque[Visit]] = [deque() for _ in EDGES_S]
        self._open = 0

    def advance(self, now_s: float) -> None:
        """Count as exposed at an age what reached it without having returned."""
        for age, (edge_s, queue) in enumerate(zip(EDGES_S, self._reaching, strict=True)):
            while queue and queue[0].at_s + edge_s <= now_s:
                visit = queue.popleft()
                for group, weight in visit.left.items():
                    self.exposed[group, age] += weight
                if age + 1 < AGES:
                    self._reaching[age + 1].append(visit)
                else:
                    self._open -= 1

    def came_back(self, visit: Visit, group: int, now_s: float) -> None:
        """A node of ``group``, last touched in ``visit``, is touched again."""
        weight = visit.weight.get(group)
        if weight is None:  # given up
            return
        self.returned[group, age_of(now_s - visit.at_s)] += weight
        visit.left[group] -= weight

    def visited(self, groups: Sequence[int], now_s: float) -> Visit:
        """A request has touched nodes of these groups, one for each node."""
        counts = Counter(groups)
        visit = Visit(
            now_s,
            {group: count**0.5 for group, count in counts.items()},
            {group: count**-0.5 for group, count in counts.items()},
        )
        self._reaching[0].append(visit)
        self._open += 1
        if self._open > MOST_OPEN_VISITS:
            self._give_up_one()
        return visit

    def _give_up_one(self) -> None:
        oldest = next(queue for queue in reversed(self._reaching) if queue).popleft()
        oldest.left, oldest.weight = {}, {}
        self._open -= 1

    def divided(self, visit: Visit, group: int) -> None:
        """A node of ``group`` has become two, and each of them counts."""
        if group in visit.weight:
            visit.left[group] += visit.weight[group]

    def flushed(self) -> None:
        """Forget the visits that are still open; what was counted stays."""
        for queue in self._reaching:
            queue.clear()
        self._open = 0

    def forget(self, share: float) -> None:
        """Let all that was counted weigh ``share`` of what it did."""
        self.exposed *= share
        self.returned *= share


def age_of(idle_s: float) -> int:
    """The place in ``EDGES_S`` of an age in seconds."""
    return max(0, bisect_right(EDGES_S, idle_s) - 1)
