"""A line through noisy measurements of time: nonnegative, robust to outliers, cautious where it has no evidence.

Measurements are kept per cell of the design (factors of 2 in each quantity), the newest few of each, so that long
spells at one load do not erase what other loads have shown.

The fit is iteratively reweighted least squares of relative errors with Tukey's biweight (Beaton and Tukey 1974),
started from weights ``1 / ms``, under which a measurement of ten times its due has the pull of one error of 1. A ridge
towards the prior's proportions, as strong as the noise, decides what the measurements leave open.
"""

from __future__ import annotations

from collections import deque
from itertools import product

import numpy as np

from sgl_entropic.scheduling.traffic import FloatArray

PER_CELL = 12
MOST_CELLS = 64
ROUNDS = 12
TUKEY_C = 4.685
"""Tukey's constant: 95 % efficiency where errors are normal."""
FIRST_FITS = (1, 2, 4, 8, 16, 32)
FIT_EVERY = 64


class RobustLine:
    """``ms = coefficients . (1, first, second)``, learnt online.

    Args:
        prior: coefficients before data, three numbers in ms; later only their proportions matter.
    """

    def __init__(self, prior: tuple[float, float, float]) -> None:
        self._prior = np.array(prior)
        self.coefficients = prior
        self.scale = 1.0
        self.observations = 0
        self.fits = 0
        self._cells: dict[tuple[int, int], deque[tuple[float, float, float]]] = {}

    def observe(self, first: float, second: float, ms: float) -> bool:
        """Learn one measurement and return whether the coefficients were fitted anew.

        Measurements that are not finite or not positive are ignored.
        """
        if not (0.0 < ms < float("inf") and first >= 0.0 and second >= 0.0):
            return False
        cell = (int(first).bit_length(), int(second).bit_length())
        if cell not in self._cells and len(self._cells) >= MOST_CELLS:
            del self._cells[next(iter(self._cells))]
        self._cells.setdefault(cell, deque(maxlen=PER_CELL)).append((first, second, ms))
        self.observations += 1
        if self.observations not in FIRST_FITS and self.observations % FIT_EVERY:
            return False
        self._fit()
        return True

    def rescale(self, scale: float) -> None:
        """Multiply the prior by ``scale``, if nothing was measured yet."""
        if self.observations == 0:
            self.scale = scale
            self.coefficients = _three(self._prior * scale)

    def _fit(self) -> None:
        self.fits += 1
        table = np.array([row for cell in self._cells.values() for row in cell])
        design = np.column_stack([np.ones(len(table)), table[:, :2]])
        ms = table[:, 2]
        self.scale = float(np.median(ms / (design @ self._prior)))
        target = self._prior * self.scale
        # In units of the prior, so that the ridge means the same for all three.
        design = design * target
        weights, noise = np.ones(len(ms)), 0.1
        shares = np.ones(3)
        predicted = ms
        for _ in range(ROUNDS):
            rows = design / predicted[:, None] * weights[:, None]
            gram = rows.T @ rows
            # Never less than what keeps it regular in float64.
            gram += np.eye(3) * max(noise**2, 1e-9, 1e-12 * float(np.trace(gram)))
            right = rows.T @ (ms / predicted * weights) + max(noise**2, 1e-9)
            shares = _nonnegative(gram, right)
            predicted = np.maximum(design @ shares, 1e-12)
            errors = (ms - predicted) / predicted
            noise = float(1.4826 * np.median(np.abs(errors)))
            inside = np.clip(1.0 - (errors / (TUKEY_C * max(noise, 1e-6))) ** 2, 0.0, None)
            weights = inside  # the root of the biweight (1 - u^2)^2: it multiplies rows
        self.coefficients = _three(target * shares)


def _nonnegative(gram: FloatArray, right: FloatArray) -> FloatArray:
    """Return the least-squares solution among the nonnegative, by trying all sets of positive coefficients."""
    best, best_loss = np.zeros(3), 0.0
    for mask in product((True, False), repeat=3):
        chosen = np.flatnonzero(mask)
        if not len(chosen):
            continue
        part = np.linalg.solve(gram[np.ix_(chosen, chosen)], right[chosen])
        loss = -float(part @ right[chosen])
        if (part >= 0.0).all() and loss < best_loss:
            best, best_loss = np.zeros(3), loss
            best[chosen] = part
            if len(chosen) == 3:
                break
    return best


def _three(values: FloatArray) -> tuple[float, float, float]:
    first, second, third = values.tolist()
    return first, second, third
