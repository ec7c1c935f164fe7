"""SGLang's FlashInfer backend, whose decode steps read what the plan of the step selects.

FlashInfer's paged decode takes, for each row, a list of KV slots (SGLang plans it with pages of one token). SGLang builds
the lists outside of the CUDA graph, before every step, in ``FlashInferIndicesUpdaterDecode.call_begin_forward``; the
subclass here writes them without the tokens that are left out, into the same buffers, and hands them on through the
argument by which SGLang's own speculative decoding brings ready-made lists. Keys are stored rotated, so a token that is
read is read exactly as before. Nothing is freed and nothing shared is touched.

Without a plan every call goes to SGLang's method unchanged. What holds with one:

* ``kv_indptr`` stays the backend's static tensor; in a CUDA graph ``kv_indices`` is the wrapper's static buffer.
* Lengths come from the host, on both sides: FlashInfer divides its work by the host's numbers. No device value is waited
  for, except once: the first pruned step compares its lists, with everything kept, with SGLang's.
* The newest token of every row is read, since its key and value are written in this step.
"""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from sglang.srt.layers.attention import attention_registry
from sglang.srt.layers.attention.flashinfer_backend import (
    FlashInferAttnBackend,
    FlashInferIndicesUpdaterDecode,
)
from sglang.srt.runtime_context import get_spec

from sgl_entropic.attention.selection import Selection
from sgl_entropic.errors import SeamError, UnsupportedError
from sgl_entropic.runtime.gpu.plan import GpuPlan, current
from sgl_entropic.runtime.gpu.refusals import BACKEND
from sgl_entropic.runtime.seam_table_attention import ATTENTION_SEAMS
from sgl_entropic.runtime.seams import problems_of
from sgl_entropic_kernels.triton_pages import (
    HostLists,
    PackedBlocks,
    host_lists,
    pack_blocks,
    reference_lists,
    write_lists,
)

logger = logging.getLogger(__name__)

_OFF = "use --entropic-attention off"


class EntropicDecodeUpdater(FlashInferIndicesUpdaterDecode):
    """Writes the lists of a decode step.

    Attributes:
        capturing: whether a CUDA graph is being captured; its fill batch is not that of the plan.
        pruned_steps: steps whose lists left something out.
        dense_steps: steps that had a plan and read all the same.
        verified: whether keeping everything has been compared with SGLang's lists.
    """

    def __init__(self, model_runner: Any, attn_backend: Any) -> None:
        super().__init__(model_runner, attn_backend)
        self.capturing = False
        self.pruned_steps = 0
        self.dense_steps = 0
        self.verified = False
        # By the identity of a selection, which is held so that no other can have it.
        self._packed: dict[int, tuple[Selection, PackedBlocks]] = {}

    def call_begin_forward(  # noqa: PLR0913, PLR0917 -- SGLang's signature
        self,
        wrapper: Any,
        paged_kernel_lens: torch.Tensor,
        paged_kernel_lens_sum: int,
        kv_indptr: torch.Tensor,
        kv_start_idx: torch.Tensor | None,
        spec_info: Any,
        seq_lens_cpu: torch.Tensor | None,
        use_sliding_window_kv_pool: bool = False,  # noqa: FBT001, FBT002 -- likewise
        fixed_split_size: int | None = None,
        disable_split_kv: bool | None = None,  # noqa: FBT001 -- likewise
        *,
        plan: Any,
        req_pool_indices: torch.Tensor,
    ) -> None:
        """As SGLang's; with a plan in force, over the tokens that it reads."""
        options = {
            "fixed_split_size": fixed_split_size,
            "disable_split_kv": disable_split_kv,
            "plan": plan,
            "req_pool_indices": req_pool_indices,
        }
        step = None if self.capturing else current()
        plain = kv_start_idx is None and spec_info is None and not use_sliding_window_kv_pool
        if step is None or step.plan is None or not plain or seq_lens_cpu is None:
            if step is not None:
                step.asked = True
                self.dense_steps += 1
            super().call_begin_forward(
                wrapper,
                paged_kernel_lens,
                paged_kernel_lens_sum,
                kv_indptr,
                kv_start_idx,
                spec_info,
                seq_lens_cpu,
                use_sliding_window_kv_pool,
                **options,
            )
            return
        contexts = contexts_of(step.plan, seq_lens_cpu)
        if not self.verified:
            self._verify(step.plan, contexts, paged_kernel_lens, kv_indptr, seq_lens_cpu, options)
        step.asked = step.used = True
        self.pruned_steps += 1
        self._begin(wrapper, self._lists(step.plan, contexts), paged_kernel_lens, kv_indptr, options)

    def _lists(self, plan: GpuPlan, contexts: list[int]) -> HostLists:
        packed: dict[int, tuple[Selection, PackedBlocks]] = {}
        blocks: list[PackedBlocks | None] = [None] * len(contexts)
        for row, selection in enumerate(plan.selections):
            if selection is not None:
                key = id(selection)
                packed[key] = self._packed.get(key) or (selection, pack_blocks(selection.kept[0]))
                blocks[row] = packed[key][1]
        self._packed = packed
        return host_lists(contexts, blocks, plan.block_tokens, pinned=self.kv_indptr[0].is_cuda)

    def _begin(
        self,
        wrapper: Any,
        lists: HostLists,
        device_lengths: torch.Tensor,
        kv_indptr: torch.Tensor,
        options: dict[str, Any],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the lists, hand them on, and return them."""
        indptr = kv_indptr[: lists.rows + 1]
        if wrapper.is_cuda_graph_enabled:
            indices = wrapper._paged_kv_indices_buf
        else:
            indices = torch.empty(lists.slots, dtype=torch.int32, device=kv_indptr.device)
        # The table that SGLang's own kernel would read, asked for as it asks.
        source = self.attn_backend.kv_index_translator.read_source(
            options["plan"], req_pool_indices=options["req_pool_indices"], bs=lists.rows
        )
        if source.is_translated or source.v2p is not None or source.entry_page_size != 1:
            raise SeamError(f"the table of KV slots holds pages or virtual ids, not slots; {_OFF}")
        write_lists(source.ids, source.row_ids, lists, indptr, indices)
        # Lengths and their sum are those of full lists: only a SGLang that made its own after all would look at them.
        super().call_begin_forward(
            wrapper,
            device_lengths,
            lists.tokens,
            kv_indptr,
            None,
            SimpleNamespace(kv_indptr=indptr, kv_indices=indices),
            torch.from_numpy(lists.lengths),
            **options,
        )
        return indptr, indices

    def _verify(
        self,
        plan: GpuPlan,
        contexts: list[int],
        device_lengths: torch.Tensor,
        kv_indptr: torch.Tensor,
        seq_lens_cpu: torch.Tensor,
        options: dict[str, Any],
    ) -> None:
        """Are lists handed on as they are, and with everything kept SGLang's? Waits for the device."""
        stock, ours, pruned = _Recorder(), _Recorder(), _Recorder()
        lists = self._begin(
            pruned, self._lists(plan, contexts), device_lengths, torch.zeros_like(kv_indptr), options
        )
        given = pruned.given[0][:2]
        if len(given) < 2 or given[0] is not lists[0] or given[1] is not lists[1]:
            raise SeamError(f"SGLang no longer takes ready-made page lists for a decode step; {_OFF}")
        super().call_begin_forward(
            stock,
            device_lengths,
            int(seq_lens_cpu.sum()),
            torch.zeros_like(kv_indptr),
            None,
            None,
            seq_lens_cpu,
            **options,
        )
        blocks = [None if s is None else pack_blocks(np.ones_like(s.kept[0])) for s in plan.selections]
        blocks += [None] * (len(contexts) - len(blocks))
        everything = host_lists(contexts, blocks, plan.block_tokens)
        self._begin(ours, everything, device_lengths, torch.zeros_like(kv_indptr), options)
        if not _same(stock.given, ours.given):
            raise SeamError(
                f"with every block kept, the page lists differ from SGLang's, so pruned ones would be wrong; {_OFF}"
            )
        self.verified = True
        logger.info("Attention pruning: FlashInfer's page lists, with every block kept, are SGLang's.")


class EntropicFlashInferBackend(FlashInferAttnBackend):
    """SGLang's backend with the updater above.

    Args:
        model_runner: SGLang's.
        block_tokens: tokens of the blocks that plans will have; the kernel is tried, and compiled, for it.
        options: the further arguments of SGLang's backend.

    Raises:
        UnsupportedError: the model, or the form its keys and values are kept in, has lists that are not pruned.
        SeamError: the kernel does not compute what it should on this GPU.
    """

    indices_updater_decode: EntropicDecodeUpdater

    def __init__(self, model_runner: Any, *, block_tokens: int, **options: Any) -> None:
        super().__init__(model_runner, **options)
        # SGLang checks this for objects of exactly its own class.
        if model_runner.prefill_attention_backend_str == BACKEND:
            self._check_kv_attention_access("prefill", self.prefill_kv_access)
        if model_runner.decode_attention_backend_str == BACKEND:
            self._check_kv_attention_access("decode", self.decode_kv_access)
        problem = unprunable(self)
        if problem is not None:
            raise UnsupportedError(f"attention cannot be pruned here: {problem}; {_OFF}")
        check_kernel(self.kv_indptr[0].device, block_tokens)
        self.indices_updater_decode = EntropicDecodeUpdater(model_runner, self)

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:  # noqa: FBT001, FBT002 -- SGLang's signature
        """As SGLang's; a capture is left alone."""
        self.indices_updater_decode.capturing = in_capture
        try:
            super().init_forward_metadata_out_graph(forward_batch, in_capture)
        finally:
            self.indices_updater_decode.capturing = False


class _Recorder:
    """Stands for a wrapper that runs without a CUDA graph, and keeps what it is given."""

    is_cuda_graph_enabled = False
    given: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})

    def begin_forward(self, *args: Any, **kwargs: Any) -> None:
        self.given = args, kwargs


def contexts_of(plan: GpuPlan, seq_lens_cpu: torch.Tensor) -> list[int]:
    """Tokens of every row, padding included.

    Raises:
        SeamError: the batch is not the one that was planned.
    """
    contexts: list[int] = seq_lens_cpu.tolist()
    if contexts[: len(plan.lengths)] != list(plan.lengths):
        raise SeamError(
            f"a decode step was planned for contexts of {list(plan.lengths)} tokens, and SGLang runs one of {contexts}; "
            f"{_OFF}"
        )
    return contexts


def unprunable(backend: Any) -> str | None:
    """Why a FlashInfer backend cannot be pruned, or ``None``."""
    if backend.num_wrappers != 1:
        return "layers with sliding windows or cross attention have page lists of their own"
    if backend.decode_uses_dequant_workspace:
        return "keys and values are unpacked for every token of a context, read or not"
    if backend.kv_index_translator is None or backend.kv_index_translator.is_translating:
        return "the table of KV slots holds virtual ids"
    return None


def check_kernel(device: torch.device, block_tokens: int) -> None:
    """Compare the kernel with its definition on a made-up table: also its compilation, before the first request.

    Raises:
        SeamError: they differ.
    """
    random = np.random.default_rng(20)
    blocks = 2 * 32 + 5
    width = blocks * block_tokens + block_tokens + 2
    table = random.permutation(3 * width).astype(np.int32).reshape(3, width)
    kept = [random.random(blocks) < 0.4, None]
    rows, contexts = [2, 1], [width - 1, width]
    lists = host_lists(contexts, [None if k is None else pack_blocks(k) for k in kept], block_tokens)
    indptr = torch.zeros(3, dtype=torch.int32, device=device)
    indices = torch.zeros(lists.slots, dtype=torch.int32, device=device)
    write_lists(torch.from_numpy(table).to(device), torch.tensor(rows, device=device), lists, indptr, indices)
    expected = reference_lists(table, rows, contexts, kept, block_tokens)
    if indptr.tolist() != expected[0].tolist() or indices.tolist() != expected[1].tolist():
        raise SeamError(f"the kernel that lists KV slots computes something else on {device}; {_OFF}")


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return bool(one == other)


# What SGLang had under the name, and the tokens of a block, while ours is installed.
_stock_factory: Any = None
_block_tokens = 0


def install(block_tokens: int) -> None:
    """Put our factory under FlashInfer's name, which SGLang looks at in many places; before it builds its backends.

    Args:
        block_tokens: tokens of the blocks that plans will have.

    Raises:
        SeamError: SGLang or FlashInfer is not as the table of touches says.
    """
    global _stock_factory, _block_tokens  # noqa: PLW0603 -- SGLang's registry is global too
    problems = problems_of(ATTENTION_SEAMS)
    if problems:
        raise SeamError("attention pruning cannot be installed: " + "; ".join(problems))
    if _stock_factory is None:
        _stock_factory = attention_registry.ATTENTION_BACKENDS[BACKEND]
    _block_tokens = block_tokens
    attention_registry.register_attention_backend(BACKEND)(create_flashinfer_backend)


def uninstall() -> None:
    """Give the name back to SGLang's factory."""
    global _stock_factory  # noqa: PLW0603 -- as above
    if _stock_factory is not None:
        attention_registry.register_attention_backend(BACKEND)(_stock_factory)
        _stock_factory = None


def verify() -> None:
    """Raise :class:`SeamError` unless SGLang would build our backend."""
    if attention_registry.ATTENTION_BACKENDS.get(BACKEND) is not create_flashinfer_backend:
        raise SeamError(
            "attention_registry.ATTENTION_BACKENDS: sgl_entropic's FlashInfer backend is not installed"
        )


def create_flashinfer_backend(runner: Any) -> Any:
    """SGLang's factory; ours for the decoders whose lists are pruned, SGLang's for latent attention and drafts."""
    if runner.use_mla_backend or runner.is_draft_worker or get_spec().speculative_algorithm is not None:
        return _stock_factory(runner)
    return EntropicFlashInferBackend(
        runner, block_tokens=_block_tokens, init_new_workspace=runner.init_new_workspace
    )
