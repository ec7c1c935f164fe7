"""The token slots that each request of a decode step reads, as paged attention kernels take them: one Triton kernel.

A context of ``length`` tokens is ``blocks`` whole blocks of ``block_tokens``, some of which are kept, and a tail that is
read whole. Row ``b`` of the lists, ``kv_indices[kv_indptr[b] : kv_indptr[b + 1]]``, holds the slots of the kept blocks
and of the tail, in the order of their tokens. What that means, token by token: :func:`reference_lists`.

Lengths are known on the host, so the host says where each row begins (:func:`host_lists`) and nothing comes back from the
device: one upload, one launch, and both outputs are written in place, as a captured CUDA graph needs them.

Importing this module needs Triton, which PyTorch brings on Linux. What has run so far is Triton's interpreter
(``TRITON_INTERPRET=1``, set before Triton is imported) and its compiler, on no GPU.
"""

# Launch geometry: one program for each row and each span of 1024 positions of its context, left out or not; programs
# share nothing. A position finds its place by itself: kept blocks before its word of 32 blocks (counted on the host),
# plus the set bits below its own, so no program waits for a prefix sum. Tables of left-out blocks are not read.
#
# The state of a step is one int32 array, so it is one upload: [B + 1] where rows begin, [B] lengths, [B] where tails
# begin, [B] first pair, then pairs (32 blocks as bits, lowest first; kept blocks before them). A kernel finds its parts
# by the number of rows, its only size: nothing that changes from step to step is an argument Triton specialises on.
# 8 bytes for 32 blocks are 2 KiB for 128 Ki tokens in blocks of 16.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import triton  # type: ignore[import-untyped]  # ships no types
import triton.language as tl  # type: ignore[import-untyped]  # likewise
from numpy.typing import NDArray
from torch import Tensor

_SPAN = 1024  # positions of one program: 8 a thread
_WORD = 32
_WARPS = 4
_LARGEST = 2**31 - 1  # attention kernels count slots in int32


@dataclass(frozen=True, slots=True)
class PackedBlocks:
    """Which blocks of one context are kept, ready for the kernel; the same as long as the selection is.

    Attributes:
        pairs: [words, 2] int32, 32 blocks as bits, and the kept blocks before them.
        blocks: blocks in all.
        kept: blocks that are kept.
    """

    pairs: NDArray[np.int32]
    blocks: int
    kept: int


def pack_blocks(kept: NDArray[np.bool_]) -> PackedBlocks:
    """Pack [blocks] bool, True for a block that is read.

    Raises:
        ValueError: not one row of booleans.
    """
    if kept.ndim != 1 or kept.dtype != np.bool_:
        raise ValueError(f"kept must be [blocks] bool, not {list(kept.shape)} {kept.dtype}")
    bits = np.zeros((-(-len(kept) // _WORD), _WORD), np.bool_)
    bits.reshape(-1)[: len(kept)] = kept
    counts = bits.sum(axis=1)
    pairs = np.empty((len(bits), 2), np.int32)
    pairs[:, 0] = np.packbits(bits, axis=1, bitorder="little").view("<i4")[:, 0]
    pairs[:, 1] = counts.cumsum() - counts
    return PackedBlocks(pairs, len(kept), int(counts.sum()))


@dataclass(frozen=True, slots=True)
class HostLists:
    """What the host knows of a step's lists.

    Attributes:
        state: int32, what the kernel is told; pinned where that was asked for.
        lengths: [B] int64, slots of each row.
        tokens: of all contexts, read or not.
        longest: tokens of the longest context.
        block_tokens: tokens of a block.
    """

    state: Tensor
    lengths: NDArray[np.int64]
    tokens: int
    longest: int
    block_tokens: int

    @property
    def rows(self) -> int:
        """Requests, padding included."""
        return len(self.lengths)

    @property
    def slots(self) -> int:
        """Slots of all rows."""
        return int(self.lengths.sum())


def host_lists(
    contexts: Sequence[int], blocks: Sequence[PackedBlocks | None], block_tokens: int, *, pinned: bool = False
) -> HostLists:
    """The lists of one step, before the slots are known.

    Args:
        contexts: [B] tokens of each context.
        blocks: [B] which of its blocks are read; ``None`` reads all tokens.
        block_tokens: tokens of a block.
        pinned: whether to put the state where a device can fetch it while the host goes on.

    Raises:
        ValueError: sizes that do not match, a tail without a token, or more slots than int32 counts.
    """
    if len(contexts) != len(blocks):
        raise ValueError(f"{len(blocks)} rows of blocks for {len(contexts)} contexts")
    if block_tokens < 1:
        raise ValueError(f"block_tokens must be at least 1, not {block_tokens}")
    rows = len(contexts)
    context = np.asarray(contexts, dtype=np.int64).reshape(rows)
    tail = np.array([0 if b is None else b.blocks * block_tokens for b in blocks], np.int64)
    kept = np.array([0 if b is None else b.kept * block_tokens for b in blocks], np.int64)
    if (context <= tail).any():
        row = int(np.argmax(context <= tail))
        raise ValueError(
            f"row {row}: {context[row]} tokens, but its tail begins at {tail[row]}; the newest is always read"
        )
    lengths = kept + context - tail
    if lengths.sum() > _LARGEST:
        raise ValueError(f"{lengths.sum()} slots in one step; at most {_LARGEST}")
    pairs = [b.pairs for b in blocks if b is not None]
    counts = np.array([0 if b is None else len(b.pairs) for b in blocks], np.int64)
    state = torch.empty(4 * rows + 1 + 2 * int(counts.sum()), dtype=torch.int32, pin_memory=pinned)
    parts = [np.zeros(1, np.int64), lengths.cumsum(), context, tail, counts.cumsum() - counts]
    parts += [pair.reshape(-1).astype(np.int64) for pair in pairs]
    np.concatenate(parts, out=state.numpy(), casting="same_kind")
    return HostLists(state, lengths, int(context.sum()), int(context.max(initial=0)), block_tokens)


def write_lists(
    req_to_token: Tensor, rows: Tensor, lists: HostLists, kv_indptr: Tensor, kv_indices: Tensor
) -> None:
    """Fill both lists in place: one upload and one launch on the current stream, nothing waited for.

    Args:
        req_to_token: [requests, context] int32 slots by position; rows may lie apart.
        rows: [>= B] int64 or int32, row of each request in the table; those beyond B are not looked at.
        lists: of the step.
        kv_indptr: [>= B + 1] int32, where each row begins; written up to B.
        kv_indices: [>= slots] int32; written up to that.

    Raises:
        TypeError: a dtype or layout other than these; nothing is converted.
        ValueError: something too small, or on another device.
    """
    _check(req_to_token, rows, lists, kv_indptr, kv_indices)
    if lists.rows == 0:
        kv_indptr[:1] = 0
        return
    # Pinned memory that a copy has yet to read is not handed out again by PyTorch, so the step may forget it.
    state = lists.state.to(req_to_token.device, non_blocking=True)
    # Triton launches on the current device, whatever the tensors are on; on a CPU this does nothing.
    with torch.cuda.device_of(req_to_token):  # type: ignore[no-untyped-call]
        _lists_kernel[(lists.rows, triton.cdiv(lists.longest, _SPAN))](
            req_to_token,
            req_to_token.stride(0),
            rows,
            state,
            kv_indptr,
            kv_indices,
            BLOCK_TOKENS=lists.block_tokens,
            SPAN=_SPAN,
            num_warps=_WARPS,
        )


def reference_lists(
    req_to_token: NDArray[np.int32],
    rows: Sequence[int],
    contexts: Sequence[int],
    kept: Sequence[NDArray[np.bool_] | None],
    block_tokens: int,
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """``kv_indptr`` [B + 1] and ``kv_indices`` [slots], plainly: what the kernel has to find."""
    parts = []
    for row, context, blocks in zip(rows, contexts, kept, strict=True):
        whole = np.zeros(0, np.bool_) if blocks is None else np.repeat(blocks, block_tokens)
        read = np.concatenate((whole, np.ones(context - len(whole), np.bool_)))
        parts.append(req_to_token[row, :context][read])
    ends = np.cumsum([0, *(len(part) for part in parts)], dtype=np.int32)
    return ends, np.concatenate([*parts, np.empty(0, np.int32)], dtype=np.int32)


def _check(
    req_to_token: Tensor, rows: Tensor, lists: HostLists, kv_indptr: Tensor, kv_indices: Tensor
) -> None:
    tensors = {"req_to_token": req_to_token, "kv_indptr": kv_indptr, "kv_indices": kv_indices}
    for name, tensor in tensors.items():
        if tensor.dtype != torch.int32:
            raise TypeError(f"{name} must be int32, not {tensor.dtype}")
    if rows.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"rows must be int64 or int32, not {rows.dtype}")
    if req_to_token.dim() != 2 or req_to_token.stride(1) != 1:
        raise TypeError("req_to_token must be [requests, context] with the slots of a request side by side")
    if req_to_token.shape[1] < lists.longest:
        raise ValueError(f"req_to_token holds {req_to_token.shape[1]} tokens, a context has {lists.longest}")
    least = {"rows": (rows, lists.rows)}
    least |= {"kv_indptr": (kv_indptr, lists.rows + 1), "kv_indices": (kv_indices, lists.slots)}
    for name, (tensor, size) in least.items():
        if tensor.dim() != 1 or len(tensor) < size:
            raise ValueError(f"{name} must be [{size}] or longer, not {list(tensor.shape)}")
        if not tensor.is_contiguous():
            raise TypeError(f"{name} must be contiguous")
        if tensor.device != req_to_token.device:
            raise ValueError(f"{name} must be on {req_to_token.device}, not on {tensor.device}")


@triton.jit  # type: ignore[untyped-decorator]  # Triton ships no types
def _lists_kernel(  # noqa: PLR0913, PLR0917 -- pointers, one for each tensor
    req_to_token: tl.tensor,
    row_stride: tl.tensor,
    pool_rows: tl.tensor,
    state: tl.tensor,
    kv_indptr: tl.tensor,
    kv_indices: tl.tensor,
    BLOCK_TOKENS: tl.constexpr,  # noqa: N803
    SPAN: tl.constexpr,  # noqa: N803
) -> None:
    """One span of one row."""
    b = tl.program_id(0)
    span = tl.program_id(1)
    rows = tl.num_programs(0)
    begin = tl.load(state + b)
    end = tl.load(state + b + 1)
    length = tl.load(state + rows + 1 + b)
    tail_start = tl.load(state + 2 * rows + 1 + b)
    pairs = state + 4 * rows + 1 + 2 * tl.load(state + 3 * rows + 1 + b)

    at = span * SPAN + tl.arange(0, SPAN)
    in_block = at < tail_start
    block = at // BLOCK_TOKENS
    word = tl.load(pairs + 2 * (block // 32), mask=in_block, other=0)
    before = tl.load(pairs + 2 * (block // 32) + 1, mask=in_block, other=0)
    bit = block % 32
    before += _ones(word & ~(-1 << bit))
    read = (at < length) & (((word >> bit) & 1 == 1) | (at >= tail_start))

    # Of the tail, counted from the end of the row: its tokens are the last ones.
    place = tl.where(in_block, before * BLOCK_TOKENS + at % BLOCK_TOKENS, end - begin - length + at)
    # A table of requests may hold more than 2^31 slots.
    table = req_to_token + tl.load(pool_rows + b).to(tl.int64) * row_stride
    tl.store(kv_indices + begin + place, tl.load(table + at, mask=read), mask=read)
    if span == 0:
        tl.store(kv_indptr + b + 1, end)
        if b == 0:
            tl.store(kv_indptr, begin)


@triton.jit  # type: ignore[untyped-decorator]  # Triton ships no types
def _ones(bits: tl.tensor) -> tl.tensor:
    """How many of the 31 lowest bits are set; the sign is not."""
    bits = bits - ((bits >> 1) & 0x55555555)
    bits = (bits & 0x33333333) + ((bits >> 2) & 0x33333333)
    bits = (bits + (bits >> 4)) & 0x0F0F0F0F
    bits = bits + (bits >> 8)
    return (bits + (bits >> 16)) & 0x3F
