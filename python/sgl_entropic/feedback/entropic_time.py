"""Entropic time of one request: how much uncertainty its tokens have removed so far.

With ``H_t`` the predictive entropy at token t and the flow ``dH_t = H_{t-1} - H_t`` (positive = uncertainty
removed)::

    tau = sum max(0, dH_t)       net drop = H_0 - H_t       total variation = sum |dH_t|

``tau`` grows on mere oscillation too, so the three are read together:
``tau - (total variation - tau) = net drop``.
"""

from __future__ import annotations

import copy
import math

from sgl_entropic.signals import EntropySummary


class EntropicTime:
    """Running entropic time; constant memory and constant time per token.

    ``None`` or a non-finite reading is counted as invalid and skipped: the next flow is taken across the gap.
    """

    __slots__ = (
        "_entropy_sum_nats",
        "_regained_nats",
        "_surprisal_count",
        "_surprisal_sum_nats",
        "count",
        "first_entropy_nats",
        "invalid_count",
        "last_entropy_nats",
        "last_flow_nats",
        "max_entropy_nats",
        "min_entropy_nats",
        "tau_nats",
    )

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget every reading."""
        self.count = 0
        """Valid readings."""
        self.invalid_count = 0
        self.tau_nats = 0.0
        self.first_entropy_nats: float | None = None
        self.last_entropy_nats: float | None = None
        self.max_entropy_nats: float | None = None
        self.min_entropy_nats: float | None = None
        self.last_flow_nats: float | None = None
        """``H_{t-1} - H_t``; ``None`` before the second valid reading."""
        self._regained_nats = 0.0
        self._entropy_sum_nats = 0.0
        self._surprisal_sum_nats = 0.0
        self._surprisal_count = 0

    def clone(self) -> EntropicTime:
        """Return an independent copy, as when one prompt is continued ``n`` times."""
        return copy.copy(self)

    def update(self, entropy_nats: float | None, surprisal_nats: float | None = None) -> None:
        """Take in one token: the entropy it was drawn at and its own surprisal, ``None`` where undefined."""
        if surprisal_nats is not None and math.isfinite(surprisal_nats):
            self._surprisal_sum_nats += surprisal_nats
            self._surprisal_count += 1
        if entropy_nats is None or not math.isfinite(entropy_nats):
            self.invalid_count += 1
            return
        self.count += 1
        self._entropy_sum_nats += entropy_nats
        previous_nats, self.last_entropy_nats = self.last_entropy_nats, entropy_nats
        if previous_nats is None or self.max_entropy_nats is None or self.min_entropy_nats is None:
            self.first_entropy_nats = self.max_entropy_nats = self.min_entropy_nats = entropy_nats
            return
        self.max_entropy_nats = max(self.max_entropy_nats, entropy_nats)
        self.min_entropy_nats = min(self.min_entropy_nats, entropy_nats)
        flow_nats = previous_nats - entropy_nats
        self.last_flow_nats = flow_nats
        if flow_nats > 0.0:
            self.tau_nats += flow_nats
        else:
            self._regained_nats -= flow_nats

    @property
    def net_drop_nats(self) -> float:
        """``H_0 - H_t``; 0 before the second reading."""
        if self.first_entropy_nats is None or self.last_entropy_nats is None:
            return 0.0
        return self.first_entropy_nats - self.last_entropy_nats

    @property
    def total_variation_nats(self) -> float:
        """``sum |dH_t|``, uncertainty removed plus uncertainty regained."""
        return self.tau_nats + self._regained_nats

    @property
    def mean_entropy_nats(self) -> float | None:
        """Mean over the valid readings."""
        return self._entropy_sum_nats / self.count if self.count else None

    @property
    def mean_surprisal_nats(self) -> float | None:
        """Mean over the finite surprisals: the log of the perplexity of the text taken."""
        return self._surprisal_sum_nats / self._surprisal_count if self._surprisal_count else None

    def summary(self) -> EntropySummary:
        """Return the request so far as a frozen value; without a valid reading its numbers are ``None``."""
        defined = self.count > 0
        return EntropySummary(
            tokens=self.count + self.invalid_count,
            tau_nats=self.tau_nats if defined else None,
            net_drop_nats=self.net_drop_nats if defined else None,
            total_variation_nats=self.total_variation_nats if defined else None,
            mean_entropy_nats=self.mean_entropy_nats,
            max_entropy_nats=self.max_entropy_nats,
            last_entropy_nats=self.last_entropy_nats,
            mean_surprisal_nats=self.mean_surprisal_nats,
            invalid=self.invalid_count,
        )


def efficiency(tau_nats: float, cost: float) -> float | None:
    """Return entropic time per unit of measured cost, ``d tau / dC``, in nats per unit of ``cost``.

    ``cost`` is any measured amount (ms, FLOPs, KV bytes read). ``None`` where it is not positive and finite:
    without a measured cost there is no efficiency.
    """
    return tau_nats / cost if 0.0 < cost < math.inf else None
