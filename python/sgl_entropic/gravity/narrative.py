"""One request's gravity, energy, free energy and tier, token by token: plain state, no tensors, no clock."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from sgl_entropic.gravity.settings import TIERS, GravitySettings, Tier
from sgl_entropic.gravity.tiers import TierGate


class GravityReading(NamedTuple):
    """What is said of one token; ``None`` where undefined."""

    gravity: float | None
    """Mean of the largest cosines with the last states, or the proxy in its place; 0 until the window is full."""
    energy: float | None
    """1 - cosine with the running centre, 0 to 2."""
    free_energy: float | None
    """Energy plus the weighted entropy; low is cheap to continue."""
    tier: Tier
    """How decided the text is here."""


UNREAD = GravityReading(None, None, None, "weak")
"""A token that nothing was measured of."""


def free_energy(energy: float, entropy_nats: float, vocab_size: int, temperature: float = 1.0) -> float:
    """``F = E + T H / ln V``: entropy is a cost here, see ``docs/adr/0006-free-energy-sign.md``."""
    return energy + temperature * entropy_nats / math.log(vocab_size)


@dataclass(slots=True)
class Narrative:
    """One request.

    Attributes:
        settings: of the server.
        vocab_size: of the model.
        readings: one for each output token.
    """

    settings: GravitySettings
    vocab_size: int
    readings: list[GravityReading] = field(default_factory=list)
    _gate: TierGate = field(init=False)
    _last: deque[float | None] = field(init=False)

    def __post_init__(self) -> None:
        self._gate = TierGate(self.settings)
        self._last = deque(maxlen=self.settings.window)

    @property
    def tier(self) -> Tier:
        """Of the last token."""
        return self._gate.tier

    @property
    def changes(self) -> int:
        """How often the tier changed."""
        return self._gate.changes

    def add(
        self,
        output_index: int,
        *,
        entropy_nats: float | None,
        surprisal_nats: float | None,
        gravity: float | None = None,
        energy: float | None = None,
    ) -> GravityReading:
        """Take in the readings of output token ``output_index``, in ascending order.

        Args:
            output_index: of the token.
            entropy_nats: of the model's own distribution.
            surprisal_nats: of the token.
            gravity: from hidden states; not looked at where the signal is another one.
            energy: likewise.
        """
        settings = self.settings
        if settings.signal != "hidden":
            # Inverse perplexity, expected or met: 1 where nothing was open, 1/n where n choices were alike.
            self._last.append(entropy_nats if settings.signal == "entropy" else surprisal_nats)
            gravity, energy = self._inverse_perplexity(), None
        cost = None
        if energy is not None and entropy_nats is not None:
            cost = free_energy(energy, entropy_nats, self.vocab_size, settings.free_energy_temperature)
        reading = GravityReading(gravity, energy, cost, self._gate.step(output_index, gravity, entropy_nats))
        if output_index != len(self.readings):
            # Tokens that nothing was measured of, and tokens that are told anew, keep the list aligned with the output.
            del self.readings[output_index:]
            self.readings.extend([UNREAD] * (output_index - len(self.readings)))
        self.readings.append(reading)
        return reading

    def _inverse_perplexity(self) -> float:
        known = [value for value in self._last if value is not None]
        if len(known) < self.settings.window:
            return 0.0
        return math.exp(-math.fsum(known) / len(known))

    def at(self, output_index: int) -> GravityReading:
        """The reading of output token ``output_index``, as far as it is known."""
        return self.readings[output_index] if output_index < len(self.readings) else UNREAD

    def summary(self) -> dict[str, float | None]:
        """Means over the tokens where they are defined, and the share of tokens in each tier but the weak one."""
        count = len(self.readings)
        tiers = [reading.tier for reading in self.readings]
        return {
            "mean_gravity": _mean([reading.gravity for reading in self.readings]),
            "mean_energy": _mean([reading.energy for reading in self.readings]),
            "mean_free_energy": _mean([reading.free_energy for reading in self.readings]),
            **{f"{tier}_share": tiers.count(tier) / count if count else None for tier in TIERS[:-1]},
        }


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None
