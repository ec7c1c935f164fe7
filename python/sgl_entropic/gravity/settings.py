"""What narrative gravity is set to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Tier = Literal["strong", "medium", "weak"]
"""How decided a request's text is."""

TIERS: tuple[Tier, ...] = get_args(Tier)

Signal = Literal["hidden", "entropy", "surprisal"]
"""What gravity is taken from: hidden states, or in their place how few choices the last tokens had or were."""

SIGNALS: tuple[Signal, ...] = get_args(Signal)

STRONG_GRAVITY: dict[Signal, float] = {"hidden": 0.5, "entropy": 0.5, "surprisal": 0.6}
"""Gravity of the strong tier where nobody says otherwise; the tables are in ``docs/concepts/gravity.md``."""

MEDIUM_GRAVITY: dict[Signal, float] = {"hidden": 0.35, "entropy": 0.3, "surprisal": 0.4}
"""Likewise of the medium tier."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What a tier asks for: a gravity above ``gravity`` and an entropy below ``entropy_nats``."""

    gravity: float
    entropy_nats: float


@dataclass(frozen=True, slots=True)
class GravitySettings:
    """Settings of all requests of a server.

    Attributes:
        signal: what gravity is taken from.
        window: last tokens that a token is compared with (``W``).
        top_k: most similar ones among them whose mean counts.
        centre_decay: share of the running centre that is kept at every token.
        strong: what the strong tier asks for.
        medium: likewise.
        gravity_margin: a tier is left when the gravity falls this far below what entered it.
        entropy_margin_nats: or when the entropy rises this far above.
        dwell_tokens: tokens after a change of tier before a stronger one is entered.
        opening_tokens: first tokens of an answer, which are weak.
        free_energy_temperature: weight of the entropy in the free energy (``T``).
    """

    signal: Signal = "hidden"
    window: int = 8
    top_k: int = 5
    centre_decay: float = 0.9
    strong: Thresholds = Thresholds(STRONG_GRAVITY["hidden"], 1.0)
    medium: Thresholds = Thresholds(MEDIUM_GRAVITY["hidden"], 2.0)
    gravity_margin: float = 0.1
    entropy_margin_nats: float = 1.0
    dwell_tokens: int = 4
    opening_tokens: int = 16
    free_energy_temperature: float = 1.0
