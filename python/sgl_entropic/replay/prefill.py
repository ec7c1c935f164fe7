"""Time to the first token of a prompt, as a model of its prefill."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PrefillCost:
    """``p0 + p1 n + p2 n c`` ms for n new tokens behind a cached context of c, as in the scheduler's cost model.

    The defaults are of the order of an 8B model on one data-centre GPU and stand for no measurement: give your own.

    Attributes:
        p0_ms: of every prefill.
        p1_ms: of a new token.
        p2_ms: of a new token for each token ahead of it.
    """

    p0_ms: float = 15.0
    p1_ms: float = 0.06
    p2_ms: float = 1.5e-6

    def prompt_ms(self, new_tokens: int, cached_tokens: int) -> float:
        """Prefill of one prompt; the last token is computed even where all are cached."""
        new = max(1, new_tokens)
        return self.p0_ms + self.p1_ms * new + self.p2_ms * new * cached_tokens

    def token_ms(self, context_tokens: int) -> float:
        """What one more token behind so many costs."""
        return self.p1_ms + self.p2_ms * context_tokens
