"""How long requests of this traffic wait at worst, in processed tokens: the yardstick of ageing and of slack."""

from __future__ import annotations

import math

PRIOR_TOKENS = 8192.0
LEAST_TOKENS = 256.0
STEP = 0.2
"""Rate of learning: a wait above the estimate raises it by at most a factor of ``exp(0.2)``."""


class TailWait:
    """A quantile of waits, learnt without storing any.

    Stochastic approximation in the logarithm (Robbins and Monro 1951): above the estimate a wait raises it by
    ``STEP x quantile``, below it lowers it by ``STEP x (1 - quantile)``; at rest both balance.

    Args:
        quantile: within [0, 1).
    """

    def __init__(self, quantile: float) -> None:
        self._quantile = quantile
        self.tokens = PRIOR_TOKENS

    def observe(self, waited_tokens: float) -> None:
        """Learn one wait, in tokens of the server's token clock."""
        above = 1.0 if waited_tokens > self.tokens else 0.0
        self.tokens = max(LEAST_TOKENS, self.tokens * math.exp(STEP * (above - 1.0 + self._quantile)))
