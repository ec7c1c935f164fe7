"""How long answers go on, as hazards: the chance that the next token is the last, by how many there were.

The estimator is Kaplan and Meier's (1958) with places in buckets, each 1.1 times as long as the one before: of those
that reached a bucket, the share that ended in it. An answer cut at its limit counts in its last bucket by the part of it
that it has passed (the actuarial form of censoring). Inside a bucket every token is as likely to be the last.
"""

from __future__ import annotations

import numpy as np

from sgl_entropic.scheduling.traffic import FloatArray, IntArray

LONGEST = 1 << 20


def _bucket_starts() -> FloatArray:
    starts, position = [1], 1.0
    while starts[-1] < LONGEST:
        position = max(position * 1.1, starts[-1] + 1)
        starts.append(int(position))
    return np.array(starts, dtype=np.float64)


STARTS = _bucket_starts()
"""First place (counted from 1) of each bucket [b]; the last has no end."""
WIDTHS = np.append(np.diff(STARTS), float(LONGEST))
"""Tokens of each bucket [b]; of the last, tokens over which its chance is stated."""


class SurvivalTable:
    """Hazards of g groups of traffic, and what follows from them. Places count tokens from 1.

    Args:
        ending: chance that an answer that reached a bucket ends in it, [g, b], within [0, 1].
    """

    def __init__(self, ending: FloatArray) -> None:
        self._rate = -np.log1p(-np.clip(ending, 1e-9, 1.0 - 1e-9)) / WIDTHS
        self._hazard = -np.expm1(-self._rate)
        self.groups = len(ending)
        steps = self._rate[:, :-1] * WIDTHS[:-1]
        self._total = np.zeros_like(self._hazard)
        np.cumsum(steps, axis=1, out=self._total[:, 1:])
        self._mean = 1.0 / self._hazard
        ends = -np.expm1(-steps)
        for bucket in range(len(WIDTHS) - 2, -1, -1):
            self._mean[:, bucket] = (
                ends[:, bucket] / self._hazard[:, bucket]
                + (1.0 - ends[:, bucket]) * self._mean[:, bucket + 1]
            )

    def expected(self, group: IntArray, generated: FloatArray, most: FloatArray) -> FloatArray:
        """Return the mean of min(tokens to come, ``most``) after ``generated`` tokens, all [n].

        By ``E[min(R, m)] = E[R] - P(R > m) E[R | m more]``.
        """
        now, later = generated + 1.0, generated + 1.0 + most
        survives = np.exp(self._cumulated(group, now) - self._cumulated(group, later))
        mean: FloatArray = self._mean_from(group, now) - survives * self._mean_from(group, later)
        return mean

    def quantile(self, group: IntArray, generated: FloatArray, share: FloatArray) -> FloatArray:
        """Return the tokens to come that a ``share`` of such requests do not exceed; arrays [n], whole numbers."""
        level = self._cumulated(group, generated + 1.0) - np.log1p(-share)
        places = np.empty_like(generated)
        for number in np.unique(group):
            rows = np.flatnonzero(group == number)
            totals = self._total[number]
            bucket = np.searchsorted(totals, level[rows], side="right") - 1
            places[rows] = STARTS[bucket] + (level[rows] - totals[bucket]) / self._rate[number, bucket]
        # A hair less than the value before rounding up: exp and log need not return to a whole number.
        tokens: FloatArray = np.maximum(1.0, np.ceil(places - generated - 1.0 - 1e-9))
        return tokens

    def _cumulated(self, group: IntArray, place: FloatArray) -> FloatArray:
        bucket = np.searchsorted(STARTS, place, side="right") - 1
        total: FloatArray = self._total[group, bucket] + self._rate[group, bucket] * (place - STARTS[bucket])
        return total

    def _mean_from(self, group: IntArray, place: FloatArray) -> FloatArray:
        bucket = np.searchsorted(STARTS, place, side="right") - 1
        following = np.minimum(bucket + 1, len(STARTS) - 1)
        left = np.where(bucket + 1 < len(STARTS), STARTS[following] - place, np.inf)
        survives = np.exp(-self._rate[group, bucket] * left)
        mean: FloatArray = (1.0 - survives) / self._hazard[group, bucket]
        mean += survives * self._mean[group, following]
        return mean
