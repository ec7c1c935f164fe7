"""Means over contexts, their differences and ratios, with intervals; two sides of one figure come from the same contexts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

DRAWS = 10_000
CONFIDENCE = 0.95
Interval = tuple[float, float]
Estimate = tuple[float, Interval]
Doubles = NDArray[np.float64]


class EmptyError(RuntimeError):
    """An arm has no samples, not as many as the other, or one that is no number."""


def mean(samples: Sequence[float], seed: int) -> Estimate:
    """Mean and its percentile bootstrap interval.

    Raises:
        EmptyError: see there.
    """
    (data,) = _checked(samples)
    return _estimate(float(data.mean()), _drawn([data], seed)[0])


def difference(upper: Sequence[float], lower: Sequence[float], seed: int) -> Estimate:
    """Mean of ``upper - lower``, paired.

    Raises:
        EmptyError: see there.
    """
    first, second = _checked(upper, lower)
    return mean((first - second).tolist(), seed)


def ratio(upper: Sequence[float], lower: Sequence[float], seed: int) -> Estimate:
    """Mean of ``upper`` over that of ``lower``, both of the same drawn contexts.

    Raises:
        EmptyError: see there, or the mean of ``lower`` is not above 0.
    """
    first, second = _checked(upper, lower)
    if second.mean() <= 0:
        raise EmptyError("a ratio to a mean of 0")
    above, below = _drawn([first, second], seed)
    # Draws in which nothing but zeros came up have no ratio.
    there = below > 0
    return _estimate(float(first.mean() / second.mean()), above[there] / below[there])


def _checked(*sides: Sequence[float]) -> list[Doubles]:
    data = [np.asarray(side, np.float64) for side in sides]
    if not len(data[0]) or len({len(side) for side in data}) > 1:
        raise EmptyError(f"samples of an arm: {[len(side) for side in data]}")
    if not all(np.isfinite(side).all() for side in data):
        raise EmptyError("a sample is no number")
    return data


def _drawn(sides: list[Doubles], seed: int) -> list[Doubles]:
    count = len(sides[0])
    drawn = np.random.default_rng(seed).integers(0, count, (DRAWS, count))
    return [side[drawn].mean(axis=1) for side in sides]


def _estimate(value: float, drawn: Doubles) -> Estimate:
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(drawn, (tail, 1 - tail))
    # Equal samples have equal means but for their rounding.
    return value, (min(float(low), value), max(float(high), value))
