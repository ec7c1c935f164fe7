"""Rank of the nodes that may be evicted: larger stays longer.

    rank = index(group, idle)  x  (1 + r c)^w  x  (s / mean s)^(v x gravity)

``index`` is the Gittins index of what was learnt about such nodes; ``1 + r c`` the prefill work a token saves behind ``c``
tokens of context; ``s`` the mean surprisal of a node's tokens, which counts only while most active requests are in strong
gravity: there the predictable goes first. A node that a waiting request needs goes last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from sgl_entropic.eviction.arrays import BoolArray, FloatArray, IntArray
from sgl_entropic.eviction.gittins import gittins_index
from sgl_entropic.eviction.groups import GROUPS
from sgl_entropic.eviction.hazards import hazards
from sgl_entropic.eviction.returns import EDGES_S, ReturnTimes, Visit
from sgl_entropic.eviction.settings import EvictionSettings

# The last age has no end: as long again as all before it.
_WIDTHS_S: FloatArray = np.diff(np.array([*EDGES_S, 2.0 * EDGES_S[-1]]))
_EDGES_S: FloatArray = np.array(EDGES_S)
# Nodes of one group and age go in order of last use: a share of the rank too small to change any other order.
_RECENCY = 1e-4
_RECENCY_S = 1000.0
NEEDED_RANK = 2.0**21
"""Ranks of nodes that a waiting request needs are at least this, and all others less."""
# A power of two changes no digit of a rank, so nodes that are needed keep their order, and the others are known beside them. A
# sum would lose what recency tells: a rank may be 1e-5, and recency a ten millionth of it.
_NEEDED_SCALE = 2.0**61
_LEAST_NEEDED = NEEDED_RANK / _NEEDED_SCALE


def needed_rank(rank: FloatArray) -> FloatArray:
    """What ``rank`` [n] becomes where a waiting request needs the node."""
    scaled: FloatArray = np.maximum(rank, _LEAST_NEEDED) * _NEEDED_SCALE
    return scaled


def plain_rank(rank: FloatArray) -> FloatArray:
    """What ``rank`` [n] is but for the need of a waiting request."""
    plain: FloatArray = np.where(rank >= NEEDED_RANK, rank / _NEEDED_SCALE, rank)
    return plain


@dataclass(frozen=True, slots=True)
class Leaves:
    """The nodes that may be evicted, as columns of n.

    Attributes:
        group: see ``group_of``.
        idle_s: seconds since the last touch.
        context_tokens: tokens ahead of the node.
        surprisal_nats: mean surprisal of its tokens; NaN where unknown.
        needed: a waiting request will match it.
    """

    group: IntArray
    idle_s: FloatArray
    context_tokens: FloatArray
    surprisal_nats: FloatArray
    needed: BoolArray


class EvictionPolicy:
    """Learns from visits, ranks leaves. Time comes in as an argument, so a replay decides the same."""

    def __init__(self, settings: EvictionSettings | None = None) -> None:
        self.settings = EvictionSettings() if settings is None else settings
        self._times = ReturnTimes()
        self._visits = 0
        self._index = self._learnt()

    def visited(self, groups: Sequence[int], returning: Iterable[tuple[Visit, int]], now_s: float) -> Visit:
        """A request touched a path.

        Args:
            groups: the group of each of its nodes from now on.
            returning: for each of them that was touched before, cached or forgotten since: that visit, and its group then.
            now_s: the time, in seconds; never less than before.

        Returns:
            What belongs to each of these nodes until its next touch.
        """
        self.returned(returning, now_s)
        if self._visits % self.settings.refresh_visits == 0:
            self._times.forget(0.5 ** (self.settings.refresh_visits / self.settings.half_life_visits))
            self._index = self._learnt()
        self._visits += 1
        return self._times.visited(groups, now_s)

    def returned(self, returning: Iterable[tuple[Visit, int]], now_s: float) -> None:
        """Nodes are in use again by a request that has not ended, so that their next visit is still to come.

        Args:
            returning: for each of them that was touched before: that visit, and its group then.
            now_s: the time, in seconds; never less than before.
        """
        self._times.advance(now_s)
        for earlier, group in returning:
            self._times.came_back(earlier, group, now_s)

    def divided(self, visit: Visit, group: int) -> None:
        """A node of that visit has become two, which return apart."""
        self._times.divided(visit, group)

    def flushed(self) -> None:
        """All nodes are gone for another reason than memory: that they do not return tells nothing."""
        self._times.flushed()

    def surprisal_exponent(self, fleet_gravity: float) -> float:
        """Not at all up to half of the requests, fully when all are in strong gravity."""
        return self.settings.surprisal_weight * max(0.0, 2.0 * fleet_gravity - 1.0)

    def rank(self, leaves: Leaves, fleet_gravity: float = 0.0) -> FloatArray:
        """The rank of each leaf [n]; the smallest is evicted first.

        Args:
            leaves: the nodes.
            fleet_gravity: share of active requests in the strong tier, within [0, 1].
        """
        age = np.searchsorted(_EDGES_S, leaves.idle_s, side="right") - 1
        rank: FloatArray = self._index[leaves.group, np.maximum(age, 0)]
        rank = rank * (1.0 - _RECENCY * leaves.idle_s / (leaves.idle_s + _RECENCY_S))
        if self.settings.work_weight:
            work = 1.0 + self.settings.work_per_context * leaves.context_tokens
            rank = rank * work**self.settings.work_weight
        exponent = self.surprisal_exponent(fleet_gravity)
        if exponent:
            rank = rank * _relative(leaves.surprisal_nats) ** exponent
        # Whatever the weights make of a rank, it does not reach what a waiting request needs.
        rank = np.minimum(rank, NEEDED_RANK / 2)
        return np.where(leaves.needed, needed_rank(rank), rank)

    def _learnt(self) -> FloatArray:
        chance = hazards(
            self._times.exposed,
            self._times.returned,
            self.settings.cell_prior,
            self.settings.factor_prior,
        )
        assert len(chance) == GROUPS
        return gittins_index(chance, _WIDTHS_S)


def _relative(surprisal_nats: FloatArray) -> FloatArray:
    known = np.isfinite(surprisal_nats)
    if not known.any():
        return np.ones_like(surprisal_nats)
    mean = float(surprisal_nats[known].mean())
    # A node without surprisal is like the mean; one of zero surprisal keeps the order of the others of its kind.
    relative: FloatArray = np.where(known, surprisal_nats, mean) / max(mean, 1e-9)
    return np.maximum(relative, 1e-3)
