"""How the scheduler weighs and bounds its decisions; ``SchedulingSettings.neutral()`` is first come, first served."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from sgl_entropic.errors import ConfigError


@dataclass(frozen=True, slots=True)
class SchedulingSettings:
    """Weights of the terms and bounds of what the policy may do. All terms are in ms, so weights are plain numbers.

    Attributes:
        alpha: weight of a request's compute. All three weights 0: arrival order.
        beta: weight of its share of the KV pool over its stay.
        gamma: weight of its slack, which is at most as much again as its work.
        flow_weight: exponent of its entropy flow relative to the traffic's; 0 ignores flows.
        ageing: a wait of w times the traffic's tail wait multiplies the score by ``1 + ageing w^2``; 0 is off. The
            square leaves the order of short waits to costs: less mean latency for the same tail than a line.
        wait_quantile: which quantile of waits is the tail wait.
        client_weight: exponent of the factor for clients that were served less than others; 0 is off.
        max_wait_tokens: progress of the token clock after which a waiting request is due, hence first.
        max_overtaken_tokens: most work of later arrivals, in tokens, that may start before a request.
        hold: whether running requests may be left out of decode steps.
        pace: whether free places may stay free while those that run get on.
        max_held_steps: most decode steps in a row that a request is left out of.
        hold_gain: least predicted saving of mean latency, as a share, for which any is held.
        hold_hysteresis: how much shorter a held request must be than a running one to change places, as a share.
        replan_steps: decode steps between two plans of what to hold.
        tier_margin: how much longer a request of the gravity tier that most of a reduced batch is in may be and still run with
            it, as a share; 0 leaves tiers out of it.
        admission_scenarios: futures drawn for the peak of KV need; the highest counts.
    """

    alpha: float = 1.0
    beta: float = 1.0
    gamma: float = 0.25
    flow_weight: float = 1.0
    ageing: float = 1.5
    wait_quantile: float = 0.95
    client_weight: float = 1.0
    max_wait_tokens: int = 65_536
    max_overtaken_tokens: int = 16_384
    hold: bool = True
    pace: bool = True
    max_held_steps: int = 64
    hold_gain: float = 0.1
    hold_hysteresis: float = 0.2
    replan_steps: int = 8
    tier_margin: float = 0.0
    admission_scenarios: int = 16

    def __post_init__(self) -> None:
        """Refuse what no policy can mean.

        Raises:
            ConfigError: names the setting, its value and what is accepted.
        """
        for field in fields(self):
            value = getattr(self, field.name)
            if not math.isfinite(value) or value < 0:
                raise ConfigError(f"scheduling.{field.name} is {value}: it has to be finite and at least 0")
        for name in ("max_wait_tokens", "max_held_steps", "replan_steps", "admission_scenarios"):
            if getattr(self, name) < 1:
                raise ConfigError(f"scheduling.{name} is {getattr(self, name)}: it has to be at least 1")
        for name in ("wait_quantile", "hold_hysteresis", "tier_margin"):
            if getattr(self, name) >= 1.0:
                raise ConfigError(f"scheduling.{name} is {getattr(self, name)}: it has to be below 1")

    @classmethod
    def neutral(cls) -> SchedulingSettings:
        """Return the settings under which requests go in order of arrival and none is held."""
        return cls(
            alpha=0.0,
            beta=0.0,
            gamma=0.0,
            flow_weight=0.0,
            ageing=0.0,
            client_weight=0.0,
            hold=False,
            pace=False,
        )
