"""What pruning FlashInfer's page lists touches; checked where it is installed, in the scheduler process on a GPU.

A table of its own, because no other process builds attention backends, and because its registry is another one than that
of the rows of :mod:`.seam_table`.
"""

from __future__ import annotations

from sgl_entropic.runtime.seam import Mechanism, Seam

_HERE = "sgl_entropic.runtime.gpu.flashinfer_pruning."
_ATTENTION = "sglang.srt.layers.attention."
_FLASHINFER = _ATTENTION + "flashinfer_backend."
_PROCESSES = ("scheduler",)
_OFFICIAL = "never: it is an official door"
_FILTER = "SGLang asks which tokens a decode step reads"

ATTENTION_SEAMS: tuple[Seam, ...] = (
    Seam(
        _ATTENTION + "attention_registry.register_attention_backend",
        ("name",),
        Mechanism.REGISTRY,
        _HERE + "create_flashinfer_backend",
        "our FlashInfer backend, under SGLang's name for it: SGLang treats that name specially in many places",
        _PROCESSES,
        _OFFICIAL,
    ),
    Seam(
        _ATTENTION + "attention_registry.create_flashinfer_backend",
        ("runner",),
        Mechanism.USE,
        "",
        "backends of latent attention and of drafts",
        _PROCESSES,
        _OFFICIAL,
    ),
    Seam(
        _FLASHINFER + "FlashInferAttnBackend",
        (
            "self",
            "model_runner",
            "skip_prefill",
            "kv_indptr_buf",
            "kv_last_page_len_buf",
            "init_new_workspace",
        ),
        Mechanism.OVERRIDE,
        _HERE + "EntropicFlashInferBackend",
        "our writer of page lists in place of SGLang's",
        _PROCESSES,
        _FILTER,
    ),
    Seam(
        _FLASHINFER + "FlashInferAttnBackend.init_forward_metadata_out_graph",
        ("self", "forward_batch", "in_capture"),
        Mechanism.OVERRIDE,
        _HERE + "EntropicFlashInferBackend.init_forward_metadata_out_graph",
        "a CUDA graph is captured with full lists",
        _PROCESSES,
        _FILTER,
    ),
    Seam(
        _FLASHINFER + "FlashInferAttnBackend._check_kv_attention_access",
        ("self", "phase", "access"),
        Mechanism.USE,
        "",
        "a check that SGLang makes for its own class only",
        _PROCESSES,
        "SGLang makes it for subclasses",
    ),
    Seam(
        _FLASHINFER + "FlashInferIndicesUpdaterDecode",
        ("self", "model_runner", "attn_backend"),
        Mechanism.OVERRIDE,
        _HERE + "EntropicDecodeUpdater",
        "the page lists of a decode step",
        _PROCESSES,
        _FILTER,
    ),
    Seam(
        _FLASHINFER + "FlashInferIndicesUpdaterDecode.call_begin_forward",
        (
            "self",
            "wrapper",
            "paged_kernel_lens",
            "paged_kernel_lens_sum",
            "kv_indptr",
            "kv_start_idx",
            "spec_info",
            "seq_lens_cpu",
            "use_sliding_window_kv_pool",
            "fixed_split_size",
            "disable_split_kv",
            "plan",
            "req_pool_indices",
        ),
        Mechanism.OVERRIDE,
        _HERE + "EntropicDecodeUpdater.call_begin_forward",
        "leave tokens out of them, in the buffers that a CUDA graph knows",
        _PROCESSES,
        _FILTER,
    ),
    Seam(
        "sglang.srt.mem_cache.kv_index_translator.KVIndexTranslator.read_source",
        ("self", "plan", "req_pool_indices", "bs", "kind"),
        Mechanism.USE,
        "",
        "the table of slots that SGLang's own lists are made from",
        _PROCESSES,
        _FILTER,
    ),
    Seam(
        "flashinfer.decode.BatchDecodeWithPagedKVCacheWrapper.plan",
        (
            "self",
            "indptr",
            "indices",
            "last_page_len",
            "num_qo_heads",
            "num_kv_heads",
            "head_dim",
            "page_size",
        ),
        Mechanism.USE,
        "",
        "takes the lists of a step outside of CUDA graphs",
        _PROCESSES,
        _FILTER,
    ),
    Seam(
        "flashinfer.decode.fast_decode_plan",
        (
            "self",
            "indptr",
            "indices",
            "last_page_len",
            "num_qo_heads",
            "num_kv_heads",
            "head_dim",
            "page_size",
        ),
        Mechanism.USE,
        "",
        "takes them for a CUDA graph, copying neither, with the host's lengths",
        _PROCESSES,
        _FILTER,
    ),
)
