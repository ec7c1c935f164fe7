"""The page lists of a step, and what the kernel is not asked to compute."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sgl_entropic.runtime.cpu.attention import cache_view, page_lists, supported

ROWS, CONTEXT = 6, 40


@given(st.data())
def test_each_request_reads_its_own_slots_in_the_order_of_its_tokens(data: st.DataObject) -> None:
    """Against a walk over the table, request by request and token by token."""
    slots = data.draw(st.permutations(range(ROWS * CONTEXT)))
    table = torch.tensor(slots, dtype=torch.int32).view(ROWS, CONTEXT)
    rows = data.draw(st.lists(st.integers(0, ROWS - 1), unique=True, max_size=ROWS))
    lengths = [data.draw(st.integers(1, CONTEXT)) for _ in rows]
    queries = [data.draw(st.integers(1, length)) for length in lengths]
    lists = page_lists(table, rows, lengths, queries)
    begin, query = 0, 0
    assert lists.kv_indptr[0] == lists.q_indptr[0] == 0
    for index, (row, length, count) in enumerate(zip(rows, lengths, queries, strict=True)):
        end = int(lists.kv_indptr[index + 1])
        read = lists.kv_indices[begin:end].tolist()
        assert read == [slots[row * CONTEXT + token] for token in range(length)]
        query += count
        assert int(lists.q_indptr[index + 1]) == query
        begin = end
    assert len(lists.kv_indices) == sum(lengths)
    assert lists.last_page_len.tolist() == [1] * len(rows)
    assert lists.longest == max(lengths, default=0)
    for tensor in (lists.kv_indptr, lists.kv_indices, lists.q_indptr, lists.last_page_len):
        assert tensor.dtype == torch.int64
        assert tensor.is_contiguous()


def test_no_request_is_no_list() -> None:
    lists = page_lists(torch.zeros(2, 3, dtype=torch.int32), [], [], [])
    assert (lists.kv_indptr.tolist(), lists.kv_indices.tolist(), lists.longest) == ([0], [], 0)


def test_the_lists_are_copies() -> None:
    """SGLang writes to its table while a step runs."""
    table = torch.arange(4, dtype=torch.int64).view(1, 4)
    lists = page_lists(table, [0], [4], [1])
    table.zero_()
    assert lists.kv_indices.tolist() == [0, 1, 2, 3]


def layer(**changes: Any) -> Any:
    from sglang.srt.layers.radix_attention import AttentionType

    plain = {
        "qk_head_dim": 64,
        "v_head_dim": 64,
        "is_cross_attention": False,
        "attn_type": AttentionType.DECODER,
        "logit_capping_method": "tanh",
        "k_scale": None,
        "xai_temperature_len": -1,
    }
    return SimpleNamespace(**{**plain, **changes})


@pytest.mark.parametrize(
    ("changes", "accepted"),
    [
        ({}, True),
        ({"qk_head_dim": 16, "v_head_dim": 16}, True),
        ({"qk_head_dim": 100, "v_head_dim": 100}, False),
        ({"v_head_dim": 32}, False),
        ({"is_cross_attention": True}, False),
        ({"attn_type": "encoder_only"}, False),
        ({"logit_capping_method": "sigmoid"}, False),
        ({"k_scale": torch.ones(1)}, False),
        ({"xai_temperature_len": 1024}, False),
    ],
    ids=str,
)
def test_what_the_kernel_computes(changes: dict[str, Any], *, accepted: bool) -> None:
    assert supported(layer(**changes)) is accepted


def test_a_bfloat16_cache_is_seen_as_its_bits() -> None:
    """The same memory, no copy."""
    cache = torch.tensor([[[1.0, -2.0]]], dtype=torch.bfloat16)
    view = cache_view(cache)
    assert view.data_ptr() == cache.data_ptr()
    assert view.flatten().tolist() == [0x3F80, 0xC000]
    full = torch.zeros(1, 1, 2)
    assert cache_view(full) is full
