"""Attention over pages against the definition; unlisted slots are NaN, so that a result that is finite read none."""

from __future__ import annotations

import kernel_checks as checks
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl_entropic_kernels import reference_ops as oracle
from sgl_entropic_kernels.native import library

# (query heads for each KV head, KV heads, head_dim)
HEADS = st.tuples(st.sampled_from([1, 3, 4, 7, 8]), st.integers(1, 3), st.sampled_from([16, 64, 80, 128]))
LENGTHS = st.lists(
    st.sampled_from([0, 1, 2, 15, 16, 17, 64, 255, 256, 257, 300]) | st.integers(0, 90), max_size=5
)
PAGE_SIZES = st.sampled_from([1, 3, 16, 64])
WINDOWS = st.sampled_from([-1, 0, 1, 15, 64, 100, 2**31 - 1])
CAPS = st.sampled_from([0.0, 5.0, 50.0])
SEEDS = st.integers(0, 2**31)
LONG = 8192


def heads_of(drawn: tuple[int, int, int]) -> tuple[int, int, int]:
    group, kv_heads, d = drawn
    return group * kv_heads, kv_heads, d


def scoring(d: int, window: int = -1, cap: float = 0.0) -> oracle.Scoring:
    return oracle.Scoring(2.0 * d**-0.5, window, cap)


@settings(max_examples=150)
@given(LENGTHS, HEADS, PAGE_SIZES, WINDOWS, CAPS, st.booleans(), SEEDS)
def test_decoding_is_attention_by_definition(lengths, heads, page_size, window, cap, bf16, seed) -> None:
    case = checks.paged(lengths, None, heads_of(heads), page_size, seed, bf16=bf16)
    checks.check_attention(library(), case, scoring(heads[2], window, cap))


@st.composite
def extended(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Lengths of requests, and how many of their last tokens are queries."""
    lengths = draw(st.lists(st.sampled_from([2, 63, 64, 65, 96, 130]) | st.integers(1, 80), max_size=3))
    return lengths, [draw(st.integers(0, length)) for length in lengths]


@settings(max_examples=100)
@given(extended(), HEADS, PAGE_SIZES, WINDOWS, CAPS, st.booleans(), SEEDS)
def test_extending_is_attention_by_definition(requests, heads, page_size, window, cap, bf16, seed) -> None:
    case = checks.paged(*requests, heads_of(heads), page_size, seed, bf16=bf16)
    checks.check_attention(library(), case, scoring(heads[2], window, cap), mass=False)


@settings(max_examples=80)
@given(LENGTHS, HEADS, PAGE_SIZES, WINDOWS, st.booleans(), SEEDS)
def test_a_request_decodes_to_the_same_bits_among_any_others(
    lengths, heads, page_size, window, bf16, seed
) -> None:
    case = checks.paged([700, *lengths], None, heads_of(heads), page_size, seed, bf16=bf16)
    checks.check_requests_do_not_matter(library(), case, scoring(heads[2], window))


@settings(max_examples=20)
@given(extended(), HEADS, WINDOWS, SEEDS)
def test_a_request_extends_to_the_same_bits_among_any_others(requests, heads, window, seed) -> None:
    case = checks.paged(*requests, heads_of(heads), 16, seed, bf16=False)
    checks.check_requests_do_not_matter(library(), case, scoring(heads[2], window))


@settings(max_examples=80)
@given(st.integers(2, 260), st.data(), HEADS, WINDOWS, CAPS, st.booleans(), SEEDS)
def test_a_prompt_has_the_same_bits_however_it_is_cut(length, data, heads, window, cap, bf16, seed) -> None:
    """Into chunks of two tokens or more: one token alone is decoded, in another order of the same sums."""
    cuts = sorted(data.draw(st.sets(st.integers(1, length // 2), max_size=4)))
    cuts = [2 * cut for cut in cuts if 2 * cut <= length - 2]
    page_size = data.draw(PAGE_SIZES)
    case = checks.paged([length], [length], heads_of(heads), page_size, seed, bf16=bf16)
    checks.check_cuts_do_not_matter(library(), case, cuts, scoring(heads[2], window, cap))


@pytest.mark.parametrize("page_size", [1, 64])
@pytest.mark.parametrize("bf16", [False, True])
def test_a_long_context_is_decoded(native, page_size: int, bf16) -> None:
    case = checks.paged([LONG, 1], None, (4, 2, 64), page_size, 3, bf16=bf16)
    checks.check_attention(native, case, scoring(64))
    checks.check_requests_do_not_matter(native, case, scoring(64))


def test_a_long_context_is_extended(native) -> None:
    case = checks.paged([LONG], [70], (3, 1, 64), 16, 3, bf16=False)
    checks.check_attention(native, case, scoring(64), mass=False)


def test_very_unequal_scores_leave_one_token(native) -> None:
    case = checks.paged([600, 5], None, (2, 1, 16), 1, 3, bf16=False)
    checks.check_attention(native, case, oracle.Scoring(1.0))
    got = case.run(native, oracle.Scoring(1e4))
    assert np.isfinite(got.out).all()
    assert np.isfinite(got.lse).all()
    top = [
        oracle.cache_values(case.v)[s[np.argmax(case.k[s, 0] @ case.q[r, 0])], 0]
        for r, s in enumerate(map(case.pages.slots, (0, 1)))
    ]
    checks.check_close(got.out[:, 0], np.stack(top), 1e-3)


def test_outputs_and_masses_that_are_not_wanted_change_nothing(native) -> None:
    case = checks.paged([20, 300], None, (2, 1, 16), 3, 3, bf16=False)
    out = np.full(case.q.shape, np.nan, np.float32)
    native.paged_attention(case.q, case.k, case.v, *case.pages, 0.5, out)
    checks.check_same_bits(out, case.run(native, oracle.Scoring(0.5)).out)


def test_bfloat16_tensors_are_read_as_bits(native) -> None:
    case = checks.paged([20, 300], None, (2, 1, 16), 3, 3, bf16=True)
    k, v = (torch.from_numpy(cache.view(np.int16)).view(torch.bfloat16) for cache in (case.k, case.v))
    out = torch.full(case.q.shape, torch.nan)
    native.paged_attention(
        torch.from_numpy(case.q), k.view(torch.uint16), v.view(torch.uint16), *case.pages, 0.5, out
    )
    checks.check_same_bits(out.numpy(), case.run(native, oracle.Scoring(0.5)).out)
