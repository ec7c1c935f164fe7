"""The ring of last states: compiled and as tensor operations, against the definition, through the life of rows."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sgl_entropic.gravity.settings import GravitySettings
from sgl_entropic.gravity.similarity import Course
from sgl_entropic.runtime.gravity.ring import Ring

CPU = torch.device("cpu")
SIZE = 24
BOTH = pytest.mark.parametrize("compiled", [True, False])


def ring_of(settings: GravitySettings, rows: int = 6, *, compiled: bool) -> Ring:
    return Ring.allocate(rows, SIZE, settings, CPU, compiled=compiled)


@BOTH
@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**31))
def test_each_row_follows_its_own_request(compiled: bool, window: int, top_k: int, seed: int) -> None:  # noqa: FBT001
    """Rows come and go, begin anew for another request, and stay apart from each other."""
    settings = GravitySettings(window=window, top_k=min(top_k, window))
    random = np.random.default_rng(seed)
    mean = random.normal(size=SIZE)
    ring = ring_of(settings, compiled=compiled)
    courses = [Course(settings, mean) for _ in range(6)]
    for _ in range(16):
        places = random.permutation(6)[: random.integers(1, 7)]
        begins = [row for row in range(len(places)) if random.random() < 0.15]
        ring.restart(torch.from_numpy(places), begins)
        for row in begins:
            courses[places[row]] = Course(settings, mean)
        hidden = random.normal(size=(len(places), SIZE)) + mean
        scores = ring.score(
            torch.from_numpy(hidden).float(), torch.from_numpy(mean).float(), torch.from_numpy(places)
        )
        for row, place in enumerate(places):
            gravity, energy = courses[place].step(hidden[row].astype(np.float32))
            assert scores[0, row].item() == pytest.approx(gravity, abs=2e-5)
            assert scores[1, row].item() == pytest.approx(
                math.nan if energy is None else energy, abs=2e-4, nan_ok=True
            )


@BOTH
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_zero_vector_and_one_that_is_not_finite(dtype: torch.dtype, *, compiled: bool) -> None:
    settings = GravitySettings(window=2, top_k=2)
    ring = ring_of(settings, compiled=compiled)
    mean, places = torch.zeros(SIZE), torch.tensor([1], dtype=dtype)
    for _ in range(2):
        ring.score(torch.ones(1, SIZE), mean, places)
    assert ring.score(torch.zeros(1, SIZE), mean, places)[:, 0].tolist() == [0.0, 1.0]
    assert ring.score(torch.full((1, SIZE), math.nan), mean, places).isnan().all()
    assert ring.score(torch.ones(1, SIZE), mean, places)[0, 0].item() == 0.0
    assert ring.units.isfinite().all()
    assert ring.centre.isfinite().all()


@BOTH
def test_half_precision_states_are_taken(*, compiled: bool) -> None:
    ring = ring_of(GravitySettings(window=1, top_k=1), compiled=compiled)
    states = torch.randn(2, SIZE).bfloat16()
    for _ in range(2):
        scores = ring.score(states, torch.zeros(SIZE), torch.tensor([0, 3]))
    torch.testing.assert_close(scores[0], torch.ones(2), atol=1e-5, rtol=0)


def test_a_ring_in_bfloat16_is_as_good_as_that() -> None:
    """What an accelerator keeps; here on the CPU, where it runs as well."""
    settings = GravitySettings()
    ring = ring_of(settings, compiled=False)
    ring.units = ring.units.bfloat16()
    course, random = Course(settings), np.random.default_rng(1)
    for _ in range(20):
        hidden = random.normal(size=SIZE) + 1.0
        scores = ring.score(torch.from_numpy(hidden)[None], torch.zeros(SIZE), torch.tensor([2]))
        assert scores[0, 0].item() == pytest.approx(course.step(hidden)[0], abs=4e-3)


def test_the_memory_is_told() -> None:
    ring = Ring.allocate(10, 16, GravitySettings(window=4), CPU, compiled=False)
    assert ring.nbytes == 10 * (4 * 16 * 4 + 16 * 4 + 8)
