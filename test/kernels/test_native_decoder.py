"""A whole decoder as one call: the definition, the bits of the single operations, and independence of the batch."""

from __future__ import annotations

import kernel_checks as checks
import kernel_decoders as decoders
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl_entropic_kernels.native import library

FAMILIES = st.sampled_from(sorted(decoders.FAMILIES))
LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=5)
SEEDS = st.integers(0, 2**31)


@settings(max_examples=25)
@given(FAMILIES, LENGTHS, st.booleans(), SEEDS)
def test_prompts_and_steps_are_those_of_the_definition(family, lengths, bf16, seed) -> None:
    decoders.check_decoder(library(), family, lengths, seed, bf16=bf16)


@settings(max_examples=25)
@given(FAMILIES, LENGTHS, st.booleans(), st.booleans(), SEEDS)
def test_a_request_decodes_to_the_same_bits_in_any_batch(family, lengths, bf16, integer, seed) -> None:
    decoders.check_batch_does_not_matter(library(), family, lengths, seed, bf16=bf16, integer=integer)


@settings(max_examples=20)
@given(st.sampled_from(["llama", "qwen2", "interleaved", "windowed"]), LENGTHS, SEEDS)
def test_one_call_has_the_bits_of_its_operations(family, lengths, seed) -> None:
    decoders.check_one_call_is_the_operations(library(), family, lengths, seed)


@pytest.mark.parametrize("cuts", [[2], [40], [2, 4, 64], [30, 90]])
def test_a_prompt_has_the_same_bits_however_it_is_cut(native, cuts: list[int]) -> None:
    length, ids = 100, checks.generator(1).integers(0, decoders.VOCABULARY, 100)
    slots = decoders.shuffled_slots([length], 1)
    whole = decoders.make(native, "qwen3", 1).forward(decoders.step_of(slots, [length], [length]), ids)
    pair, parts = decoders.make(native, "qwen3", 1), []
    for begin, end in zip([0, *cuts], [*cuts, length], strict=True):
        parts.append(pair.forward(decoders.step_of(slots, [end], [end - begin]), ids[begin:end]))
    checks.check_same_bits(np.concatenate(parts), whole)


def test_an_empty_step_is_nothing(native) -> None:
    pair = decoders.make(native, "llama", 1)
    none = np.zeros(0, np.int64)
    hidden = np.zeros((0, 48), np.float32)
    pair.fast.forward(none, none, none, np.zeros(1, np.int64), none, np.zeros(1, np.int64), hidden)
    assert all(np.isnan(cache).all() for cache in pair.caches)
