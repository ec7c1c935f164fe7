"""How many tokens a request will still generate, given how many it has."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sgl_entropic.scheduling.facts import RequestFacts
from sgl_entropic.scheduling.survival import STARTS, WIDTHS, SurvivalTable
from sgl_entropic.scheduling.traffic import (
    ALL_TRAFFIC,
    MOST_GROUPS,
    Columns,
    FloatArray,
    IntArray,
    TrafficGroups,
)

PRIOR_TOKENS = 256.0
"""Mean length before any request has finished."""
PRIOR_REQUESTS = 2.0
"""Requests that the prior is worth in each bucket of lengths."""
ALL_MEMORY_REQUESTS = 1000.0
KIND_MEMORY_REQUESTS = 250.0
"""Finished requests that all traffic, and one kind of it, remember: weights fall by 1/e over as many."""
DRIFT_MEMORY_REQUESTS = 32.0
LEAST_DRIFT, MOST_DRIFT = 1.5, 16.0
"""Factors between the lengths of late and those foreseen: below the first it is chance, above the second too much."""
MOST_UNSEEN = 16


class RemainingBelief:
    """Lengths of answers by kind of request, learnt from those that finished.

    A kind's hazards are shrunk to all traffic's times one factor (its ends over the ends that all traffic's hazards
    would have given: a proportional-hazards, or frailty, model), all traffic's likewise to a geometric prior.

    Traffic changes faster than kinds are learnt anew. When the answers of late are together much longer or shorter than
    was foreseen, time runs that much slower or faster for all (an accelerated-failure-time factor) until the
    kinds have caught up.

    Args:
        groups: numbers of the kinds of request; shared with other estimates.
    """

    def __init__(self, groups: TrafficGroups | None = None) -> None:
        self.groups = TrafficGroups() if groups is None else groups
        self._ended = np.zeros((MOST_GROUPS + 1, len(STARTS)))
        self._reached = np.zeros((MOST_GROUPS + 1, len(STARTS)))
        self._late_tokens = self._late_foreseen = 2.0 * PRIOR_TOKENS
        self._pace = 1.0
        self._finished = 0
        self._unseen = 0
        self.version = 0
        self._table = self._estimate()

    def observe_finished(self, request: RequestFacts, generated_tokens: int, *, hit_limit: bool) -> None:
        """Learn one answer's length; ``hit_limit`` when it was cut (limit, abort), so that it would have gone on."""
        if generated_tokens < 1 or request.ignores_eos:
            return
        self._note_pace(request, generated_tokens)
        reached = np.clip((generated_tokens + 1.0 - STARTS) / WIDTHS, 0.0, 1.0)
        last = int(np.searchsorted(STARTS, generated_tokens, side="right")) - 1
        if not hit_limit:
            reached[last] = 1.0
        memories = {self.groups.observed(request): KIND_MEMORY_REQUESTS, ALL_TRAFFIC: ALL_MEMORY_REQUESTS}
        for group, memory in memories.items():
            self._ended[group] *= 1.0 - 1.0 / memory
            self._reached[group] *= 1.0 - 1.0 / memory
            self._reached[group] += reached
            self._ended[group, last] += 0.0 if hit_limit else 1.0
        self._finished += 1
        self._unseen += 1
        if self._unseen >= min(MOST_UNSEEN, 1 + self._finished // 8):
            self._table = self._estimate()

    def _note_pace(self, request: RequestFacts, generated_tokens: int) -> None:
        group = self._known(np.array([self.groups.of(request)]))
        most = np.array([float(request.max_new_tokens)])
        foreseen = float(self._table.expected(group, np.zeros(1), most)[0])
        keep = 1.0 - 1.0 / DRIFT_MEMORY_REQUESTS
        self._late_tokens = keep * self._late_tokens + generated_tokens
        self._late_foreseen = keep * self._late_foreseen + max(1.0, foreseen)
        pace = self._late_tokens / self._late_foreseen
        drifted = max(pace, 1.0 / pace) >= LEAST_DRIFT
        self._pace = min(MOST_DRIFT, max(1.0 / MOST_DRIFT, pace)) if drifted else 1.0

    def expected(self, request: RequestFacts) -> float:
        """Return the expected tokens to come, within [1, most_remaining_tokens]; 0 when it can generate none."""
        return float(self.expected_many(Columns.of([request], self.groups))[0])

    def expected_many(self, requests: Columns) -> FloatArray:
        """Return the expected tokens to come of each request, [n]."""
        pace = self._pace
        mean = pace * self._table.expected(
            self._known(requests.group), requests.generated / pace, requests.remaining / pace
        )
        mean = np.where(requests.ignores_eos, requests.remaining, mean)
        tokens: FloatArray = np.minimum(np.maximum(mean, 1.0), requests.remaining)
        return tokens

    def scenarios(self, requests: Columns, count: int) -> FloatArray:
        """Return ``count`` possible futures: tokens to come, [count, n], whole numbers.

        Latin hypercube: each request is at each of ``count`` evenly spread quantiles once, in an order of its own that
        follows from its arrival. Same requests, same futures.
        """
        shares = _spread_shares(requests.arrival.astype(np.uint64), count)
        group = self._known(requests.group)
        drawn = np.ceil(self._pace * self._table.quantile(group, requests.generated / self._pace, shares))
        drawn = np.where(requests.ignores_eos, requests.remaining, drawn)
        tokens: FloatArray = np.minimum(drawn, requests.remaining)
        return tokens

    def typical_scenarios(self, requests: int, count: int) -> FloatArray:
        """Return ``count`` possible futures of ``requests`` of which nothing is known, [count, requests]."""
        shares = _spread_shares(np.arange(requests, dtype=np.uint64), count)
        anyone = np.full(requests, ALL_TRAFFIC, dtype=np.int64)
        drawn = self._pace * self._table.quantile(anyone, np.zeros(requests), shares)
        tokens: FloatArray = np.ceil(drawn)
        return tokens

    def _known(self, group: IntArray) -> IntArray:
        """Return all traffic in place of kinds that are newer than the estimate, [n]."""
        return np.where(group < self._table.groups, group, ALL_TRAFFIC)

    def _estimate(self) -> SurvivalTable:
        self._unseen = 0
        self.version += 1
        used = len(self.groups)
        ended, reached = self._ended[:used], self._reached[:used]
        ending = np.empty_like(ended)
        ending[:1] = _shrunk(ended[:1], reached[:1], WIDTHS / PRIOR_TOKENS)
        ending[1:] = _shrunk(ended[1:], reached[1:], -np.log1p(-np.minimum(ending[0], 1.0 - 1e-9)))
        return SurvivalTable(ending)


def _shrunk(ended: FloatArray, reached: FloatArray, rate: FloatArray) -> FloatArray:
    """Return the chances to end in each bucket [g, b], shrunk to those of ``rate`` [b] times a factor for each group."""
    factor = (ended.sum(axis=1) + 1.0) / (reached @ -np.expm1(-rate) + 1.0)
    target = -np.expm1(-rate * factor[:, None])
    ending: FloatArray = (ended + PRIOR_REQUESTS * target) / (reached + PRIOR_REQUESTS)
    return ending


def _spread_shares(seeds: NDArray[np.uint64], count: int) -> FloatArray:
    """Return the middles of ``count`` equal parts of [0, 1], in an order for each of n seeds, [count, n].

    Orders come from the mixing function of SplitMix64 (Steele, Lea and Flood 2014).
    """
    mixed = seeds * np.uint64(0x9E3779B97F4A7C15) + np.arange(count, dtype=np.uint64)[:, None]
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    shares: FloatArray = (np.argsort(mixed ^ (mixed >> np.uint64(31)), axis=0) + 0.5) / count
    return shares
