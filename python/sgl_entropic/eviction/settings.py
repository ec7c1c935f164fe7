"""What of the eviction policy can be set."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from sgl_entropic.errors import ConfigError


@dataclass(frozen=True, slots=True)
class EvictionSettings:
    """Weights of the terms, and how fast return times are learnt.

    Attributes:
        surprisal_weight: exponent of a node's surprisal relative to the others' when all active requests are in strong
            gravity; 0 ignores surprisal.
        work_weight: exponent of the prefill work saved for each token, relative to a token without context; 0 counts
            tokens as equal, 1 counts them by their work.
        work_per_context: work of one token behind one token of context, in units of the work of a token without
            context: ``p2 / p1`` of the cost model.
        cell_prior: returns that the factors' estimate is worth against a group's own counts at an age.
        factor_prior: returns that "no difference" is worth against the counts of a fact's level.
        refresh_visits: requests between two recomputations of the index.
        half_life_visits: requests after which what was counted weighs half.
    """

    surprisal_weight: float = 0.0
    work_weight: float = 0.0
    work_per_context: float = 1e-5
    cell_prior: float = 50.0
    factor_prior: float = 10.0
    refresh_visits: int = 32
    half_life_visits: int = 50_000

    def __post_init__(self) -> None:
        """Refuse what no policy can mean.

        Raises:
            ConfigError: names the setting, its value and what is accepted.
        """
        for field in fields(self):
            value = getattr(self, field.name)
            if not math.isfinite(value) or value < 0:
                raise ConfigError(f"eviction.{field.name} is {value}: it has to be finite and at least 0")
        for name in ("cell_prior", "factor_prior"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"eviction.{name} is 0: it has to be above 0")
        for name in ("refresh_visits", "half_life_visits"):
            if getattr(self, name) < 1:
                raise ConfigError(f"eviction.{name} is {getattr(self, name)}: it has to be at least 1")
