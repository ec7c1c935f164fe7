"""From gravity and entropy to a tier that does not flap.

A tier is entered when gravity is above and entropy below its thresholds, and left when one of them is beyond its threshold
by a margin: readings that stay within the margin change nothing. A fall takes effect at once, since work that is saved
where the text is open costs quality; a rise waits ``dwell_tokens`` after the last change.
"""

from __future__ import annotations

from sgl_entropic.gravity.settings import GravitySettings, Tier


class TierGate:
    """The tier of one request, token by token.

    Attributes:
        tier: of the token last told.
        changes: how often it changed.
    """

    __slots__ = ("_settings", "_since", "changes", "tier")

    def __init__(self, settings: GravitySettings) -> None:
        self.tier: Tier = "weak"
        self.changes = 0
        self._settings = settings
        self._since = settings.dwell_tokens

    def step(self, output_index: int, gravity: float | None, entropy_nats: float | None) -> Tier:
        """The tier of output token ``output_index``; readings that are unknown are weak."""
        tier = self._next(output_index, gravity, entropy_nats)
        self._since += 1
        if tier != self.tier:
            self.tier, self._since = tier, 1
            self.changes += 1
        return tier

    def _next(self, output_index: int, gravity: float | None, entropy_nats: float | None) -> Tier:
        settings, tier = self._settings, self.tier
        if gravity is None or entropy_nats is None or output_index < settings.opening_tokens:
            return "weak"
        # What holds a tier that was entered asks for less than what enters it.
        least, most = gravity + settings.gravity_margin, entropy_nats - settings.entropy_margin_nats
        strong, medium = settings.strong, settings.medium
        rises = self._since >= settings.dwell_tokens
        if tier == "strong" and least >= strong.gravity and most <= strong.entropy_nats:
            return "strong"
        if tier != "weak" and least >= medium.gravity and most <= medium.entropy_nats:
            held: Tier = "medium"
        else:
            held = "weak"
        if held != tier or not rises:
            return held
        if gravity > strong.gravity and entropy_nats < strong.entropy_nats:
            return "strong"
        if gravity > medium.gravity and entropy_nats < medium.entropy_nats:
            return "medium"
        return held


def fleet_share(tiers: list[Tier]) -> float:
    """Fleet gravity: the share of active requests in the strong tier; 0 without requests."""
    return tiers.count("strong") / len(tiers) if tiers else 0.0
