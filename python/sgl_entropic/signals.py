"""The values that travel between stages: frozen, plain Python, one unit per name.

Entropies and surprisals are in nats. ``None`` means "not defined here", never zero: a row of logits that was
no distribution, or a request that has produced no token yet.
"""

from __future__ import annotations

import dataclasses
import math

_JSON_DECIMALS = 6  # float32 logits carry no more than this


# Filled by entropy/: one sampling step of one request.
@dataclasses.dataclass(frozen=True, slots=True)
class TokenReading:
    """What the model's distribution looked like when one token was taken.

    ``entropy_nats``, ``varentropy`` (nats squared) and ``surprisal_nats`` describe the model's own
    distribution, before penalties, masks and temperature; ``sampled_entropy_nats`` the one really drawn from.
    ``gravity`` and ``energy`` compare the hidden state that the token was predicted from with those before it.
    """

    entropy_nats: float | None
    varentropy: float | None
    surprisal_nats: float | None
    sampled_entropy_nats: float | None
    gravity: float | None = None
    energy: float | None = None


# Filled by feedback/: one request so far.
@dataclasses.dataclass(frozen=True, slots=True)
class EntropySummary:
    """Entropic time of one request, beside what it must be read with.

    ``tau_nats`` grows on mere oscillation, so the net drop and the total variation always accompany it.
    ``tokens`` counts every token, ``invalid`` those among them whose entropy was undefined.
    """

    tokens: int
    tau_nats: float | None
    net_drop_nats: float | None
    total_variation_nats: float | None
    mean_entropy_nats: float | None
    max_entropy_nats: float | None
    last_entropy_nats: float | None
    mean_surprisal_nats: float | None
    invalid: int

    def to_dict(self) -> dict[str, int | float | None]:
        """Return the public JSON object: numbers rounded to 6 decimals, ``None`` where nothing is defined."""
        return {
            "tokens": self.tokens,
            "tau_nats": json_number(self.tau_nats),
            "net_drop_nats": json_number(self.net_drop_nats),
            "total_variation_nats": json_number(self.total_variation_nats),
            "mean_entropy_nats": json_number(self.mean_entropy_nats),
            "max_entropy_nats": json_number(self.max_entropy_nats),
            "last_entropy_nats": json_number(self.last_entropy_nats),
            "mean_surprisal_nats": json_number(self.mean_surprisal_nats),
            "invalid": self.invalid,
        }


def json_number(value: float | None) -> float | None:
    """Round to the public precision; NaN and infinities, which JSON cannot hold, become ``None``."""
    if value is None or not math.isfinite(value):
        return None
    return round(value, _JSON_DECIMALS) + 0.0  # + 0.0 turns -0.0 into 0.0
