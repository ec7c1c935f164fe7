"""Gravity and energy of a sequence of states, against their definitions over the whole sequence."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_entropic.gravity.settings import GravitySettings
from sgl_entropic.gravity.similarity import Course


def cosine(a: Any, b: Any) -> float:
    product = math.sqrt(math.fsum(a * a)) * math.sqrt(math.fsum(b * b))
    return math.fsum(a * b) / product if product else 0.0


def truth(states: Any, settings: GravitySettings, mean: Any) -> list[tuple[float, float | None]]:
    """Straight from the definitions: nothing is carried from step to step."""
    shifted = [state - mean for state in states]
    found: list[tuple[float, float | None]] = []
    for t, state in enumerate(shifted):
        before = shifted[max(0, t - settings.window) : t]
        gravity = 0.0
        if len(before) == settings.window:
            best = sorted((cosine(state, other) for other in before), reverse=True)[: settings.top_k]
            gravity = math.fsum(best) / settings.top_k
        energy = None
        if t:
            # The weights of a moving mean: decay^(t - 1) for the first state, (1 - decay) decay^k for the others.
            weights = [(1 - settings.centre_decay) * settings.centre_decay ** (t - 1 - i) for i in range(t)]
            weights[0] = settings.centre_decay ** (t - 1)
            units = [s / n if (n := math.sqrt(math.fsum(s * s))) else s * 0 for s in shifted[:t]]
            energy = 1.0 - cosine(state, sum(w * u for w, u in zip(weights, units, strict=True)))
        found.append((gravity, energy))
    return found


settings_st = st.builds(
    lambda window, share, decay: GravitySettings(
        window=window, top_k=max(1, round(share * window)), centre_decay=decay
    ),
    st.integers(1, 8),
    st.floats(0, 1),
    st.floats(0, 0.99),
)


@given(settings_st, st.integers(1, 20), st.integers(1, 24), st.floats(0, 20), st.integers(0, 2**31))
def test_it_is_what_the_definition_says(
    settings: GravitySettings, size: int, length: int, common: float, seed: int
) -> None:
    random = np.random.default_rng(seed)
    mean = random.normal(size=size) * common
    states = random.normal(size=(length, size)) + mean
    states[random.random(length) < 0.1] = mean  # zero vectors once the mean is gone
    course = Course(settings, mean)
    for state, (gravity, energy) in zip(states, truth(states, settings, mean), strict=True):
        read = course.step(state)
        assert read[0] == pytest.approx(gravity, abs=1e-9)
        assert -1.0 <= read[0] <= 1.0
        assert (read[1] is None) == (energy is None)
        if energy is not None:
            assert read[1] == pytest.approx(energy, abs=1e-7)
            assert -1e-9 <= read[1] <= 2.0 + 1e-9


def test_until_the_window_is_full_and_for_zero_there_is_no_gravity() -> None:
    course = Course(GravitySettings(window=3, top_k=2))
    same = np.array([1.0, 2.0])
    assert [course.step(same)[0] for _ in range(5)] == pytest.approx([0.0, 0.0, 0.0, 1.0, 1.0])
    assert course.step(np.zeros(2)) == (0.0, 1.0)


def test_the_best_of_the_window_count() -> None:
    """Two states like this one and one that is opposite: only the best two are averaged."""
    course = Course(GravitySettings(window=3, top_k=2))
    for sign in (1.0, -1.0, 1.0):
        course.step(np.array([sign, 0.0]))
    assert course.step(np.array([1.0, 0.0]))[0] == pytest.approx(1.0)


def test_a_common_part_hides_the_directions() -> None:
    """Why the mean is subtracted: with a large common part, opposite directions look alike."""
    settings = GravitySettings(window=2, top_k=2)
    common = np.array([50.0, 0.0])
    states = [common + np.array([0.0, off]) for off in (1.0, 1.0, -1.0)]
    raw, corrected = Course(settings), Course(settings, common)
    assert [raw.step(state)[0] for state in states][-1] > 0.99
    assert [corrected.step(state)[0] for state in states][-1] == pytest.approx(-1.0)
