"""The KV pool of a CPU server: what was asked for, else a share of the free memory with one context at least."""

from __future__ import annotations

from types import SimpleNamespace

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_entropic.runtime import kv_pool_size
from sgl_entropic.runtime.kv_pool_size import kv_pool_tokens
from sgl_entropic.runtime.model_facts import ModelFacts

GIB = 2**30
MIB = 2**20


def facts(*, layers: int = 30, context_len: int = 8192) -> ModelFacts:
    """30 layers of 3 heads of 64: 46,080 bytes a token in float32."""
    return ModelFacts("LlamaForCausalLM", layers, 3, 64, context_len, None, False, False, False)


def tokens(
    model: ModelFacts | None, free: int, *, dtype: str = "float32", pool_mib: int | None = None
) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kv_pool_size, "model_facts", lambda path: model)
        patch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=free))
        return kv_pool_tokens("model", dtype, pool_mib)


@pytest.mark.parametrize(
    ("dtype", "expected"), [("float32", 64 * MIB // 46_080), ("bfloat16", 64 * MIB // 23_040)]
)
def test_a_pool_that_was_asked_for_is_filled(dtype: str, expected: int) -> None:
    """Whatever is free: it was asked for."""
    assert tokens(facts(), 1 * GIB, dtype=dtype, pool_mib=64) == expected
    assert tokens(facts(), 64 * GIB, dtype=dtype, pool_mib=64) == expected


@pytest.mark.parametrize(
    ("free", "expected"),
    [
        (5 * GIB, 5 * GIB // 8 // 46_080),  # an eighth
        (1024 * GIB, 768 * MIB // 46_080),  # at most 768 MiB
        (1 * GIB, 8193),  # an eighth is less than one context, half is more
        (GIB // 4, GIB // 8 // 46_080),  # half of what is free
    ],
)
def test_the_default_is_a_share_of_the_free_memory(free: int, expected: int) -> None:
    assert tokens(facts(), free) == expected


def test_sixteen_bits_hold_as_many_tokens_in_half_the_memory() -> None:
    assert tokens(facts(), 64 * GIB, dtype="bfloat16") == tokens(facts(), 64 * GIB) == 384 * MIB // 23_040


@given(st.integers(0, 1024 * GIB), st.integers(1, 200), st.integers(1, 10**7))
def test_the_default_holds_its_bounds(free: int, layers: int, context_len: int) -> None:
    """At least one token; never more than half the free memory; one context wherever that fits into the half."""
    model = facts(layers=layers, context_len=context_len)
    count = tokens(model, free)
    per_token = model.kv_bytes_per_token(4)
    assert count >= 1
    assert count == 1 or count * per_token <= free // 2
    if (context_len + 1) * per_token <= free // 2:
        assert count >= context_len + 1


def test_a_token_larger_than_the_pool_still_has_a_place() -> None:
    assert tokens(facts(layers=10**6), 16 * GIB, pool_mib=64) == 1


def test_an_unknown_model_gets_a_fixed_pool() -> None:
    assert tokens(None, 16 * GIB) == tokens(None, 1, pool_mib=64) == 16_384


def test_a_model_without_layers_is_no_division_by_zero() -> None:
    assert tokens(facts(layers=0), 16 * GIB) > 0
