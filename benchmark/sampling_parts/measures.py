"""What is measured of one answer, and intervals over prompts: pure functions of lists of numbers.

``entropies`` are of the distributions that the tokens were drawn from, ``target`` is the entropy asked for, both in nats.
``skip`` leaves out the first tokens, in which a controller with a state still finds its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

SKIP = 32
SETTLING_WINDOW, SETTLING_BAND = 16, 0.2
LOOP_WINDOW, LOOP_MOST_PERIOD = 64, 32
DRAWS = 10_000

Numbers = NDArray[np.float64]
Interval = tuple[float, float]


class MeasureError(ValueError):
    """A figure was asked for of values that do not hold it: too few, not finite, or a quotient by 0."""


def after(values: Sequence[float], skip: int) -> Numbers:
    """The values after the first ``skip``.

    Raises:
        MeasureError: there are none, or one is not finite.
    """
    kept = np.asarray(values[skip:], float)
    if not len(kept):
        raise MeasureError(f"{len(values)} values, and the first {skip} do not count")
    if not np.isfinite(kept).all():
        raise MeasureError("a value is not finite")
    return kept


def rms_from(values: Sequence[float], target: float, skip: int = SKIP) -> float:
    """Root of the mean squared distance from ``target``."""
    return float(np.sqrt(np.mean((after(values, skip) - target) ** 2)))


def mean(values: Sequence[float], skip: int = SKIP) -> float:
    """Arithmetic mean."""
    return float(after(values, skip).mean())


def oscillation(values: Sequence[float], skip: int = SKIP) -> float:
    """Standard deviation within one answer, about its own mean: how much it swings, wherever it lies."""
    return float(after(values, skip).std())


def settling_tokens(
    entropies: Sequence[float],
    target: float,
    window: int = SETTLING_WINDOW,
    band: float = SETTLING_BAND,
) -> int | None:
    """Tokens until the mean of the last ``window`` stays within ``band`` times ``target`` of it, to the end.

    At least ``window``, as there is no such mean before; ``None`` where even the last one is outside.

    Raises:
        MeasureError: fewer values than ``window``.
    """
    values = after(entropies, 0)
    if len(values) < window:
        raise MeasureError(f"{len(values)} values have no mean of {window}")
    means = np.convolve(values, np.full(window, 1.0 / window), mode="valid")
    outside = np.flatnonzero(np.abs(means - target) > band * target)
    if not len(outside):
        return window
    last = int(outside[-1])
    return None if last == len(means) - 1 else window + last + 1


def share(flags: Sequence[bool]) -> float:
    """Share of true ones.

    Raises:
        MeasureError: there are no flags.
    """
    return float(after([float(flag) for flag in flags], 0).mean())


def distinct(ids: Sequence[int], n: int) -> float | None:
    """Different n-grams over all n-grams; ``None`` where there are none."""
    grams = [tuple(ids[at : at + n]) for at in range(len(ids) - n + 1)]
    return len(set(grams)) / len(grams) if grams else None


def repetition(ids: Sequence[int], n: int) -> float | None:
    """Share of n-grams that have occurred before in the same text; ``None`` where there are none."""
    new = distinct(ids, n)
    return None if new is None else 1.0 - new


def ends_in_cycle(ids: Sequence[int], window: int = LOOP_WINDOW, most_period: int = LOOP_MOST_PERIOD) -> bool:
    """Whether the last ``window`` tokens repeat themselves exactly with a period of at most ``most_period``.

    Raises:
        MeasureError: fewer tokens than ``window``.
    """
    if len(ids) < window:
        raise MeasureError(f"{len(ids)} tokens are too few to look for a cycle in the last {window}")
    tail = list(ids[-window:])
    return any(tail[period:] == tail[:-period] for period in range(1, most_period + 1))


def until(ids: Sequence[int], ends: Sequence[int]) -> list[int]:
    """The tokens before the first that ends an answer: what a user gets who lets the model stop."""
    first = next((at for at, token in enumerate(ids) if token in ends), len(ids))
    return list(ids[:first])


# ------------------------------------------------------------------------------------------------ intervals over prompts


def _table(values: Sequence[Sequence[float]] | Numbers) -> Numbers:
    lengths = {len(row) for row in values}
    if len(lengths) != 1 or lengths == {0}:
        raise MeasureError(f"every target needs the same prompts, and some: {sorted(lengths)}")
    table = np.asarray(values, float)
    if not np.isfinite(table).all():
        raise MeasureError("a value is not finite")
    return table


def _interval(
    figure: Callable[[list[Numbers]], Numbers], tables: list[Numbers], seed: int
) -> tuple[float, Interval]:
    # A prompt is drawn with all its targets and arms: they share what is hard about it.
    prompts = tables[0].shape[1]
    if any(table.shape != tables[0].shape for table in tables):
        raise MeasureError(f"sides of different shape: {[table.shape for table in tables]}")
    draws = np.random.default_rng(seed).integers(0, prompts, (DRAWS, prompts))
    # [targets, prompts] to [targets, draws]
    drawn = figure([np.stack([row[draws].mean(axis=1) for row in table]) for table in tables])
    value = figure([table.mean(axis=1, keepdims=True) for table in tables])
    low, high = np.quantile(drawn, (0.025, 0.975))
    return float(value[0]), (float(low), float(high))


def mean_interval(values: Sequence[float], seed: int) -> tuple[float, Interval]:
    """Mean over prompts and its percentile bootstrap interval (95 %).

    Raises:
        MeasureError: no values, or one is not finite.
    """
    return _interval(lambda means: means[0].mean(axis=0), [_table([values])], seed)


def ratio_interval(
    upper: Sequence[Sequence[float]], lower: Sequence[Sequence[float]], seed: int
) -> tuple[float, Interval]:
    """Mean over prompts of ``upper`` over that of ``lower``, as the geometric mean over targets, and its interval.

    Args:
        upper: by target, by prompt.
        lower: likewise, the same prompts in the same order.
        seed: of the bootstrap over prompts.

    Raises:
        MeasureError: sides of different shape, or a mean of ``lower`` or ``upper`` that is not positive.
    """

    def figure(means: list[Numbers]) -> Numbers:
        return np.asarray(np.exp(np.log(means[0] / means[1]).mean(axis=0)))

    tables = [_table(upper), _table(lower)]
    if any((table < 0).any() or (table.mean(axis=1) <= 0).any() for table in tables):
        raise MeasureError("a ratio needs figures that are positive")
    return _interval(figure, tables, seed)


def difference_interval(
    upper: Sequence[Sequence[float]], lower: Sequence[Sequence[float]], seed: int
) -> tuple[float, Interval]:
    """Mean over targets and prompts of ``upper`` less that of ``lower``, and its interval; see :func:`ratio_interval`."""
    return _interval(lambda means: (means[0] - means[1]).mean(axis=0), [_table(upper), _table(lower)], seed)


def geometric_mean(logarithms: Sequence[float]) -> float:
    """Exponential of the mean: a perplexity from surprisals in nats."""
    return math.exp(mean(logarithms, 0))
