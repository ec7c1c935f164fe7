"""Runs SGLang's FlashInfer backend and ours on CPU tensors, step by step as another process asks.

A program, to be started with ``TRITON_INTERPRET=1``: Triton decides when it is imported whether it interprets. Backends,
updaters, the translator of KV slots, their Triton kernels and FlashInfer's decode wrapper with both of its planners are the
real ones. What a machine without a GPU lacks is stood in for: the compiled module under the wrapper keeps what it is told
(:class:`Module`), "cuda" means the CPU, and memory is not pinned.
"""

from __future__ import annotations

import contextlib
import faulthandler
import pickle
import sys
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

POOL_ROWS, CONTEXT, MOST_ROWS = 12, 700, 8


class OnCpu(TorchFunctionMode):
    """Takes "cuda" for the CPU, and memory as it comes."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device")).startswith("cuda"):
            kwargs["device"] = "cpu"
        kwargs.pop("pin_memory", None)
        return func(*args, **kwargs)


class Module:
    """The compiled module under a decode wrapper: keeps the host's lengths that work is divided by."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def plan(self, *args: Any) -> None:
        self.told = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args[3:]]


def stand_in(module: Module) -> Any:
    """SGLang's backend module with what it imports only on a GPU, and without a server around it."""
    import flashinfer
    import flashinfer.cascade
    import flashinfer.decode
    import sglang.srt.layers.attention.flashinfer_backend as host
    import sglang.srt.mem_cache.kv_index_translator as translators
    from sglang.srt.environ import envs

    envs.SGLANG_FLASHINFER_WORKSPACE_SIZE.set(2**20)
    flashinfer.decode.get_batch_decode_module = lambda *_: module
    flashinfer.decode.get_batch_prefill_module = lambda *_: module
    torch.cuda.device = lambda *_: contextlib.nullcontext()  # type: ignore[assignment, misc]
    for name in ("BatchDecodeWithPagedKVCacheWrapper", "fast_decode_plan"):
        setattr(host, name, getattr(flashinfer, name))
    for name in ("BatchPrefillWithPagedKVCacheWrapper", "BatchPrefillWithRaggedKVCacheWrapper"):
        setattr(host, name, lambda *_, **__: None)
    parallel = SimpleNamespace(attn_tp_size=1, attn_dcp_size=1, dcp_enabled=False)
    host.get_parallel = translators.get_parallel = lambda: parallel
    host.get_exec = lambda: SimpleNamespace(
        features=SimpleNamespace(enable_mis=False),
        deterministic=SimpleNamespace(enable_deterministic_inference=False),
    )
    host.get_cuda_graph_max_batch_size = lambda size: size
    host.DllmConfig = SimpleNamespace(from_server_args=lambda _: None)
    return host


def runner(**changes: Any) -> Any:
    """A model runner as far as the backends look at it."""
    from sglang.srt.mem_cache.kv_index_translator import KVIndexTranslator

    access = SimpleNamespace(kind="direct", scale_recipe=None)
    quant = SimpleNamespace(
        resolve_attention_access=lambda *_: access,
        describe_attention_accesses=lambda _: "none",
        name="a method without decode",
    )
    pool = SimpleNamespace(get_kv_cache_quant_method=lambda: quant)
    table = torch.zeros((POOL_ROWS, CONTEXT), dtype=torch.int32)
    allocator = SimpleNamespace(get_kvcache=lambda: pool)
    config = SimpleNamespace(
        num_attention_heads=4,
        context_len=CONTEXT,
        head_dim=64,
        v_head_dim=64,
        is_multimodal=False,
        is_encoder_decoder=False,
        hf_config=SimpleNamespace(architectures=["LlamaForCausalLM"]),
        get_num_kv_heads=lambda *_: 4,
        get_max_num_attention_heads=lambda: 4,
    )
    made = SimpleNamespace(
        quant=quant,
        req_to_token_pool=SimpleNamespace(req_to_token=table, size=MOST_ROWS),
        token_to_kv_pool=pool,
        token_to_kv_pool_allocator=allocator,
        kv_index_translator=KVIndexTranslator(
            req_to_token=table,
            token_to_kv_pool_allocator=allocator,
            token_to_kv_pool=pool,
            page_size=1,
            device="cpu",
        ),
        model_config=config,
        server_args=None,
        prefill_attention_backend_str="flashinfer",
        decode_attention_backend_str="flashinfer",
        kv_cache_dtype=torch.float16,
        dtype=torch.float16,
        device="cpu",
        page_size=1,
        sliding_window_size=None,
        is_draft_worker=False,
        use_mla_backend=False,
        init_new_workspace=False,
    )
    vars(made).update(changes)
    return made


class World:
    """SGLang's backend and ours over one table of slots."""

    def __init__(self) -> None:
        from sglang.srt.layers.attention import attention_registry

        from sgl_entropic.runtime.gpu import flashinfer_pruning as ours

        self.module = Module()
        self.host = stand_in(self.module)
        ours.get_spec = attention_registry.get_spec = lambda: SimpleNamespace(speculative_algorithm=None)
        self.ours = ours
        self.runner = runner()
        self.backends = {"stock": attention_registry.ATTENTION_BACKENDS["flashinfer"](self.runner)}
        ours.install(16)
        self.backends["ours"] = attention_registry.ATTENTION_BACKENDS["flashinfer"](self.runner)
        self.kinds = {name: type(backend).__name__ for name, backend in self.backends.items()}
        for backend in self.backends.values():
            backend.init_cuda_graph_state(MOST_ROWS, MOST_ROWS)

    def batch(self, ask: dict[str, Any], spec_info: Any = None) -> Any:
        """A decode batch as its runner shows it to the backend, padded where it is for a CUDA graph."""
        from sglang.srt.model_executor.forward_batch_info import ForwardMode

        lengths = ask["lengths"] + [1] * ask["padding"]
        rows = ask["rows"] + [0] * ask["padding"]
        return SimpleNamespace(
            batch_size=len(lengths),
            req_pool_indices=torch.tensor(rows),
            seq_lens=torch.tensor(lengths),
            seq_lens_cpu=None if ask.get("no_host_lengths") else torch.tensor(lengths),
            seq_lens_sum=sum(lengths),
            positions=torch.tensor(lengths) - 1,
            encoder_lens=None,
            out_cache_loc=None,
            forward_mode=ForwardMode.DECODE,
            spec_info=spec_info,
            kv_loc_plan=None,
        )

    def plan(self, ask: dict[str, Any]) -> Any:
        from sgl_entropic.attention.selection import Selection
        from sgl_entropic.runtime.gpu.plan import GpuPlan

        if ask["kept"] is None:
            return None
        block = ask["block_tokens"]
        selections = [
            None if mask is None else Selection(mask[None], mask.shape[0] * block) for mask in ask["kept"]
        ]
        return GpuPlan(tuple(selections), tuple(ask.get("planned", ask["lengths"])), block)

    def step(self, ask: dict[str, Any]) -> dict[str, Any]:
        """One decode step of one backend: what FlashInfer was given."""
        from sgl_entropic.runtime.gpu.plan import published

        backend = self.backends[ask["backend"]]
        self.runner.req_to_token_pool.req_to_token.copy_(torch.from_numpy(ask["table"]))
        updater = backend.indices_updater_decode
        if ask["backend"] == "ours":
            updater.verified, updater.pruned_steps, updater.dense_steps = False, 0, 0
        spec_info = None
        if ask.get("spec"):
            spec_info = SimpleNamespace(
                kv_indptr=torch.arange(len(ask["lengths"]) + 1, dtype=torch.int32),
                kv_indices=torch.full((len(ask["lengths"]),), 9, dtype=torch.int32),
            )
        with published(self.plan(ask)) as state:
            if ask["graph"]:
                self.capture(backend, len(ask["lengths"]) + ask["padding"])
                captured = (state.asked, getattr(updater, "pruned_steps", 0))
                batch = self.batch(ask, spec_info)
                backend.init_forward_metadata_out_graph(batch, in_capture=False)
                wrapper = backend.decode_cuda_graph_metadata[batch.batch_size][0]
            elif ask.get("start") is not None:
                captured, wrapper = (False, 0), backend.decode_wrappers[0]
                self.windowed(backend, ask)
            else:
                captured, wrapper = (False, 0), backend.decode_wrappers[0]
                backend.init_forward_metadata(self.batch(ask, spec_info))
        static = (
            wrapper._paged_kv_indptr_buf.data_ptr() == backend.kv_indptr[0].data_ptr(),
            wrapper._paged_kv_indices_buf.data_ptr() == backend.cuda_graph_kv_indices[0].data_ptr(),
        )
        indptr = wrapper._paged_kv_indptr_buf.clone().numpy()
        return {
            "indptr": indptr,
            "indices": wrapper._paged_kv_indices_buf[: indptr[-1]].clone().numpy(),
            "last_page_len": wrapper._paged_kv_last_page_len_buf.clone().numpy(),
            "told": self.module.told,
            "static": static,
            "captured": captured,
            "fast": hasattr(wrapper.begin_forward, "func"),
            "asked": state.asked,
            "used": state.used,
            "steps": (getattr(updater, "pruned_steps", None), getattr(updater, "dense_steps", None)),
            "verified": getattr(updater, "verified", None),
            "override_left": self.host.global_override_indptr_cpu,
        }

    def windowed(self, backend: Any, ask: dict[str, Any]) -> None:
        """What SGLang asks for of a layer with a sliding window, or of cross attention."""
        lengths = torch.tensor(ask["lengths"])
        start = torch.tensor(ask["start"])
        backend.indices_updater_decode.call_begin_forward(
            backend.decode_wrappers[0],
            lengths - start,
            int((lengths - start).sum()),
            backend.kv_indptr[0],
            start,
            None,
            seq_lens_cpu=lengths - start,
            plan=None,
            req_pool_indices=torch.tensor(ask["rows"]),
        )

    def capture(self, backend: Any, rows: int) -> None:
        """A CUDA graph is captured with a batch of row 0 and one token each."""
        fill = {"lengths": [1] * rows, "rows": [0] * rows, "padding": 0}
        backend.init_forward_metadata_out_graph(self.batch(fill), in_capture=True)

    def build(self, ask: dict[str, Any]) -> str:
        """Build a backend for another model, and say what it is."""
        from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS

        changes = dict(ask["changes"])
        made = runner()
        if changes.pop("no_access", False):
            made.quant.resolve_attention_access = lambda *_: None
        if changes.pop("workspace", False):
            from sglang.srt.layers.quantization.fp4_kv_cache_quant_method import KVCacheAttentionAccessKind

            access = SimpleNamespace(kind=KVCacheAttentionAccessKind.DEQUANT_WORKSPACE, scale_recipe=None)
            made.quant.resolve_attention_access = lambda *_: access
        if changes.pop("virtual", False):
            made.kv_index_translator.is_translating = True
        vars(made).update(changes)
        return type(ATTENTION_BACKENDS["flashinfer"](made)).__name__

    def tampered(self, ask: dict[str, Any]) -> dict[str, Any]:
        """A step in a SGLang, or with a kernel, that does something else."""
        kept, original = self.ours.write_lists, self.host.FlashInferIndicesUpdaterDecode.call_begin_forward

        def shifted(*args: Any) -> None:
            kept(*args)
            args[4].add_(1)

        def deaf(updater: Any, *args: Any, **kwargs: Any) -> None:
            without = SimpleNamespace(kv_indptr=None)
            original(updater, *args[:5], without if args[5] is not None else None, *args[6:], **kwargs)

        try:
            if ask["tamper"] == "kernel":
                self.ours.write_lists = shifted
            else:
                self.host.FlashInferIndicesUpdaterDecode.call_begin_forward = deaf
            return self.step(ask)
        finally:
            self.ours.write_lists = kept
            self.host.FlashInferIndicesUpdaterDecode.call_begin_forward = original


def main() -> None:
    """Answer until told to stop."""
    # A test that waits for an answer in vain should be able to say where.
    faulthandler.dump_traceback_later(200, repeat=True)
    out = sys.stdout.buffer
    sys.stdout = sys.stderr
    with OnCpu():
        world = World()
        pickle.dump(world.kinds, out)
        out.flush()
        while (ask := pickle.load(sys.stdin.buffer)) is not None:
            try:
                answer: Any = getattr(world, ask["do"])(ask)
            except Exception as error:  # noqa: BLE001 -- whatever it is, the test is to see it
                answer = f"{type(error).__name__}: {error}"
            pickle.dump(answer, out)
            out.flush()


if __name__ == "__main__":
    main()
