"""Gravity and energy of one sequence of hidden states in NumPy: what the device computes for every request of a step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sgl_entropic.gravity.settings import GravitySettings

Floats = NDArray[np.float64]


class Course:
    """The last hidden states of one text, as unit vectors.

    Args:
        settings: ``window``, ``top_k`` and ``centre_decay`` are used.
        mean: ``[n]``, subtracted from every state. Those of a transformer share a large common part, so that without it
            all of them look alike; ``None`` subtracts nothing.
    """

    def __init__(self, settings: GravitySettings, mean: NDArray[np.floating] | None = None) -> None:
        self._settings = settings
        self._mean = 0.0 if mean is None else np.asarray(mean, np.float64)
        self._units: list[Floats] = []
        self._centre: Floats | None = None

    def step(self, hidden: NDArray[np.floating]) -> tuple[float, float | None]:
        """Gravity and energy of ``hidden`` [n] against the states before it; then it is one of them.

        Gravity is 0 until the window is full; energy is ``None`` for the first state. Cosines with a zero vector are 0.
        """
        unit = _unit(np.asarray(hidden, np.float64) - self._mean)
        gravity, energy = self._gravity(unit), None
        if self._centre is not None:
            energy = 1.0 - float(_unit(self._centre) @ unit)
        decay = self._settings.centre_decay
        self._centre = unit if self._centre is None else decay * self._centre + (1.0 - decay) * unit
        self._units = [*self._units, unit][-self._settings.window :]
        return gravity, energy

    def _gravity(self, unit: Floats) -> float:
        if len(self._units) < self._settings.window:
            return 0.0
        cosines = np.sort(np.stack(self._units) @ unit)[-self._settings.top_k :]
        return float(np.clip(cosines.mean(), -1.0, 1.0))


def _unit(vector: Floats) -> Floats:
    norm = float(np.linalg.norm(vector))
    return vector / norm if norm > 0.0 else np.zeros_like(vector)
