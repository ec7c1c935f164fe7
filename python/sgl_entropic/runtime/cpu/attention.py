"""Paged attention on the CPU: only new tokens are computed, and each reads exactly the pages on its request's list."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import KVWriteLoc

from sgl_entropic.attention.selection import QueryChoice, Selection
from sgl_entropic.runtime.attention.request import RequestPruning
from sgl_entropic.runtime.attention.step_plan import StepPlan, current
from sgl_entropic.runtime.cpu.kv_pool import LazyKVPool
from sgl_entropic_kernels.native import library


@dataclass(frozen=True, slots=True)
class PageLists:
    """What each request of a step reads; pages of one token, thus token slots.

    Attributes:
        kv_indptr: ``[requests + 1]`` where a request's slots begin.
        kv_indices: slots of all requests, in the order of their tokens.
        q_indptr: ``[requests + 1]`` where a request's queries begin; they are its last tokens.
        last_page_len: ``[requests]`` ones.
        longest: tokens of the longest request.
        plan: which blocks of these lists are read; ``None`` reads all.
    """

    kv_indptr: torch.Tensor
    kv_indices: torch.Tensor
    q_indptr: torch.Tensor
    last_page_len: torch.Tensor
    longest: int
    plan: StepPlan | None = None

    def blocks(self, layers: int, kv_heads: int, head_dim: int) -> dict[str, Any]:
        """What the compiled decoder takes in addition, its buffer for the measured mass included."""
        plan = self.plan
        if plan is None:
            return {}
        arguments: dict[str, Any] = {"block_tokens": plan.block_tokens}
        if plan.prunes:
            arguments["kept"], arguments["tail"] = plan.masks()
            arguments["choices"] = plan.choices(lambda request: keys_of(request, layers, kv_heads, head_dim))
        if plan.measures:
            arguments["mass"] = self.mass(layers)
        return arguments

    def mass(self, layers: int) -> NDArray[np.float32]:
        """The plan's buffer ``[layers, requests, blocks]`` for the attention that blocks receive."""
        assert self.plan is not None
        if self.plan.mass is None:
            blocks = -(-self.longest // self.plan.block_tokens)
            self.plan.mass = np.zeros((layers, len(self.plan.lengths), blocks), np.float32)
        return self.plan.mass


def keys_of(request: RequestPruning, layers: int, kv_heads: int, head_dim: int) -> Any:
    """What stands for the blocks of a request's keys, made when they are first needed."""
    if request.keys is None:
        bounds = request.policy.settings.policy == "quest"
        request.keys = library().BlockKeys(layers, kv_heads, head_dim, bounds)
    return request.keys


def page_lists(
    req_to_token: torch.Tensor, rows: list[int], lengths: list[int], queries: list[int]
) -> PageLists:
    """The lists of requests that read all of their tokens.

    Args:
        req_to_token: ``[rows, context]`` SGLang's table of slots.
        rows: row of each request.
        lengths: tokens of each request, new ones included.
        queries: new tokens of each request.
    """
    parts = [req_to_token[row, :length] for row, length in zip(rows, lengths, strict=True)]
    indices = torch.cat(parts).long() if parts else torch.empty(0, dtype=torch.int64)
    return PageLists(
        kv_indptr=torch.tensor([0, *accumulate(lengths)]),
        kv_indices=indices,
        q_indptr=torch.tensor([0, *accumulate(queries)]),
        last_page_len=torch.ones(len(rows), dtype=torch.int64),
        longest=max(lengths, default=0),
    )


class PagedCpuAttnBackend(TorchNativeAttnBackend):
    """SGLang's attention interface over the compiled kernel; what that cannot do falls back to SGLang's own.

    Attributes:
        forward_metadata: the page lists of the current step.
        paged_calls: layers computed by the compiled kernel, one by one.
        native_calls: layers that fell back.
    """

    forward_metadata: PageLists | None

    def __init__(self, model_runner: Any) -> None:
        super().__init__(model_runner)
        self._layers = model_runner.model_config.num_hidden_layers
        self.paged_calls = 0
        self.native_calls = 0

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Build the page lists of the step."""
        super().init_forward_metadata(forward_batch)
        self.forward_metadata = None
        mode = forward_batch.forward_mode
        if mode.is_idle() or forward_batch.encoder_lens is not None:
            return
        lengths = forward_batch.seq_lens.tolist()
        if mode.is_decode():
            queries = [1] * len(lengths)
        elif mode.is_extend() and forward_batch.extend_seq_lens is not None:
            queries = forward_batch.extend_seq_lens.tolist()
        else:
            return
        rows = forward_batch.req_pool_indices.tolist()
        plan = current() if mode.is_decode() else None
        if plan is not None and plan.lengths != lengths:
            raise RuntimeError(
                f"the plan of the step is for contexts of {plan.lengths} tokens, not {lengths}"
            )
        lists = page_lists(self.req_to_token_pool.req_to_token, rows, lengths, queries)
        self.forward_metadata = lists if plan is None else replace(lists, plan=plan)

    def forward_extend(
        self, q: torch.Tensor, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool = True
    ) -> torch.Tensor:
        """New tokens of every request against all of its tokens."""
        return self._forward(super().forward_extend, q, k, v, layer, forward_batch, save_kv_cache)

    def forward_decode(
        self, q: torch.Tensor, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool = True
    ) -> torch.Tensor:
        """One new token of every request."""
        return self._forward(super().forward_decode, q, k, v, layer, forward_batch, save_kv_cache)

    def _forward(
        self,
        native: Any,
        q: torch.Tensor,
        k: Any,
        v: Any,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool,
    ) -> torch.Tensor:
        lists = self.forward_metadata
        if lists is None or not self._paged(layer, q):
            self.native_calls += 1
            if lists is not None and lists.plan is not None:
                # SGLang's own operations know no list of ours, and a report must not say what they did not do.
                lists.plan.not_followed()
            native_out: torch.Tensor = native(q, k, v, layer, forward_batch, save_kv_cache)
            return native_out
        self.paged_calls += 1
        if save_kv_cache and k is not None:
            self.token_to_kv_pool.set_kv_buffer(
                layer, KVWriteLoc(forward_batch.out_cache_loc, self.swa_out_cache_loc), k, v
            )
        heads, width = layer.tp_q_head_num, layer.qk_head_dim
        queries = q.reshape(-1, heads, width).float().contiguous()
        out = torch.empty_like(queries)
        kv_indptr, kv_indices = lists.kv_indptr, lists.kv_indices
        if lists.plan is not None and lists.plan.prunes:
            kv_indptr, kv_indices = self._visible(lists, layer)
        mass = torch.zeros(len(kv_indices)) if lists.plan is not None and lists.plan.measures else None
        library().paged_attention(
            queries,
            cache_view(self.token_to_kv_pool.get_key_buffer(layer.layer_id)),
            cache_view(self.token_to_kv_pool.get_value_buffer(layer.layer_id)),
            kv_indptr,
            kv_indices,
            lists.last_page_len,
            1,
            layer.scaling,
            out,
            lists.q_indptr,
            layer.sliding_window_size if layer.sliding_window_size is not None else -1,
            layer.logit_cap or 0.0,
            None,
            mass,
        )
        if mass is not None:
            self._take_mass(lists, layer.layer_id, kv_indptr, mass)
        if lists.plan is not None and lists.plan.prunes:
            self._read_by_head(lists, layer, queries, out)
        return out.to(q.dtype).view(-1, heads * width)

    def _visible(self, lists: PageLists, layer: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """``kv_indptr`` and ``kv_indices`` of what is read in one layer; nothing where each KV head reads its own."""
        plan = lists.plan
        assert plan is not None
        parts, starts = [], lists.kv_indptr.tolist()
        for row, selection in enumerate(plan.selections()):
            slots = lists.kv_indices[starts[row] : starts[row + 1]]
            if isinstance(selection, QueryChoice):
                slots = slots[:0]
            elif selection is not None:
                at = min(layer.layer_id, selection.kept.shape[0] - 1)
                slots = slots[torch.from_numpy(selection.positions(len(slots), plan.block_tokens, at))]
            parts.append(slots)
        return torch.tensor([0, *accumulate(map(len, parts))]), torch.cat(parts)

    def _read_by_head(self, lists: PageLists, layer: Any, queries: torch.Tensor, out: torch.Tensor) -> None:
        """Fill the rows of ``out [requests, q_heads, head_dim]`` that choose by their query.

        The cache ``[slots, kv_heads, head_dim]``, heads first in memory, is seen as one of a single head: slot ``s`` of head
        ``h`` is ``h * slots + s``, and what a KV head reads is a request of its own.
        """
        plan, heads, width = lists.plan, layer.tp_k_head_num, layer.qk_head_dim
        assert plan is not None
        choices = plan.choices(lambda r: keys_of(r, self._layers, heads, width))
        if choices is None:
            return
        cap, block, starts = layer.logit_cap or 0.0, plan.block_tokens, lists.kv_indptr.tolist()
        keys = cache_view(self.token_to_kv_pool.get_key_buffer(layer.layer_id))
        rows, parts = [], []
        for row, choice in enumerate(choices):
            if choice is None:
                continue
            slots, blocks = lists.kv_indices[starts[row] : starts[row + 1]], choice[1]
            kept = np.zeros((heads, blocks), np.uint8)
            library().choose_blocks(
                choice, layer.layer_id, queries[row], keys, slots, block, layer.scaling, cap, kept
            )
            seen = Selection(kept.astype(np.bool_), blocks * block)
            parts += [
                slots[torch.from_numpy(seen.positions(len(slots), block, h))] + h * len(keys)
                for h in range(heads)
            ]
            rows.append(row)
        of_heads = queries[rows].view(len(parts), -1, width)
        found = torch.empty_like(of_heads)
        values = cache_view(self.token_to_kv_pool.get_value_buffer(layer.layer_id))
        library().paged_attention(
            of_heads,
            keys.permute(1, 0, 2).view(-1, 1, width),
            values.permute(1, 0, 2).view(-1, 1, width),
            torch.tensor([0, *accumulate(map(len, parts))]),
            torch.cat(parts),
            torch.ones(len(parts), dtype=torch.int64),
            1,
            layer.scaling,
            found,
            torch.arange(len(parts) + 1),
            layer.sliding_window_size if layer.sliding_window_size is not None else -1,
            cap,
        )
        out[rows] = found.view(len(rows), *out.shape[1:])

    def _take_mass(
        self, lists: PageLists, layer_id: int, kv_indptr: torch.Tensor, mass: torch.Tensor
    ) -> None:
        plan = lists.plan
        assert plan is not None
        to, starts = lists.mass(self._layers)[layer_id], kv_indptr.tolist()
        for row, selection in enumerate(plan.selections()):
            if selection is None:
                tokens = mass[starts[row] : starts[row + 1]].numpy()
                np.add.at(to[row], np.arange(len(tokens)) // plan.block_tokens, tokens)

    def _paged(self, layer: Any, q: torch.Tensor) -> bool:
        return bool(
            supported(layer)
            and type(self.token_to_kv_pool) is LazyKVPool
            and q.numel() > 0
            and self.token_to_kv_pool.get_key_buffer(layer.layer_id).dtype in (torch.float32, torch.bfloat16)
        )


def supported(layer: Any) -> bool:
    """Whether the compiled kernel computes this ``RadixAttention``."""
    return bool(
        layer.qk_head_dim == layer.v_head_dim
        and layer.qk_head_dim % 16 == 0
        and not layer.is_cross_attention
        and layer.attn_type == AttentionType.DECODER
        and layer.logit_capping_method == "tanh"
        and layer.k_scale is None
        and layer.xai_temperature_len <= 0
    )


def cache_view(cache: torch.Tensor) -> torch.Tensor:
    """The cache as the kernels take it: bfloat16 seen as 16 bits."""
    return cache.view(torch.uint16) if cache.dtype == torch.bfloat16 else cache
