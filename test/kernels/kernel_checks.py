"""Compares the compiled kernels with their float64 definitions; NumPy only, so that a process of its own starts quickly.

Every check makes its numbers from a seed. Tolerances, once for all:

``FLOAT`` times the norms of what is multiplied: float32 sums of a few thousand terms, one after the other, lose about
the square root of their number in units of 2^-24.
``ATTENTION`` times the largest value: in addition e^x to 1e-7 and scores of a size of 10, whose own error it enlarges.
Of rounded inputs the definition is the same rounding, and ``FLOAT`` holds again; against unrounded ones the bound is
half a step of each block, 1/254 of its largest input.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgl_entropic_kernels import reference_ops as oracle

FLOAT = 1e-5
ATTENTION = 3e-5
BFLOAT16 = 2.0**-8  # between neighbours

Array = NDArray[Any]
PLAIN = oracle.Scoring(0.3)
KINDS = ("float32", "bfloat16", "int8", "affine4")


def generator(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def normal(rng: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    return rng.standard_normal(shape).astype(np.float32)


def check_close(got: Array, expected: Array, tolerance: float | Array) -> None:
    error = np.abs(got.astype(np.float64) - expected)
    assert np.isfinite(got).all()
    assert (error <= tolerance).all(), f"off by {np.max(error - tolerance)} more than allowed"


def check_same_bits(one: Array, other: Array) -> None:
    assert one.shape == other.shape
    assert one.dtype == other.dtype
    assert one.tobytes() == other.tobytes(), f"{np.count_nonzero(one != other)} of {one.size} differ"


# ------------------------------------------------------------------------------------------------- linear
def matrix_of(kind: str, n: int, k: int, seed: int) -> NDArray[np.float32]:
    """A matrix [n, k] that the format ``kind`` holds exactly, and none smaller; for affine4, k is a multiple of 32."""
    rng = generator(seed)
    if kind == "float32":
        return normal(rng, n, k)
    if kind == "bfloat16":
        return oracle.from_bfloat16(oracle.to_bfloat16(normal(rng, n, k)))
    blocks = -(-k // 32)
    scales = rng.uniform(0.001, 0.01, (n, blocks, 1)).astype(np.float16).astype(np.float32)
    if kind == "int8":
        codes = rng.integers(-127, 128, (n, blocks, 32))
        codes[:, :, 0] = 127
        return np.ascontiguousarray((scales * codes).astype(np.float32).reshape(n, -1)[:, :k])
    codes = rng.integers(0, 16, (n, blocks, 32))
    codes[:, :, 3], codes[:, :, 17] = 0, 15
    minima = rng.uniform(-0.1, 0.02, (n, blocks, 1)).astype(np.float16).astype(np.float32)
    minima[rng.random((n, blocks, 1)) < 0.1] = 0.0
    return ((scales * codes.astype(np.float32)) + minima).reshape(n, k)


def rows_of(weight: Any) -> NDArray[np.float32]:
    out = np.full((weight.n, weight.k), np.nan, np.float32)
    weight.rows(np.arange(weight.n), out)
    return out


def product(native: ModuleType, x: Array, weight: Any, **options: Any) -> NDArray[np.float32]:
    out = options.pop("out", np.full((len(x), weight.n), np.nan, np.float32))
    native.linear(np.ascontiguousarray(x), weight, out, **options)
    return out


def norms(x: Array, matrix: Array) -> Array:
    return np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(matrix, axis=1)[None, :]


def check_lossless(native: ModuleType, kind: str, rows: int, n: int, k: int, seed: int) -> None:
    matrix = matrix_of(kind, n, k, seed)
    packed, plain = native.pack(matrix, "lossless"), native.pack(matrix, "float32")
    assert (packed.format, packed.exact, plain.format) == (kind, True, "float32")
    check_same_bits(rows_of(packed), matrix)
    x = normal(generator(seed + 1), rows, k)
    got = product(native, x, packed)
    check_close(got, oracle.linear(x, matrix), FLOAT * norms(x, matrix) + 1e-30)
    check_same_bits(got, product(native, x, plain))


def check_bias_and_add(
    native: ModuleType, kind: str, rows: int, n: int, k: int, seed: int, *, integer: bool
) -> None:
    rng = generator(seed)
    weight = native.pack(matrix_of(kind, n, k, seed), "small" if integer else "lossless", integer)
    x, bias, held = normal(rng, rows, k), normal(rng, n), normal(rng, rows, n)
    plain = product(native, x, weight)
    check_same_bits(product(native, x, weight, bias=bias), plain + bias)
    check_same_bits(product(native, x, weight, bias=bias, add=True, out=held.copy()), (plain + bias) + held)
    check_same_bits(product(native, x, weight, add=True, out=held.copy()), plain + held)


def check_int8_rounding(native: ModuleType, n: int, k: int, seed: int) -> None:
    matrix = normal(generator(seed), n, k)
    weight = native.pack(matrix, "int8")
    assert (weight.format, weight.exact) == ("int8", False)
    # Half a step; scales are float16, which moves the last code by 127 * 2^-11 steps at most, and in its subnormal range
    # by 127 * 2^-25.
    steps = oracle.round_inputs(matrix).scales
    check_close(rows_of(weight), matrix, 0.57 * steps + 127 * 2.0**-25)


def check_integer(native: ModuleType, kind: str, rows: int, n: int, k: int, seed: int) -> None:
    weight = native.pack(matrix_of(kind, n, k, seed), "small", True)
    assert (weight.integer, weight.format) == (True, kind if kind in ("int8", "affine4") else "int8")
    matrix, x = rows_of(weight), normal(generator(seed + 1), rows, k)
    rounded = oracle.round_inputs(x)
    got = product(native, x, weight)
    check_close(got, oracle.linear(rounded.values(), matrix), FLOAT * norms(x, matrix))
    lost = oracle.linear(rounded.scales / 2.0, np.abs(matrix))
    check_close(got, oracle.linear(x, matrix), lost * (1 + FLOAT) + FLOAT * norms(x, matrix))


def check_rows_do_not_matter(
    native: ModuleType, kind: str, n: int, k: int, seed: int, *, integer: bool
) -> None:
    weight = native.pack(matrix_of(kind, n, k, seed), "small" if integer else "lossless", integer)
    x = normal(generator(seed + 1), 200, k)
    every = product(native, x, weight)
    for count in (1, 2, 3, 4, 5, 7, 12, 13, 70, 96, 97):
        first = int(generator(seed + count).integers(0, 200 - count + 1))
        check_same_bits(product(native, x[first : first + count], weight), every[first : first + count])


def check_lm_head(
    native: ModuleType, kind: str, rows: int, n: int, k: int, seed: int, *, integer: bool
) -> None:
    weight = native.pack(matrix_of(kind, n, k, seed), "small" if integer else "lossless", integer)
    rng = generator(seed)
    # Logits of a few units, as models have them.
    x = normal(rng, rows, k) * np.float32(3.0 / max(np.linalg.norm(rows_of(weight)[0]), 1e-3))
    logits, targets = np.full((rows, n), np.nan, np.float32), rng.integers(0, n, rows)
    first, second = (np.full((rows, 4), np.nan, np.float32) for _ in range(2))
    chosen, also = (np.full(rows, np.nan, np.float32) for _ in range(2))
    native.lm_head(x, weight, logits, first, targets, chosen)
    native.lm_head(x, weight, None, second, targets, also)
    check_same_bits(logits, product(native, x, weight))
    check_same_bits(first, second)
    check_same_bits(chosen, logits[np.arange(rows), targets])
    check_same_bits(chosen, also)
    expected = oracle.logit_statistics(logits) if rows else np.zeros((0, 4))
    # e^x to 1e-7, sums in float32; the varentropy is a difference of squares of surprisals.
    check_close(first, expected, 1e-5 * (1.0 + np.abs(expected)) * np.array([0.0, 1.0, 1.0, 5.0]))
    for row in range(0, rows, 17):
        alone = np.full((1, 4), np.nan, np.float32)
        native.lm_head(x[row : row + 1], weight, None, alone)
        check_same_bits(alone[0], first[row])


# ------------------------------------------------------------------------------------------------- attention
@dataclass
class Paged:
    """Queries and the caches of some requests; what no request lists is NaN."""

    q: Array
    k: Array
    v: Array
    pages: oracle.Pages
    q_indptr: Array | None

    def run(
        self, native: ModuleType, scoring: oracle.Scoring, *, mass: bool = True
    ) -> oracle.AttentionReference:
        out, lse = np.full(self.q.shape, np.nan, np.float32), np.full(self.q.shape[:2], np.nan, np.float32)
        page_mass = np.full(len(self.pages.indices), np.nan, np.float32) if mass else None
        native.paged_attention(
            self.q, self.k, self.v, *self.pages, scoring.scale, out, self.q_indptr, scoring.window, scoring.logit_cap,
            lse, page_mass,
        )  # fmt: skip
        return oracle.AttentionReference(out, lse, page_mass)

    def only(self, request: int) -> Paged:
        """One request of several."""
        p, starts = (
            self.pages,
            self.q_indptr if self.q_indptr is not None else np.arange(len(self.pages.indptr)),
        )
        own = p.indices[p.indptr[request] : p.indptr[request + 1]]
        rows = slice(starts[request], starts[request + 1])
        pages = oracle.Pages(
            np.array([0, len(own)]), own.copy(), p.last_page_len[request : request + 1].copy(), p.size
        )
        indptr = None if self.q_indptr is None else np.array([0, rows.stop - rows.start])
        return Paged(self.q[rows].copy(), self.k, self.v, pages, indptr)


def paged(
    lengths: list[int],
    queries: list[int] | None,
    heads: tuple[int, int, int],
    page_size: int,
    seed: int,
    *,
    bf16: bool,
) -> Paged:
    """Requests of ``lengths`` on pages in random order; ``heads``: of queries, of keys, and their size."""
    rng = generator(seed)
    q_heads, kv_heads, d = heads
    counts = [-(-length // page_size) for length in lengths]
    total = sum(counts)
    indices = rng.permutation(total + 3)[:total].astype(np.int64)
    last = np.array(
        [
            length - (count - 1) * page_size if count else 0
            for length, count in zip(lengths, counts, strict=True)
        ]
    )
    pages = oracle.Pages(np.cumsum([0, *counts]), indices, last.astype(np.int64), page_size)
    k, v = (np.full(((total + 3) * page_size + 1, kv_heads, d), np.nan, np.float32) for _ in range(2))
    for r in range(len(lengths)):
        slots = pages.slots(r)
        k[slots], v[slots] = normal(rng, len(slots), kv_heads, d), normal(rng, len(slots), kv_heads, d)
    if bf16:
        k, v = (
            np.where(np.isnan(c), np.uint16(0x7FC0), oracle.to_bfloat16(np.nan_to_num(c))) for c in (k, v)
        )
    indptr = None if queries is None else np.cumsum([0, *queries])
    q = normal(rng, len(lengths) if queries is None else sum(queries), q_heads, d)
    return Paged(q, k, v, pages, indptr)


def check_attention(native: ModuleType, case: Paged, scoring: oracle.Scoring, *, mass: bool = True) -> None:
    got = case.run(native, scoring, mass=mass)
    expected = oracle.paged_attention(case.q, case.k, case.v, case.pages, scoring, case.q_indptr)
    largest = np.nanmax(np.abs(oracle.cache_values(case.v)), initial=1.0)
    check_close(got.out, expected.out, ATTENTION * largest)
    seen = np.isfinite(expected.lse)
    assert (np.isneginf(got.lse) == ~seen).all()
    check_close(got.lse[seen], expected.lse[seen], ATTENTION * (1.0 + np.abs(expected.lse[seen])))
    if mass:
        check_close(got.page_mass, expected.page_mass, ATTENTION)
        for r, (begin, end) in enumerate(zip(case.pages.indptr, case.pages.indptr[1:], strict=False)):
            total = got.page_mass[begin:end].sum(dtype=np.float64)
            assert abs(total - (end > begin)) <= ATTENTION, f"request {r} has the mass {total}"


def check_requests_do_not_matter(native: ModuleType, case: Paged, scoring: oracle.Scoring) -> None:
    mass = case.q_indptr is None
    every = case.run(native, scoring, mass=mass)
    starts = case.q_indptr if case.q_indptr is not None else np.arange(len(case.pages.indptr))
    for r in range(len(case.pages.indptr) - 1):
        alone = case.only(r).run(native, scoring, mass=mass)
        check_same_bits(alone.out, every.out[starts[r] : starts[r + 1]])
        check_same_bits(alone.lse, every.lse[starts[r] : starts[r + 1]])
        if mass:
            check_same_bits(alone.page_mass, every.page_mass[case.pages.indptr[r] : case.pages.indptr[r + 1]])


def check_cuts_do_not_matter(
    native: ModuleType, case: Paged, cuts: list[int], scoring: oracle.Scoring
) -> None:
    """One request whose queries are all its tokens, run at once and in the chunks that end at ``cuts``."""
    whole = case.run(native, scoring, mass=False)
    indices, size = case.pages.indices, case.pages.size
    for begin, end in zip([0, *cuts], [*cuts, len(case.q)], strict=True):
        count = -(-end // size)
        pages = oracle.Pages(
            np.array([0, count]), indices[:count], np.array([end - (count - 1) * size]), size
        )
        part = Paged(case.q[begin:end].copy(), case.k, case.v, pages, np.array([0, end - begin]))
        got = part.run(native, scoring, mass=False)
        check_same_bits(got.out, whole.out[begin:end])
        check_same_bits(got.lse, whole.lse[begin:end])


# ------------------------------------------------------------------------------------------------- small operations
def check_rms_norm(native: ModuleType, rows: int, n: int, seed: int, *, residual: bool) -> None:
    rng = generator(seed)
    x, weight, held = normal(rng, rows, n), normal(rng, n), normal(rng, rows, n)
    out, total = np.full_like(x, np.nan), held.copy()
    native.rms_norm(x, weight, 1e-6, out, total if residual else None)
    expected, summed = oracle.rms_norm(x, weight, 1e-6, held if residual else None)
    check_close(out, expected, FLOAT * np.abs(expected) + 1e-30)
    check_same_bits(total, x + held if residual else held)
    check_close(total if residual else x, summed, 1e-6 * np.abs(summed) + 1e-30)
    if rows:
        alone, kept = np.full((1, n), np.nan, np.float32), held[-1:].copy()
        native.rms_norm(x[-1:], weight, 1e-6, alone, kept if residual else None)
        check_same_bits(alone[0], out[-1])


def check_silu_mul(native: ModuleType, rows: int, n: int, size: float, seed: int) -> None:
    x = normal(generator(seed), rows, 2 * n) * np.float32(size)
    out = np.full((rows, n), np.nan, np.float32)
    native.silu_mul(x, out)
    expected = oracle.silu_mul(x)
    # Far below 0 the kernel takes e^88.3 for all that is larger: an absolute error, of the product over that.
    gate, up = np.split(np.abs(x.astype(np.float64)), 2, axis=1)
    check_close(out, expected, FLOAT * np.abs(expected) + 5e-39 * gate * up + 1e-30)
    if rows:
        alone = np.full((1, n), np.nan, np.float32)
        native.silu_mul(x[-1:], alone)
        check_same_bits(alone[0], out[-1])


def check_rope_write_kv(
    native: ModuleType,
    tokens: int,
    heads: tuple[int, int, int],
    rotary: int,
    seed: int,
    *,
    neox: bool,
    bf16: bool,
) -> None:
    q_heads, kv_heads, d = heads
    rng = generator(seed)
    table = oracle.rope_table(300, rotary)
    given = normal(rng, tokens, (q_heads + 2 * kv_heads) * d)
    positions, slots = rng.integers(0, 300, tokens), rng.permutation(tokens + 5)[:tokens]
    dtype = np.uint16 if bf16 else np.float32
    k_cache, v_cache = (np.full((tokens + 5, kv_heads, d), 7, dtype) for _ in range(2))
    qkv, untouched = given.copy(), np.setdiff1d(np.arange(tokens + 5), slots)
    native.rope_write_kv(qkv, positions, slots, table, neox, k_cache, v_cache)
    q, k, v = np.split(
        given.reshape(tokens, q_heads + 2 * kv_heads, d), [q_heads, q_heads + kv_heads], axis=1
    )
    q_out, k_out, v_out = np.split(
        qkv.reshape(tokens, q_heads + 2 * kv_heads, d), [q_heads, q_heads + kv_heads], axis=1
    )
    check_close(q_out, oracle.rope(q, positions, table, neox=neox), 1e-5)
    check_close(k_out, oracle.rope(k, positions, table, neox=neox), 1e-5)
    check_same_bits(np.ascontiguousarray(v_out), np.ascontiguousarray(v))
    held = oracle.to_bfloat16 if bf16 else np.ascontiguousarray
    check_same_bits(k_cache[slots], held(k_out))
    check_same_bits(v_cache[slots], held(v_out))
    assert (k_cache[untouched] == 7).all()
    assert (v_cache[untouched] == 7).all()
