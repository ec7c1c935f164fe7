"""Scores of waiting requests from pass to pass: a queue of 1,000 is ranked in well under a millisecond."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sgl_entropic.scheduling.facts import RequestFacts
from sgl_entropic.scheduling.traffic import FloatArray

PRIORITY, ARRIVAL, QUEUED_AT, COST_MS, WORK_MS, WORK_TOKENS = range(6)
"""Columns of a row. Costs are divided by the flow factor."""
MOST_RENEWED = 128
"""Rows of an old version that one pass renews: estimates change slowly, passes must not take long."""
SLACK_ROWS = 4096


class ScoreCache:
    """One row for each request, computed when the request or its matched prefix changed."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget every request."""
        self._place: dict[str, tuple[int, int, RequestFacts]] = {}
        self._rows = np.zeros((64, 6))
        self._free: list[int] = []
        self._used = 0

    def __len__(self) -> int:
        return len(self._place)

    def copy(self) -> ScoreCache:
        """Return a cache that goes on from here on its own."""
        other = ScoreCache()
        other._place, other._rows = dict(self._place), self._rows.copy()
        other._free, other._used = list(self._free), self._used
        return other

    def forget(self, key: str) -> None:
        """Drop a request that no longer waits."""
        place = self._place.pop(key, None)
        if place is not None:
            self._free.append(place[0])

    def work_tokens(self, key: str) -> float | None:
        """Return the work that the last pass charged for a request; ``None`` when it is not known."""
        place = self._place.get(key)
        return None if place is None else float(self._rows[place[0], WORK_TOKENS])

    def rows(
        self,
        requests: Sequence[RequestFacts],
        version: int,
        compute: Callable[[Sequence[RequestFacts]], FloatArray],
    ) -> FloatArray:
        """Return the rows of n requests, [n, 6], asking ``compute`` for those that are new, changed or out of date."""
        if len(self._place) > 4 * len(requests) + SLACK_ROWS:
            # Someone forgot to forget: start again rather than grow.
            self.clear()
        get = self._place.get
        places, missing, renewed = [], [], 0
        for index, request in enumerate(requests):
            place = get(request.key)
            if place is None:
                missing.append(index)
                places.append(-1)
                continue
            row, of_version, known = place
            places.append(row)
            # Facts that did not change are mostly the very same object.
            if known is not request and _differ(known, request):
                missing.append(index)
            elif of_version != version and renewed < MOST_RENEWED:
                renewed += 1
                missing.append(index)
        if missing:
            self._renew(requests, missing, places, version, compute)
        return self._rows[places]

    def _renew(
        self,
        requests: Sequence[RequestFacts],
        missing: list[int],
        places: list[int],
        version: int,
        compute: Callable[[Sequence[RequestFacts]], FloatArray],
    ) -> None:
        changed = [requests[index] for index in missing]
        for index, request in zip(missing, changed, strict=True):
            row = places[index] if places[index] >= 0 else self._new_row()
            places[index] = row
            self._place[request.key] = (row, version, request)
        self._rows[[places[index] for index in missing]] = compute(changed)

    def _new_row(self) -> int:
        if self._free:
            return self._free.pop()
        if self._used == len(self._rows):
            self._rows = np.vstack([self._rows, np.zeros_like(self._rows)])
        self._used += 1
        return self._used - 1


def _differ(known: RequestFacts, request: RequestFacts) -> bool:
    return (
        known.cached_tokens != request.cached_tokens
        or known.generated_tokens != request.generated_tokens
        or known.waits_since_tokens != request.waits_since_tokens
    )
