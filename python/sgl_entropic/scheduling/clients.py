"""Fairness among clients: one that was served less gets a bounded advantage.

Virtual token counters (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024): each client's counter
holds the tokens that were processed for it; a client that comes back is lifted to the least counter of those that were
waiting, so that idling saves up nothing. There the least counter is always served first; here it is one factor of the
score, at most 2 either way, so that short requests still go first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sgl_entropic.scheduling.traffic import FloatArray

MOST_CLIENTS = 4096
HORIZON_TOKENS = 8192.0
"""A lead of this many tokens has the full effect."""


class ClientCounters:
    """Tokens processed for each client. Neutral while fewer than two clients wait."""

    def __init__(self) -> None:
        self._served: dict[str, float] = {}
        self._waiting: frozenset[str] = frozenset()
        self._level = 0.0
        self._factor: dict[str, float] = {}

    def copy(self) -> ClientCounters:
        """Return counters that go on from here on their own."""
        other = ClientCounters()
        other._served = dict(self._served)
        other._waiting = self._waiting
        other._level = self._level
        return other

    def factor(self, client: str | None) -> float:
        """Return the factor that the client's requests had in the last pass; 1 when unknown."""
        return 1.0 if client is None else self._factor.get(client, 1.0)

    def charge(self, client: str | None, tokens: float) -> None:
        """Count ``tokens`` of work that was started for ``client``."""
        if client is None:
            return
        self._served[client] = self._served.get(client, self._level) + tokens
        self._prune()

    def _prune(self) -> None:
        if len(self._served) <= MOST_CLIENTS:
            return
        # Whoever waits stays first; of the others, those go that the lift would raise most.
        kept = sorted(
            self._served, key=lambda name: (name in self._waiting, self._served[name], name), reverse=True
        )[: MOST_CLIENTS // 2]
        self._served = {name: self._served[name] for name in kept}

    def factors(self, clients: Sequence[str | None]) -> FloatArray:
        """Return the factor of each of n waiting requests, within [1/2, 2], [n]; takes note of who waits."""
        names = frozenset(filter(None, frozenset(clients)))
        for name in names - self._waiting:
            self._served[name] = max(self._served.get(name, 0.0), self._level)
        self._waiting = names
        self._prune()
        self._factor = {}
        if len(names) < 2:
            return np.ones(len(clients))
        counters = {name: self._served.get(name, self._level) for name in names}
        self._level = max(self._level, min(counters.values()))
        # Sorted: sums of floats depend on their order, and that of a set on the process.
        mean = sum(sorted(counters.values())) / len(counters)
        self._factor = {
            name: 2.0 ** min(1.0, max(-1.0, (mean - served) / HORIZON_TOKENS))
            for name, served in counters.items()
        }
        return np.array([self.factor(client) for client in clients])
