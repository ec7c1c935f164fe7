"""What a prefill and a decode step cost on this server, in ms, learnt from what it measures."""

from __future__ import annotations

from typing import TypeVar

from sgl_entropic.scheduling.least_squares import RobustLine
from sgl_entropic.scheduling.traffic import FloatArray

Quantity = TypeVar("Quantity", float, FloatArray)
Coefficients = tuple[float, float, float]

PRIOR_PREFILL_MS: Coefficients = (5.0, 0.1, 1e-5)
"""Only proportions matter: a token of prefill is a tenth of a decode row, as weights are read once for many tokens."""
PRIOR_DECODE_MS: Coefficients = (10.0, 1.0, 1e-4)
"""A fixed part as large as ten rows: before anything is measured, no smaller batch is predicted to pay."""


class CostModel:
    """Two lines in ms, fitted online and robust to outliers.

    ::

        prefill_ms     = p0 + p1 uncached + p2 uncached context
        decode_step_ms = d0 + d1 batch    + d2 context_tokens_total

    Args:
        frozen: never learn. Ranks of tensor parallelism measure different times and must decide alike.
        prefill: p0, p1, p2 before data.
        decode: d0, d1, d2 before data.
    """

    def __init__(
        self,
        *,
        frozen: bool = False,
        prefill: Coefficients = PRIOR_PREFILL_MS,
        decode: Coefficients = PRIOR_DECODE_MS,
    ) -> None:
        self.frozen = frozen
        self._prefill = RobustLine(prefill)
        self._decode = RobustLine(decode)

    def observe_prefill(self, uncached_tokens: int, context_tokens: int, ms: float) -> None:
        """Learn that computing ``uncached_tokens`` of ``context_tokens`` took ``ms``."""
        product = float(uncached_tokens) * context_tokens
        if not self.frozen and self._prefill.observe(uncached_tokens, product, ms):
            self._decode.rescale(self._prefill.scale)

    def observe_decode(self, batch: int, context_tokens_total: int, ms: float) -> None:
        """Learn that one step of ``batch`` rows with ``context_tokens_total`` tokens of context took ``ms``."""
        if not self.frozen and self._decode.observe(batch, context_tokens_total, ms):
            self._prefill.rescale(self._decode.scale)

    def prefill_ms(self, uncached_tokens: Quantity, context_tokens: Quantity) -> Quantity:
        """Return the ms of a prefill of its own, for numbers or arrays [n] of tokens."""
        return self._prefill.coefficients[0] + self.prefill_marginal_ms(uncached_tokens, context_tokens)

    def prefill_marginal_ms(self, uncached_tokens: Quantity, context_tokens: Quantity) -> Quantity:
        """Return the ms that these tokens add to a prefill that is run anyway."""
        _, per_token, per_pair = self._prefill.coefficients
        return per_token * uncached_tokens + per_pair * uncached_tokens * context_tokens

    def decode_step_ms(self, batch: Quantity, context_tokens_total: Quantity) -> Quantity:
        """Return the ms of a decode step, for numbers or arrays [n]."""
        fixed, row, token = self._decode.coefficients
        return fixed + row * batch + token * context_tokens_total

    @property
    def version(self) -> int:
        """How often the coefficients have changed."""
        return self._prefill.fits + self._decode.fits

    @property
    def prefill_fixed_ms(self) -> float:
        """Ms of a prefill whatever is in it."""
        return self._prefill.coefficients[0]

    @property
    def decode_fixed_ms(self) -> float:
        """Ms of a decode step whatever its batch."""
        return self._decode.coefficients[0]

    @property
    def decode_row_ms(self) -> float:
        """Ms that each row adds to a decode step."""
        return self._decode.coefficients[1]

    @property
    def decode_context_token_ms(self) -> float:
        """Ms that each token of context adds to a decode step."""
        return self._decode.coefficients[2]
