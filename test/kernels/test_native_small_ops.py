"""Norms, activations and rotations against their definitions."""

from __future__ import annotations

import kernel_checks as checks
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl_entropic_kernels.native import library

ROWS = st.sampled_from([0, 1, 2, 3, 70, 200])
SIZES = st.sampled_from([1, 15, 16, 17, 64, 896, 1000]) | st.integers(1, 200)
SEEDS = st.integers(0, 2**31)
EXAMPLES = settings(max_examples=100)


@EXAMPLES
@given(ROWS, SIZES, st.booleans(), SEEDS)
def test_rms_norm_with_and_without_residual(rows: int, n: int, residual, seed: int) -> None:
    checks.check_rms_norm(library(), rows, n, seed, residual=residual)


@EXAMPLES
@given(ROWS, SIZES, st.sampled_from([1.0, 30.0, 1000.0, 1e6]), SEEDS)
def test_silu_of_the_gate_times_the_rest(rows: int, n: int, size: float, seed: int) -> None:
    checks.check_silu_mul(library(), rows, n, size, seed)


@EXAMPLES
@given(
    st.sampled_from([0, 1, 2, 70, 200]),
    st.sampled_from([(1, 1, 16), (6, 2, 64), (7, 1, 80), (4, 4, 128)]),
    st.sampled_from([2, 6, 16, 32, 34, 80, 128]),
    st.booleans(),
    st.booleans(),
    SEEDS,
)
def test_heads_are_rotated_and_kept(tokens, heads, rotary, neox, bf16, seed) -> None:
    checks.check_rope_write_kv(library(), tokens, heads, min(rotary, heads[2]), seed, neox=neox, bf16=bf16)
