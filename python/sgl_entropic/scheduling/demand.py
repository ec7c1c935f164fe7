"""How much of the server the arriving work asks for: what a smaller batch has to be able to carry."""

from __future__ import annotations

import math

from sgl_entropic.scheduling.cost import CostModel

MEMORY_STEPS = 4096.0
"""Decode steps over which the past is forgotten, by 1/e."""
MOST_LOAD = 1.15
"""Largest load, by the overstated demand, at which a smaller batch is run: some idle time is there to be used."""


class Demand:
    """Work started for each ms of steps, both as predicted from counts, so that ranks agree.

    While idle time is unknown, demand is overstated. Before any step was seen it is 0.

    Args:
        cost: ms of prefill and decode.
    """

    def __init__(self, cost: CostModel) -> None:
        self._cost = cost
        self._busy_ms = 0.0
        self._prefill_ms = 0.0
        self._decode_tokens = 0.0
        self._seen: tuple[int, int] | None = None

    def observe_started(self, decode_tokens: float) -> None:
        """Count a request that will decode ``decode_tokens``, as expected."""
        self._decode_tokens += decode_tokens

    def observe_steps(
        self, token_clock: int, decode_steps: int, rows: int, context_tokens_total: int
    ) -> None:
        """Count what the server did since the last call, in steps of about ``rows``, and forget by as many steps.

        What the token clock shows beyond the decoded tokens was prefill.
        """
        seen, self._seen = self._seen, (token_clock, decode_steps)
        if seen is None or decode_steps < seen[1] or token_clock < seen[0]:
            return
        steps = decode_steps - seen[1]
        prefilled = max(0, token_clock - seen[0] - steps * rows)
        prefill_ms = self._cost.prefill_marginal_ms(float(prefilled), context_tokens_total / max(1, rows))
        decode_ms = steps * self._cost.decode_step_ms(float(rows), float(context_tokens_total))
        keep = math.exp(-steps / MEMORY_STEPS)
        self._prefill_ms = self._prefill_ms * keep + prefill_ms
        self._busy_ms = self._busy_ms * keep + prefill_ms + decode_ms
        self._decode_tokens *= keep

    def load(self, token_ms: float) -> float:
        """Return the share of the server's time that the demand takes if a decoded token costs ``token_ms``."""
        if self._busy_ms <= 0.0:
            return 0.0
        return (self._prefill_ms + self._decode_tokens * token_ms) / self._busy_ms

    def carries(self, token_ms: float) -> bool:
        """Return whether the server carries the demand at ``token_ms`` for a decoded token."""
        return self.load(token_ms) <= MOST_LOAD
