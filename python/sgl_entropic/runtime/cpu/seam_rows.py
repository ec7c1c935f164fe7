"""What the fast path touches in SGLang, checked in the scheduler process of the portable CPU platform only.

A row of its own table, because the targets (model classes among them) are loaded by no other process.
"""

from __future__ import annotations

from typing import Any

from sglang.kernels.fused_op import BaseFusedOp
from sglang.srt.layers.activation import SiluAndMul
from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
from sglang.srt.layers.layernorm import RMSNorm

from sgl_entropic.errors import SeamError
from sgl_entropic.runtime.seam import Mechanism, Seam
from sgl_entropic.runtime.seams import problems_of

_HERE = "sgl_entropic.runtime.cpu."
_SRT = "sglang.srt."
_PROCESSES = ("scheduler",)
_OFFICIAL = "never: it is an official door"

CPU_SEAMS: tuple[Seam, ...] = (
    Seam(
        _SRT + "platforms.interface.SRTPlatform.post_load_model",
        ("self", "model"),
        Mechanism.PLATFORM,
        "sgl_entropic.runtime.cpu_platform.PortableCpuPlatform.post_load_model",
        "pack the weights, swap the quantisation methods, replace the decoder's forward",
        _PROCESSES,
        _OFFICIAL,
    ),
    Seam(
        _SRT + "platforms.interface.SRTPlatform.init_backend",
        ("self",),
        Mechanism.PLATFORM,
        "sgl_entropic.runtime.cpu_platform.PortableCpuPlatform.init_backend",
        "threads; the registrations below",
        _PROCESSES,
        _OFFICIAL,
    ),
    Seam(
        _SRT + "platforms.interface.SRTPlatform.get_kv_pool_cls",
        ("self", "kind"),
        Mechanism.PLATFORM,
        "sgl_entropic.runtime.cpu_platform.PortableCpuPlatform.get_kv_pool_cls",
        "a pool that takes its memory as it is used",
        _PROCESSES,
        _OFFICIAL,
    ),
    Seam(
        _SRT + "mem_cache.memory_pool.MHATokenToKVPool._create_buffers_normal",
        ("self",),
        Mechanism.OVERRIDE,
        _HERE + "kv_pool.LazyKVPool._create_buffers_normal",
        "where the pool's zeros come from",
        _PROCESSES,
        "torch.zeros leaves fresh memory alone",
    ),
    Seam(
        _SRT + "layers.attention.attention_registry.register_attention_backend",
        ("name",),
        Mechanism.REGISTRY,
        _HERE + "fast_path.create_attention_backend",
        "paged attention, under the name torch_native: SGLang asks for that name where it avoids Triton and graphs",
        _PROCESSES,
        "an attention backend can say that it wants neither",
    ),
    Seam(
        "sglang.kernels.fused_op.BaseFusedOp.register_oot_forward",
        ("cls", "op_cls", "fn", "platform_key"),
        Mechanism.REGISTRY,
        _HERE + "fused_ops.rms_norm",
        "fused norm and activation for models that run module by module",
        _PROCESSES,
        _OFFICIAL,
    ),
    Seam(
        _SRT + "layers.attention.torch_native_backend.TorchNativeAttnBackend.init_forward_metadata",
        ("self", "forward_batch"),
        Mechanism.OVERRIDE,
        _HERE + "attention.PagedCpuAttnBackend.init_forward_metadata",
        "the page lists of a step",
        _PROCESSES,
        _OFFICIAL,
    ),
    Seam(
        _SRT + "layers.attention.torch_native_backend.TorchNativeAttnBackend.forward_extend",
        ("self", "q", "k", "v", "layer", "forward_batch", "save_kv_cache"),
        Mechanism.OVERRIDE,
        _HERE + "attention.PagedCpuAttnBackend.forward_extend",
        "new tokens against the pages of their request",
        _PROCESSES,
        _OFFICIAL,
    ),
    Seam(
        _SRT + "layers.attention.torch_native_backend.TorchNativeAttnBackend.forward_decode",
        ("self", "q", "k", "v", "layer", "forward_batch", "save_kv_cache"),
        Mechanism.OVERRIDE,
        _HERE + "attention.PagedCpuAttnBackend.forward_decode",
        "one token against the pages of its request",
        _PROCESSES,
        _OFFICIAL,
    ),
    Seam(
        _SRT + "layers.quantization.unquant.UnquantizedLinearMethod.apply",
        ("self", "layer", "x", "bias"),
        Mechanism.OVERRIDE,
        _HERE + "weights.PackedLinearMethod.apply",
        "products with packed weights",
        _PROCESSES,
        _OFFICIAL,
    ),
    Seam(
        _SRT + "layers.quantization.unquant.UnquantizedEmbeddingMethod.embedding",
        ("self", "layer", "input_"),
        Mechanism.OVERRIDE,
        _HERE + "weights.PackedEmbeddingMethod.embedding",
        "rows of the packed vocabulary",
        _PROCESSES,
        _OFFICIAL,
    ),
    Seam(
        _SRT + "models.llama.LlamaModel.forward",
        ("self", "input_ids", "positions", "forward_batch", "input_embeds", "pp_proxy_tensors"),
        Mechanism.OVERRIDE,
        _HERE + "decoder.FusedDecoder.forward",
        "the whole decoder in one call, on the instance",
        _PROCESSES,
        "a platform can bring the forward of a model",
    ),
    Seam(
        _SRT + "models.qwen2.Qwen2Model.forward",
        ("self", "input_ids", "positions", "forward_batch", "input_embeds", "pp_proxy_tensors"),
        Mechanism.OVERRIDE,
        _HERE + "decoder.FusedDecoder.forward",
        "likewise for Qwen2 and Qwen3",
        _PROCESSES,
        "a platform can bring the forward of a model",
    ),
    Seam(
        _SRT + "model_executor.forward_context.get_attn_backend",
        (),
        Mechanism.USE,
        "",
        "the page lists of the step that runs",
        _PROCESSES,
        _OFFICIAL,
    ),
    Seam(
        _SRT + "mem_cache.memory_pool.MHATokenToKVPool.get_key_buffer",
        ("self", "layer_id"),
        Mechanism.USE,
        "",
        "keys and values of a layer",
        _PROCESSES,
        _OFFICIAL,
    ),
    Seam(
        _SRT + "model_executor.forward_batch_info.ForwardBatch",
        ("forward_mode", "req_pool_indices", "seq_lens", "out_cache_loc", "extend_seq_lens", "encoder_lens"),
        Mechanism.FIELDS,
        "",
        "requests, slots and lengths of a step",
        _PROCESSES,
        "never: attention needs them",
    ),
)


def verify_cpu(backend_factory: Any, norm: Any, activation: Any, key: str) -> None:
    """Raise :class:`SeamError` unless SGLang has the targets of the table and our registrations hold.

    Args:
        backend_factory: what must be SGLang's factory of the platform's attention backend.
        norm: what must be its forward of ``RMSNorm``.
        activation: what must be its forward of ``SiluAndMul``.
        key: the platform's dispatch key.
    """
    problems = problems_of(CPU_SEAMS)
    if ATTENTION_BACKENDS.get("torch_native") is not backend_factory:
        problems.append("attention_registry.ATTENTION_BACKENDS: ours is not installed")
    forwards = BaseFusedOp._oot_forward_registry.get(key, {})
    if forwards.get(RMSNorm) is not norm or forwards.get(SiluAndMul) is not activation:
        problems.append("BaseFusedOp.register_oot_forward: ours are not installed")
    if problems:
        raise SeamError("the CPU fast path cannot be installed: " + "; ".join(problems))
