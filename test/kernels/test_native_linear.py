"""Packed matrices stand for exactly one matrix, and their products are those of the definition, whatever the rows."""

from __future__ import annotations

import kernel_checks as checks
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl_entropic_kernels import reference_ops as oracle
from sgl_entropic_kernels.native import library

ROWS = st.sampled_from([0, 1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 24, 25, 70, 200]) | st.integers(0, 70)
OUTPUTS = st.sampled_from([1, 15, 16, 17, 64, 65, 128, 300]) | st.integers(1, 150)
INPUTS = st.sampled_from([1, 31, 32, 33, 64, 96, 512, 544, 700]) | st.integers(1, 200)
SEEDS = st.integers(0, 2**31)
KINDS = st.sampled_from(checks.KINDS)
EXAMPLES = settings(max_examples=150)


def inputs_for(kind: str, k: int) -> int:
    """affine4 is for whole blocks of 32 inputs."""
    return -(-k // 32) * 32 if kind == "affine4" else k


@EXAMPLES
@given(KINDS, ROWS, OUTPUTS, INPUTS, SEEDS)
def test_a_lossless_format_changes_no_bit(kind: str, rows: int, n: int, k: int, seed: int) -> None:
    checks.check_lossless(library(), kind, rows, n, inputs_for(kind, k), seed)


@EXAMPLES
@given(KINDS, ROWS, OUTPUTS, INPUTS, SEEDS)
def test_integer_products_are_those_of_inputs_rounded_to_8_bits(
    kind: str, rows: int, n: int, k: int, seed: int
) -> None:
    checks.check_integer(library(), kind, rows, n, inputs_for(kind, k), seed)


@pytest.mark.parametrize("kind", ["int8", "affine4"])
@pytest.mark.parametrize("rows", [1, 3, 4, 9])
def test_integer_sums_of_the_largest_codes_do_not_overflow(native, kind: str, rows: int) -> None:
    """All codes at one end of their range, and inputs that are all as large as they may be, of one sign or of two."""
    rng, n, k = checks.generator(rows), 70, 96
    low = 0.0 if kind == "affine4" else -1.0
    matrix = np.where(rng.random((n, k)) < rng.choice([0.0, 0.5, 1.0], (n, 1)), 1.0, low).astype(np.float32)
    if kind == "affine4":
        matrix = 15 * matrix
        # One of each end, which make it four bits: every other code is the largest, or drawn.
        matrix[:, ::32], matrix[:, 1::32] = 0.0, 15.0
    weight = native.pack(matrix, "small", True)
    assert (weight.format, weight.integer) == (kind, True)
    x = np.where(rng.random((rows, k)) < rng.choice([0.0, 0.5, 1.0], (rows, 1)), 1.0, -1.0).astype(np.float32)
    x[0] = 1.0
    # Inputs of 1 and -1 and these weights are all held exactly, and so are their sums.
    expected = x.astype(np.float64) @ checks.rows_of(weight).astype(np.float64).T
    assert np.abs(checks.product(native, x, weight) - expected).max() <= 1e-6 * 15 * k


@EXAMPLES
@given(KINDS, st.booleans(), ROWS, OUTPUTS, INPUTS, SEEDS)
def test_bias_comes_first_and_what_was_there_last(
    kind: str, integer, rows: int, n: int, k: int, seed: int
) -> None:
    checks.check_bias_and_add(library(), kind, rows, n, inputs_for(kind, k), seed, integer=integer)


@pytest.mark.parametrize("integer", [False, True])
@pytest.mark.parametrize("kind", checks.KINDS)
@pytest.mark.parametrize(("n", "k"), [(16, 32), (50, 96), (33, 640), (700, 64)])
def test_a_row_has_the_same_bits_among_any_others(native, kind: str, integer, n: int, k: int) -> None:
    checks.check_rows_do_not_matter(native, kind, n, k, 1, integer=integer)


@settings(max_examples=100)
@given(KINDS, st.booleans(), ROWS, OUTPUTS, INPUTS, SEEDS)
def test_the_head_gives_logits_statistics_and_chosen_logits(
    kind: str, integer, rows: int, n: int, k: int, seed: int
) -> None:
    checks.check_lm_head(library(), kind, rows, n, inputs_for(kind, k), seed, integer=integer)


def test_the_statistics_of_a_large_vocabulary(native) -> None:
    checks.check_lm_head(native, "int8", 3, 20_000, 64, 5, integer=True)


@settings(max_examples=80)
@given(OUTPUTS, INPUTS, SEEDS)
def test_int8_is_at_most_half_a_step_off(n: int, k: int, seed: int) -> None:
    checks.check_int8_rounding(library(), n, k, seed)


@pytest.mark.parametrize("n", [5, 16, 40])
@pytest.mark.parametrize("value", [0.0, 0.5, -3.0])
def test_a_constant_matrix_is_held_exactly_in_the_smallest_format(native, n: int, value: float) -> None:
    """Groups without a spread, and the filling behind the last row, must not cost a larger format."""
    matrix = np.full((n, 64), value, np.float32)
    weight = native.pack(matrix, "lossless")
    assert (weight.format, weight.exact) == ("affine4", True)
    checks.check_same_bits(checks.rows_of(weight), matrix)


def test_small_takes_the_lossless_format_where_it_is_small(native) -> None:
    formats = {kind: native.pack(checks.matrix_of(kind, 20, 64, 3), "small").format for kind in checks.KINDS}
    assert formats == {"float32": "int8", "bfloat16": "int8", "int8": "int8", "affine4": "affine4"}


def test_sizes_are_those_of_the_formats(native) -> None:
    bits = {"float32": 32.0, "bfloat16": 16.0, "int8": 8.5, "affine4": 5.0}
    for kind, expected in bits.items():
        weight = native.pack(checks.matrix_of(kind, 64, 128, 3), "lossless")
        assert (weight.n, weight.k, weight.bytes * 8) == (64, 128, expected * 64 * 128)


def test_inputs_too_small_to_scale_give_next_to_nothing(native) -> None:
    """127 over the largest input overflows: the rounding must not."""
    weight = native.pack(checks.matrix_of("int8", 40, 64, 1), "small", True)
    got = checks.product(native, np.full((3, 64), 1e-39, np.float32), weight)
    checks.check_close(got, np.zeros_like(got, dtype=np.float64), 1e-36)


@pytest.mark.parametrize("integer", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_that_is_not_finite_shows_and_spoils_no_other(native, integer, bad: float) -> None:
    weight = native.pack(checks.matrix_of("int8", 40, 64, 1), "small" if integer else "lossless", integer)
    x = checks.normal(checks.generator(1), 6, 64)
    clean = checks.product(native, x, weight)
    for column in (0, 15, 16, 40, 63):
        spoiled = x.copy()
        spoiled[2, column] = bad
        got = checks.product(native, spoiled, weight)
        assert not np.isfinite(got[2]).any()
        checks.check_same_bits(np.delete(got, 2, axis=0), np.delete(clean, 2, axis=0))


def test_statistics_of_logits_that_are_not_numbers_are_none(native) -> None:
    weight = native.pack(checks.matrix_of("float32", 100, 32, 1), "float32")
    x = checks.normal(checks.generator(1), 2, 32)
    x[1, 3] = np.nan
    statistics = np.zeros((2, 4), np.float32)
    native.lm_head(x, weight, None, statistics)
    assert np.isfinite(statistics[0]).all()
    assert np.isnan(statistics[1]).all()


def test_tensors_are_arrays_too(native) -> None:
    matrix, x = checks.matrix_of("int8", 30, 64, 1), checks.normal(checks.generator(2), 4, 64)
    weight, out = native.pack(torch.from_numpy(matrix), "lossless"), torch.full((4, 30), torch.nan)
    native.linear(torch.from_numpy(x), weight, out)
    checks.check_close(out.numpy(), oracle.linear(x, matrix), checks.FLOAT * checks.norms(x, matrix))
