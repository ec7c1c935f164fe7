"""The 30 steps of the essay on narrative gravity: a text that first explores and then converges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sgl_entropic.gravity.narrative import GravityReading, Narrative
from sgl_entropic.gravity.settings import GravitySettings, Thresholds
from sgl_entropic.gravity.similarity import Course

EXPLORING, CONVERGING = 10, 20
HIDDEN, VOCABULARY = 256, 50_000
SETTINGS = GravitySettings(
    strong=Thresholds(0.5, 1.5), medium=Thresholds(0.3, 2.5), gravity_margin=0.1, opening_tokens=0
)
"""Clean vectors of 256 numbers leave room for thresholds that real hidden states do not reach."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step: the state, the entropy of the next token, and what is read from them."""

    hidden: NDArray[np.float64]
    entropy_nats: float
    reading: GravityReading


def simulate(seed: int = 0, settings: GravitySettings = SETTINGS) -> list[Step]:
    """Ten steps in random directions at high entropy, then twenty near one direction at low entropy."""
    random = np.random.default_rng(seed)
    course, narrative = Course(settings), Narrative(settings, VOCABULARY)
    theme = random.normal(size=HIDDEN)
    theme /= np.linalg.norm(theme)
    steps = []
    for index in range(EXPLORING + CONVERGING):
        aside = random.normal(size=HIDDEN) / np.sqrt(HIDDEN)
        if index < EXPLORING:
            hidden, entropy = aside, random.uniform(3.0, 5.0)
        else:
            hidden, entropy = theme + 0.3 * aside, random.uniform(0.2, 1.2)
        gravity, energy = course.step(hidden)
        reading = narrative.add(
            index, entropy_nats=entropy, surprisal_nats=entropy, gravity=gravity, energy=energy
        )
        steps.append(Step(hidden, entropy, reading))
    return steps
