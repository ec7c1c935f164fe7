"""A model that runs module by module: each layer reads what the plan of the step says, against dense attention over just that."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sglang.srt.layers.quantization.fp4_kv_cache_quant_method import UnquantizedKVCacheMethod

from sgl_entropic.attention.pruning import Pruning, Reading
from sgl_entropic.attention.selection import QueryChoice, Selection
from sgl_entropic.attention.settings import AttentionSettings
from sgl_entropic.runtime.attention.request import Read, RequestPruning
from sgl_entropic.runtime.attention.step_plan import StepPlan
from sgl_entropic.runtime.cpu.attention import PagedCpuAttnBackend, PageLists, page_lists
from sgl_entropic.runtime.cpu.kv_pool import LazyKVPool
from sgl_entropic_kernels.reference_choice import code_keys, coded_scores
from sgl_entropic_kernels.reference_ops import Scoring

LAYERS, Q_HEADS, KV_HEADS, DIM, SLOTS, BLOCK = 2, 6, 2, 16, 300, 4
LENGTHS = [61, 40, 75]
SCALE = DIM**-0.5


def request(policy: str) -> RequestPruning:
    made = RequestPruning(Pruning(AttentionSettings(policy=policy)))  # type: ignore[arg-type]
    made.note(1, Read(1.0, 2))
    return made


@pytest.fixture
def backend() -> Any:
    generator = torch.Generator().manual_seed(5)
    pool = LazyKVPool.__new__(LazyKVPool)
    shape = (KV_HEADS, SLOTS, DIM)
    pool.k_buffer = [torch.randn(shape, generator=generator).permute(1, 0, 2) for _ in range(LAYERS)]
    pool.v_buffer = [torch.randn(shape, generator=generator).permute(1, 0, 2) for _ in range(LAYERS)]
    pool.start_layer, pool.layer_transfer_counter = 0, None
    pool.quant_method = UnquantizedKVCacheMethod.__new__(UnquantizedKVCacheMethod)
    pool.store_dtype = pool.dtype = torch.float32
    made = PagedCpuAttnBackend.__new__(PagedCpuAttnBackend)
    made.token_to_kv_pool = pool
    made.paged_calls = made.native_calls = 0
    made._layers = LAYERS
    return made


def layer(layer_id: int, **changes: Any) -> Any:
    from sglang.srt.layers.radix_attention import AttentionType

    plain = {
        "layer_id": layer_id, "tp_q_head_num": Q_HEADS, "tp_k_head_num": KV_HEADS, "qk_head_dim": DIM, "v_head_dim": DIM,
        "is_cross_attention": False, "attn_type": AttentionType.DECODER, "logit_capping_method": "tanh", "k_scale": None,
        "xai_temperature_len": -1, "scaling": SCALE, "sliding_window_size": None, "logit_cap": 0.0,
    }  # fmt: skip
    return SimpleNamespace(**{**plain, **changes})


def lists_of(plan: StepPlan) -> tuple[PageLists, list[Any]]:
    order = torch.randperm(SLOTS, generator=torch.Generator().manual_seed(6))
    table = order[: len(LENGTHS) * 100].view(len(LENGTHS), 100).to(torch.int32)
    lists = page_lists(table, [0, 1, 2], LENGTHS, [1, 1, 1])
    slots = [table[row, :length].long().numpy() for row, length in enumerate(LENGTHS)]
    made = PageLists(
        lists.kv_indptr, lists.kv_indices, lists.q_indptr, lists.last_page_len, lists.longest, plan=plan
    )
    return made, slots


def weights_and_output(backend: Any, at: int, query: Any, slots: Any) -> tuple[Any, Any]:
    """Dense attention in float64 over exactly these slots: weights ``[heads, tokens]`` and output ``[heads, dim]``."""
    groups = Q_HEADS // KV_HEADS
    keys = backend.token_to_kv_pool.k_buffer[at].double().numpy()[slots].repeat(groups, axis=1)
    values = backend.token_to_kv_pool.v_buffer[at].double().numpy()[slots].repeat(groups, axis=1)
    scores = np.einsum("hd,thd->ht", query, keys) * SCALE
    weights = np.exp(scores - scores.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    return weights, np.einsum("ht,thd->hd", weights, values)


def wanted_by(query: Any, keys: Any, choice: QueryChoice, cap: float = 0.0) -> Any:
    """Scores ``[kv_heads, blocks]`` of the oracle."""
    coded = code_keys(keys.float().numpy())
    scores, _ = coded_scores(query, coded, BLOCK, Scoring(SCALE, -1, cap), choice.bonus)
    return scores


def test_each_layer_reads_its_own_blocks(backend: Any) -> None:
    """A list for each layer, a choice by the query, and a row that reads all and is measured, in one step."""
    rng = np.random.default_rng(7)
    kept = rng.random((LAYERS, 12)) < 0.5
    kept[:, 0] = True
    choice = QueryChoice(9, 4, 1, 1, np.zeros(9, dtype=np.float32))
    plan = StepPlan(
        BLOCK,
        LENGTHS,
        [Reading(Selection(kept, 48), "kept"), Reading(choice, "kept"), Reading(None, "measure")],
        [request("attention"), request("mixed"), request("attention")],
    )
    backend.forward_metadata, slots = lists_of(plan)
    for at in range(LAYERS):
        queries = torch.randn(3, Q_HEADS * DIM, generator=torch.Generator().manual_seed(8 + at))
        got = backend.forward_decode(queries, None, None, layer(at), None, save_kv_cache=False)
        got = got.double().numpy().reshape(3, Q_HEADS, DIM)
        query = queries.double().numpy().reshape(3, Q_HEADS, DIM)
        visible = [t for t in range(LENGTHS[0]) if t >= 48 or kept[at, t // BLOCK]]
        _, expected = weights_and_output(backend, at, query[0], slots[0][visible])
        np.testing.assert_allclose(got[0], expected, atol=1e-5)
        held = backend.token_to_kv_pool.k_buffer[at][slots[1][:36]]
        wanted = wanted_by(query[1], held, choice)
        group = Q_HEADS // KV_HEADS
        for head in range(KV_HEADS):
            own = slice(head * group, (head + 1) * group)
            chosen = {0, 8, *(1 + np.argsort(-wanted[head][1:8])[:2])}
            visible = [t for t in range(LENGTHS[1]) if t >= 36 or t // BLOCK in chosen]
            _, expected = weights_and_output(backend, at, query[1], slots[1][visible])
            np.testing.assert_allclose(got[1, own], expected[own], atol=1e-5)
        weights, expected = weights_and_output(backend, at, query[2], slots[2])
        np.testing.assert_allclose(got[2], expected, atol=1e-5)
        mass = np.bincount(np.arange(LENGTHS[2]) // BLOCK, weights.mean(0))
        assert plan.mass is not None
        np.testing.assert_allclose(plan.mass[at, 2, :19], mass, atol=1e-5)
    plan.deliver()
    assert plan.requests[2] is not None
    assert plan.requests[2].mass is not None
    assert plan.requests[2].mass.shape == (LAYERS, 19)
    assert plan.requests[0] is not None
    assert plan.requests[0].mass is None
    assert (backend.paged_calls, backend.native_calls) == (LAYERS, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("others", ["all choose", "one reads all"])
def test_each_kv_head_reads_its_own_blocks(backend: Any, dtype: torch.dtype, others: str) -> None:
    """Several rows that choose, of different lengths, with capped scores."""
    pool = backend.token_to_kv_pool
    pool.k_buffer = [x.to(dtype) for x in pool.k_buffer]
    pool.v_buffer = [x.to(dtype) for x in pool.v_buffer]
    pool.store_dtype = pool.dtype = dtype
    chosen = {
        0: QueryChoice(12, 5, 1, 1, np.zeros(12, np.float32)),
        2: QueryChoice(17, 6, 2, 1, np.zeros(17, np.float32)),
    }
    if others == "all choose":
        chosen[1] = QueryChoice(9, 4, 1, 0, np.zeros(9, np.float32))
    rows = range(len(LENGTHS))
    plan = StepPlan(
        BLOCK,
        LENGTHS,
        [Reading(chosen[row], "kept") if row in chosen else None for row in rows],
        [request("mixed") if row in chosen else None for row in rows],
    )
    backend.forward_metadata, slots = lists_of(plan)
    cap = 1.5
    queries = torch.randn(3, Q_HEADS * DIM, generator=torch.Generator().manual_seed(9))
    got = backend.forward_decode(queries, None, None, layer(0, logit_cap=cap), None, save_kv_cache=False)
    query = queries.double().numpy().reshape(3, Q_HEADS, DIM)
    group = Q_HEADS // KV_HEADS
    for row in rows:
        keys, values = (
            x[0].double().numpy()[slots[row]].repeat(group, axis=1) for x in (pool.k_buffer, pool.v_buffer)
        )
        scores = cap * np.tanh(np.einsum("hd,thd->ht", query[row], keys) * SCALE / cap)
        choice = chosen.get(row)
        if choice is not None:
            held = pool.k_buffer[0][slots[row][: choice.blocks * BLOCK]]
            wanted = wanted_by(query[row], held, choice, cap)
            for head in range(KV_HEADS):
                own = slice(head * group, (head + 1) * group)
                inner = np.arange(choice.sinks, choice.blocks - choice.recent)
                count = choice.budget - choice.sinks - choice.recent
                best = inner[np.argsort(-wanted[head][inner])[:count]]
                left = np.setdiff1d(inner, best)
                scores[own][:, np.isin(np.arange(LENGTHS[row]) // BLOCK, left)] = -np.inf
        weights = np.exp(scores)
        expected = np.einsum("ht,thd->hd", weights / weights.sum(1, keepdims=True), values)
        np.testing.assert_allclose(got[row].double().numpy().reshape(Q_HEADS, DIM), expected, atol=2e-5)


def test_what_falls_back_says_that_it_read_all(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    kept = np.zeros((1, 12), dtype=np.bool_)
    plan = StepPlan(
        BLOCK, LENGTHS, [Reading(Selection(kept, 48), "kept"), None, None], [request("surprisal"), None, None]
    )
    backend.forward_metadata, _ = lists_of(plan)
    monkeypatch.setattr(TorchNativeAttnBackend, "forward_decode", lambda *_: torch.zeros(3, Q_HEADS * DIM))
    backend.forward_decode(
        torch.zeros(3, Q_HEADS * DIM), None, None, layer(0, k_scale=torch.ones(1)), None, False
    )
    assert plan.requests[0] is not None
    assert plan.requests[0].reads[-1] == Read(61.0, 61)
    assert backend.native_calls == 1
