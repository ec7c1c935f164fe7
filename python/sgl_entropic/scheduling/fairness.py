"""No starvation: a bound on overtaking and a hard maximum wait, both in processed tokens.

**Rule.** A waiting request's budget is ``max_overtaken_tokens`` less the work of later arrivals that was started while
it waited, and 0 once the token clock has moved ``max_wait_tokens`` since it was queued. The budget counts for all
that arrived before it too: the older is never held to be less due than the younger. Requests are sorted by score;
one whose budget the work ahead of it would exceed moves up to where it no longer does, those that move to one place
in order of arrival, before whoever was there by score. Requests of budget 0 are *due* and come first.

**Overtaking.** While requests are started in the order given, none is overtaken by more than its budget: Let y be
ahead of x and of later arrival. Had y moved up, to a place before x's, then x's budget, at most y's, would have moved x
at least as far up, and the tie would have gone to x, the older. So y is at its place by score, and all such y lie among
the first by score whose total work is within x's budget.

**Wait.** Let x be queued at token clock t, and A be the requests of earlier arrival that are in the server then. At
``t + max_wait_tokens`` at the latest x is due, and only members of A (waiting, or coming back from retraction: they
keep their arrival) and larger user priorities are ahead of it. No request can enter A. So, without larger user
priorities, x starts before the clock reads ``t + max_wait_tokens + a + r``, with ``a`` the work of A after that moment
(recomputation after retraction included) and ``r`` what those that run at that moment still process before x fits:
finite, as each ends at its ``max_new_tokens``. Likewise with ``max_overtaken_tokens`` in place of ``max_wait_tokens``
and ``a`` the work of A from t on, whichever is less.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from sgl_entropic.scheduling.facts import RequestFacts
from sgl_entropic.scheduling.traffic import FloatArray, IntArray


class Overtaking:
    """Work of later arrivals started before each waiting request, in tokens. Holds those with any, until forgotten."""

    def __init__(self) -> None:
        self._tokens: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._tokens)

    def tokens(self, key: str) -> float:
        """Return by how much the request was overtaken; a retracted one keeps what it had."""
        return self._tokens.get(key, 0.0)

    def tokens_of(self, requests: Sequence[RequestFacts]) -> FloatArray:
        """Return by how much each of n requests was overtaken, [n]."""
        if not self._tokens:
            return np.zeros(len(requests))
        get = self._tokens.get
        return np.array([get(request.key, 0.0) for request in requests])

    def observe_started(
        self, request: RequestFacts, waiting: Iterable[RequestFacts], work_tokens: float
    ) -> None:
        """Charge the start of ``request`` to those of ``waiting`` that came before it, at no less priority."""
        arrival, priority = request.arrival, request.priority
        for other in waiting:
            if other.arrival < arrival and other.priority >= priority:
                self._tokens[other.key] = self._tokens.get(other.key, 0.0) + work_tokens

    def forget(self, key: str) -> None:
        """Drop a request that has finished or was aborted."""
        self._tokens.pop(key, None)

    def retain(self, keys: Collection[str]) -> None:
        """Drop all requests but these."""
        self._tokens = {key: tokens for key, tokens in self._tokens.items() if key in keys}


def bounded_order(
    priority: FloatArray, arrival: FloatArray, score: FloatArray, work: FloatArray, budget: FloatArray
) -> IntArray:
    """Return the order of n requests: by priority, then by score as far as budgets allow, then by arrival.

    Args:
        priority: of the user; larger goes first, [n].
        arrival: unique, [n].
        score: larger goes first, [n].
        work: tokens of work that a start of each costs the others, at least 0, [n].
        budget: most work of later arrivals that may start before each; 0 or less is due, [n].

    Returns:
        Indices, [n], int64.
    """
    natural: IntArray = np.lexsort((arrival, -score, -priority))
    edges = np.flatnonzero(np.diff(priority[natural])) + 1
    parts = [
        part[_within_budgets(arrival[part], work[part], budget[part])] for part in np.split(natural, edges)
    ]
    return np.concatenate(parts) if len(parts) > 1 else parts[0]


def _within_budgets(arrival: FloatArray, work: FloatArray, budget: FloatArray) -> IntArray:
    """Return the order of requests of one priority that come sorted by score, [n]."""
    total = np.cumsum(work)
    places = np.arange(len(arrival))
    if not len(budget) or budget.min() >= total[-1]:
        return places
    youngest_first = np.argsort(-arrival)
    shared = np.empty_like(budget)
    shared[youngest_first] = np.minimum.accumulate(budget[youngest_first])
    latest = np.searchsorted(total, shared, side="right")
    order: IntArray = np.lexsort((arrival, np.minimum(places, latest)))
    return order
