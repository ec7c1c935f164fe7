"""A seeded token depends on its seed and its place alone, and looks uniform."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sgl_entropic.runtime.seeds import overwrite, seeds_of, uniform


@given(st.integers(-(2**63), 2**64), st.integers(0, 2**40))
def test_numbers_are_in_the_interval(seed: int, position: int) -> None:
    assert 0.0 <= uniform(seed, position) < 1.0


def test_the_first_output_of_splitmix64() -> None:
    """From the reference implementation: state 0, first output 0xE220A8397B1DCDAF; here the state is what the seed becomes."""
    seed_of_state_zero = 0  # the mixer maps 0 to 0
    assert uniform(seed_of_state_zero, 0) == (0xE220A8397B1DCDAF >> 11) * 2.0**-53


def test_numbers_are_uniform_over_places_and_over_seeds() -> None:
    along = [uniform(7, position) for position in range(20_000)]
    across = [uniform(seed, 5) for seed in range(20_000)]
    for numbers in (along, across):
        assert stats.kstest(numbers, "uniform").pvalue > 1e-4
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03


def test_rows_without_a_seed_keep_their_numbers() -> None:
    uniforms = torch.full((3,), 0.25, dtype=torch.float64)
    overwrite(uniforms, (None, 3, None), torch.tensor([9, 8, 7]))
    assert uniforms.tolist() == [0.25, uniform(3, 8), 0.25]


def batch(*seeds: tuple[int | None, int]) -> Any:
    return SimpleNamespace(
        reqs=[SimpleNamespace(sampling_params=SimpleNamespace(sampling_seed=seed, n=n)) for seed, n in seeds]
    )


def test_whose_seeds_count() -> None:
    assert seeds_of(batch((None, 1), (4, 1), (0, 1))) == (None, 4, 0)
    assert seeds_of(batch((None, 1), (4, 2))) is None, "the choices of one request must differ"
    assert seeds_of(batch()) is None
