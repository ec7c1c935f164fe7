"""A decoder of the Llama and Qwen families as one compiled call, in place of its modules' forwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.rotary_embedding.base import RotaryEmbedding
from sglang.srt.model_executor.forward_context import get_attn_backend

from sgl_entropic.runtime.cpu.attention import PagedCpuAttnBackend, PageLists, cache_view, supported
from sgl_entropic.runtime.cpu.kv_pool import LazyKVPool
from sgl_entropic.runtime.cpu.weights import PackedEmbeddingMethod, PackedLinearMethod
from sgl_entropic_kernels.native import library

FAMILIES = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})


class UnfusableError(Exception):
    """Why a model runs module by module instead."""


class FusedDecoder:
    """Stands in for the ``forward`` of a ``LlamaModel``, ``Qwen2Model`` or ``Qwen3Model``.

    Attributes:
        fused_steps: forward passes computed by the one call.
        fused_tokens: new tokens in them.
        module_steps: forward passes handed to the modules, because the step asked for what the call does not do.
        last_backend: ``fused`` or ``modules``, whichever ran last.
    """

    def __init__(self, model: Any) -> None:
        """Build the call from a packed model.

        Raises:
            UnfusableError: the model has something that the call does not compute.
        """
        self._native = _build(model)
        self._body = model.model
        self._modules_forward: Callable[..., Any] = self._body.forward
        self._positions = self._body.layers[0].self_attn.rotary_emb.cos_sin_cache.shape[0]
        self._attached = False
        self.fused_steps = 0
        self.fused_tokens = 0
        self.module_steps = 0
        self.last_backend = ""
        self._body.forward = self.forward

    def attach(self, pool: Any) -> None:
        """Read and write the keys and values of SGLang's ``pool``."""
        if type(pool) is not LazyKVPool:
            raise TypeError(f"{type(pool).__name__} instead of {LazyKVPool.__name__}")
        self._native.set_cache(
            [cache_view(buffer) for buffer in pool.k_buffer], [cache_view(buffer) for buffer in pool.v_buffer]
        )
        # The call holds bare addresses: the pool must outlive it.
        self._pool = pool
        self._attached = True

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        forward_batch: Any,
        input_embeds: torch.Tensor | None = None,
        pp_proxy_tensors: Any = None,
    ) -> Any:
        """Final hidden states ``[T, hidden]`` of the new tokens; their keys and values are written to the pool."""
        backend = get_attn_backend()
        lists = backend.forward_metadata if isinstance(backend, PagedCpuAttnBackend) else None
        plain = (
            self._attached
            and input_embeds is None
            and pp_proxy_tensors is None
            and not self._body.layers_to_capture
            and input_ids.numel() > 0
            and not self._hooked()
        )
        if not plain or lists is None or lists.longest > self._positions:
            self.module_steps += 1
            self.last_backend = "modules"
            return self._modules_forward(input_ids, positions, forward_batch, input_embeds, pp_proxy_tensors)
        hidden = torch.empty(input_ids.shape[0], self._body.config.hidden_size)
        self._native.forward(
            input_ids.long().contiguous(),
            positions.long().contiguous(),
            forward_batch.out_cache_loc.long().contiguous(),
            lists.kv_indptr,
            lists.kv_indices,
            lists.q_indptr,
            hidden,
            **self._blocks(lists),
        )
        self.fused_steps += 1
        self.fused_tokens += input_ids.shape[0]
        self.last_backend = "fused"
        return hidden

    def _blocks(self, lists: PageLists) -> dict[str, Any]:
        if lists.plan is None:
            return {}
        attention = self._body.layers[0].self_attn
        return lists.blocks(len(self._body.layers), attention.num_kv_heads, attention.head_dim)

    def _hooked(self) -> bool:
        """Whether someone hooked into a layer (``--forward-hooks``), who would hear nothing of a fused pass."""
        first = self._body.layers[0]
        return any(
            module._forward_hooks or module._forward_pre_hooks
            for module in (first, first.self_attn, first.mlp)
        )


def _build(model: Any) -> Any:
    if type(model).__name__ not in FAMILIES:
        raise UnfusableError(f"{type(model).__name__} is not one of {', '.join(sorted(FAMILIES))}")
    body = model.model
    first = body.layers[0].self_attn
    rotary, attention = first.rotary_emb, first.attn
    _require(type(rotary).forward_native is RotaryEmbedding.forward_native, f"its {type(rotary).__name__}")
    _require(rotary.position_start == 0, "a rotary embedding that starts elsewhere than 0")
    _require(supported(attention), "its kind of attention")
    normed = hasattr(first, "q_norm")
    native = library().Decoder(
        embedding=_packed(body.embed_tokens, PackedEmbeddingMethod),
        final_norm=_norm(body.norm),
        q_heads=first.num_heads,
        kv_heads=first.num_kv_heads,
        head_dim=first.head_dim,
        intermediate=body.layers[0].mlp.down_proj.input_size_per_partition,
        eps=body.norm.variance_epsilon,
        head_eps=first.q_norm.variance_epsilon if normed else 0.0,
        scale=attention.scaling,
        window=attention.sliding_window_size if attention.sliding_window_size is not None else -1,
        logit_cap=attention.logit_cap or 0.0,
        rope_table=rotary.cos_sin_cache.float().contiguous(),
        neox=rotary.is_neox_style,
    )
    for layer in body.layers:
        _add_layer(native, layer, attention, body.norm.variance_epsilon, rotary)
    return native


def _add_layer(native: Any, layer: Any, like: Any, eps: float, rotary: Any) -> None:
    attention, mlp = layer.self_attn, layer.mlp
    same = (
        attention.rotary_emb.cos_sin_cache is rotary.cos_sin_cache
        and attention.attn.sliding_window_size == like.sliding_window_size
        and attention.attn.logit_cap == like.logit_cap
        and layer.input_layernorm.variance_epsilon == eps == layer.post_attention_layernorm.variance_epsilon
    )
    _require(same, "layers that differ from each other")
    _require(supported(attention.attn), "its kind of attention")
    _require(type(mlp.act_fn).__name__ == "SiluAndMul", "its activation function")
    normed = hasattr(attention, "q_norm")
    native.add_layer(
        qkv=_packed(attention.qkv_proj, PackedLinearMethod),
        o=_packed(attention.o_proj, PackedLinearMethod),
        gate_up=_packed(mlp.gate_up_proj, PackedLinearMethod, bias=False),
        down=_packed(mlp.down_proj, PackedLinearMethod, bias=False),
        input_norm=_norm(layer.input_layernorm),
        post_norm=_norm(layer.post_attention_layernorm),
        qkv_bias=_bias(attention.qkv_proj),
        o_bias=_bias(attention.o_proj),
        q_norm=_norm(attention.q_norm) if normed else None,
        k_norm=_norm(attention.k_norm) if normed else None,
    )


def _require(condition: object, what: str) -> None:
    if not condition:
        raise UnfusableError(f"the fused call does not compute {what}")


def _packed(module: Any, method: type, *, bias: bool = True) -> Any:
    _require(
        isinstance(getattr(module, "quant_method", None), method),
        f"a {type(module).__name__} that is not packed",
    )
    _require(bias or _bias(module) is None, "a bias in the MLP")
    return module.quant_method.packed


def _bias(module: Any) -> torch.Tensor | None:
    bias = getattr(module, "bias", None)
    return None if bias is None else bias.detach().float().contiguous()


def _norm(module: Any) -> torch.Tensor:
    _require(
        type(module) is RMSNorm and module.variance_size_override is None, f"its {type(module).__name__}"
    )
    weight: torch.Tensor = module.weight.detach().float().contiguous()
    return weight
