"""The constant temperature at which the mean entropy is a given one: what a controller has to be better than."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


class MatchError(RuntimeError):
    """No temperature in range has the mean entropy that was asked for."""


@dataclass(frozen=True, slots=True)
class Range:
    """Where and how long a temperature is searched for.

    Attributes:
        low: least temperature.
        high: largest.
        step: factor of the first steps, until the goal lies between two temperatures.
        tolerance: distance from the goal that is good enough, as a share of it.
        most_steps: measurements.
    """

    low: float
    high: float
    step: float
    tolerance: float
    most_steps: int


@dataclass(frozen=True, slots=True)
class Match:
    """The nearest that was found.

    Attributes:
        temperature: found.
        mean_nats: at it.
        goal_nats: looked for.
        tried: every temperature and its mean, in order.
    """

    temperature: float
    mean_nats: float
    goal_nats: float
    tried: list[tuple[float, float]]

    @property
    def gap(self) -> float:
        """Distance from the goal, as a share of it."""
        return abs(self.mean_nats - self.goal_nats) / self.goal_nats


def match_temperature(
    mean_at: Callable[[float], float], goal_nats: float, start: float, within: Range
) -> Match:
    """Search ``ln T`` for ``mean_at(T) == goal_nats``, where more temperature is more entropy on average.

    Steps of one factor until the goal is bracketed, then the secant of the bracket, kept off its ends. ``mean_at`` may be
    noisy: the answer is the nearest that was measured.

    Raises:
        MatchError: the goal is not reached at a bound, or ``mean_at`` gave no finite number.
    """
    tried: list[tuple[float, float]] = []
    low: tuple[float, float] | None = None  # ln T and the mean, below the goal
    high: tuple[float, float] | None = None
    at = min(max(start, within.low), within.high)
    while len(tried) < within.most_steps:
        found = mean_at(at)
        if not math.isfinite(found):
            raise MatchError(f"the mean entropy at temperature {at:g} is {found}")
        tried.append((at, found))
        if abs(found - goal_nats) <= within.tolerance * goal_nats:
            break
        if found < goal_nats:
            low = (math.log(at), found)
        else:
            high = (math.log(at), found)
        following = _next(low, high, goal_nats, within)
        if following == at:
            raise MatchError(
                f"mean entropy {found:.3f} nats at the bound {at:g} of the temperature, {goal_nats:.3f} wanted"
            )
        at = following
    temperature, mean_nats = min(tried, key=lambda pair: abs(pair[1] - goal_nats))
    return Match(temperature, mean_nats, goal_nats, tried)


def _next(
    low: tuple[float, float] | None, high: tuple[float, float] | None, goal_nats: float, within: Range
) -> float:
    if high is None:
        assert low is not None
        return min(math.exp(low[0]) * within.step, within.high)
    if low is None:
        return max(math.exp(high[0]) / within.step, within.low)
    share = (goal_nats - low[1]) / (high[1] - low[1])
    # A secant of a bent curve creeps along one end; noise may even have turned the bracket around.
    return math.exp(low[0] + min(max(share, 0.15), 0.85) * (high[0] - low[0]))
