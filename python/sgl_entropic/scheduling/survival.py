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


_NEXT = np.append(STARTS[1:], np.inf)
"""First place after each bucket [b]."""
_LADDER = 1 << (len(STARTS) - 1).bit_length()
"""Buckets with as many as make them a power of two, for a search by halves."""


class SurvivalTable:
    """Hazards of g groups of traffic, and what follows from them. Places count tokens from 1.

    Args:
        ending: chance that an answer that reached a bucket ends in it, [g, b], within [0, 1].
    """

    def __init__(self, ending: FloatArray) -> None:
        rate = -np.log1p(-np.clip(ending, 1e-9, 1.0 - 1e-9)) / WIDTHS
        hazard = -np.expm1(-rate)
        self.groups = len(ending)
        steps = rate[:, :-1] * WIDTHS[:-1]
        total = np.zeros_like(hazard)
        np.cumsum(steps, axis=1, out=total[:, 1:])
        ends = -np.expm1(-steps)
        # From the last bucket to the first, a row of all groups at a time.
        in_bucket, survives = (ends / hazard[:, :-1]).T.copy(), (1.0 - ends).T.copy()
        mean = np.empty_like(hazard.T)
        mean[-1] = later = 1.0 / hazard[:, -1]
        for bucket in range(len(WIDTHS) - 2, -1, -1):
            mean[bucket] = later = in_bucket[bucket] + survives[bucket] * later
        following = np.minimum(np.arange(1, len(STARTS) + 1), len(STARTS) - 1)
        # Cells [g b], so that one index finds a group's bucket.
        self._rate, self._hazard, self._total = rate.ravel(), hazard.ravel(), total.ravel()
        self._mean_next = mean[following].T.ravel()
        ladder = np.full((self.groups, _LADDER), np.inf)
        ladder[:, : len(STARTS)] = total
        self._ladder = ladder.ravel()

    def expected(self, group: IntArray, generated: FloatArray, most: FloatArray) -> FloatArray:
        """Return the mean of min(tokens to come, ``most``) after ``generated`` tokens, all [n].

        By ``E[min(R, m)] = E[R] - P(R > m) E[R | m more]``.
        """
        count = len(generated)
        now = generated + 1.0
        # Both ends at once: half as many calls for the few requests of a pass.
        place = np.concatenate([now, now + most])
        bucket = STARTS.searchsorted(place, side="right") - 1
        cell = np.concatenate([group, group]) * len(STARTS) + bucket
        rate = self._rate[cell]
        total = self._total[cell] + rate * (place - STARTS[bucket])
        stays = np.exp(-rate * (_NEXT[bucket] - place))
        mean_from = (1.0 - stays) / self._hazard[cell] + stays * self._mean_next[cell]
        survives = np.exp(total[:count] - total[count:])
        mean: FloatArray = mean_from[:count] - survives * mean_from[count:]
        return mean

    def quantile(self, group: IntArray, generated: FloatArray, share: FloatArray) -> FloatArray:
        """Return the tokens to come that a ``share`` of such requests do not exceed, whole numbers, [s, n].

        Args:
            group: [n].
            generated: tokens so far, [n].
            share: within [0, 1), [s, n].
        """
        now = generated + 1.0
        bucket = STARTS.searchsorted(now, side="right") - 1
        cell = group * len(STARTS) + bucket
        level = self._total[cell] + self._rate[cell] * (now - STARTS[bucket]) - np.log1p(-share)
        bucket = self._last_within(group, level)
        cell = group * len(STARTS) + bucket
        places = STARTS[bucket] + (level - self._total[cell]) / self._rate[cell]
        # A hair less than the value before rounding up: exp and log need not return to a whole number.
        tokens: FloatArray = np.maximum(1.0, np.ceil(places - generated - 1.0 - 1e-9))
        return tokens

    def _last_within(self, group: IntArray, level: FloatArray) -> IntArray:
        """Return the last bucket whose hazards before it sum to at most ``level``, [s, n]."""
        begin = group * _LADDER
        at = np.broadcast_to(begin, level.shape)
        half = _LADDER // 2
        while half:
            further = at + half
            at = np.where(self._ladder[further] <= level, further, at)
            half //= 2
        return at - begin
