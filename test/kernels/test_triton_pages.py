"""The Triton kernel lists the slots that the definition says; without a GPU in Triton's interpreter, and compiled.

Triton decides when it is imported whether it interprets, so the kernel runs in a process of its own, which answers one
state after another.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sgl_entropic_kernels import triton_pages

Mask = NDArray[np.bool_]
GUARD = -7  # what a list holds beyond its end

WORKER = """
import pickle, sys, torch
from sgl_entropic_kernels import triton_pages
device, span = sys.argv[1], triton_pages._SPAN
while (state := pickle.load(sys.stdin.buffer)) is not None:
    triton_pages._SPAN = state["span"] or span
    wide = torch.from_numpy(state["table"]).to(device)
    table = wide[:, : state["width"]]
    rows = torch.tensor(state["rows"], dtype=getattr(torch, state["rows_dtype"])).to(device)
    packed = [None if kept is None else triton_pages.pack_blocks(kept) for kept in state["kept"]]
    lists = triton_pages.host_lists(state["contexts"], packed, state["block_tokens"])
    indptr = torch.full((lists.rows + 3,), -7, dtype=torch.int32, device=device)
    indices = torch.full((lists.slots + 5,), -7, dtype=torch.int32, device=device)
    before = wide.clone(), rows.clone(), indptr.data_ptr(), indices.data_ptr()
    triton_pages.write_lists(table, rows, lists, indptr, indices)
    assert torch.equal(before[0], wide) and torch.equal(before[1], rows), "an input was written to"
    assert before[2:] == (indptr.data_ptr(), indices.data_ptr())
    pickle.dump((indptr.cpu().numpy(), indices.cpu().numpy(), lists.lengths), sys.stdout.buffer)
    sys.stdout.buffer.flush()
"""

COMPILE_PROCESS = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from sgl_entropic_kernels import triton_pages
kernel = triton_pages._lists_kernel
for arch, rows, block in ((80, "i64", 16), (90, "i64", 16), (90, "i32", 64), (100, "i64", 48)):
    types = {name: "*i32" for name in kernel.arg_names} | {"row_stride": "i32", "pool_rows": "*" + rows}
    constants = {"BLOCK_TOKENS": block, "SPAN": triton_pages._SPAN}
    source = ASTSource(kernel, types | dict.fromkeys(constants, "constexpr"), constants)
    options = {"num_warps": triton_pages._WARPS}
    compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    print(arch, rows, block, len(compiled.asm["cubin"]) > 0)
"""


def environment(cache_dir: Path, *, interpret: bool) -> dict[str, str]:
    values = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    values |= {"PYTHONPATH": os.pathsep.join(sys.path), "TRITON_CACHE_DIR": str(cache_dir)}
    return values | ({"TRITON_INTERPRET": "1"} if interpret else {})


class State(NamedTuple):
    """What a step asks for, and the table that it is asked of."""

    table: NDArray[np.int32]
    width: int
    rows: list[int]
    contexts: list[int]
    kept: list[Mask | None]
    block_tokens: int
    span: int = 0
    rows_dtype: str = "int64"


class Lists(NamedTuple):
    indptr: NDArray[np.int32]
    indices: NDArray[np.int32]
    lengths: NDArray[np.int64]


Ask = Callable[[State], Lists]


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def ask(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """Asks the kernel: the interpreter; and the GPU where there is one."""
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, request.param],
        env=environment(tmp_path_factory.mktemp("triton"), interpret=request.param == "cpu"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    to, back = process.stdin, process.stdout

    def answer(state: State) -> Lists:
        pickle.dump(state._asdict(), to)
        to.flush()
        return Lists(*pickle.load(back))

    with process:
        yield answer
        if process.poll() is None:
            pickle.dump(None, to)
    assert process.returncode == 0


def walk(state: State) -> list[list[int]]:
    """The slots of each row, token by token: an oracle that shares nothing with the code."""
    read: list[list[int]] = []
    for row, context, kept in zip(state.rows, state.contexts, state.kept, strict=True):
        read.append([])
        for token in range(context):
            block = token // state.block_tokens
            if kept is None or block >= len(kept) or kept[block]:
                read[-1].append(int(state.table[row, token]))
    return read


def assert_lists(state: State, lists: Lists) -> None:
    """Exactly the slots that are read, in order, row by row, and nothing written beyond them."""
    expected = walk(state)
    ends = [0]
    for row, slots in enumerate(expected):
        assert slots, "a row is never empty"
        ends.append(ends[-1] + len(slots))
        assert lists.indices[ends[-2] : ends[-1]].tolist() == slots
        # The newest token is always among them, and is the last one.
        assert slots[-1] == state.table[state.rows[row], state.contexts[row] - 1]
    assert lists.indptr.tolist() == [*ends, GUARD, GUARD]
    assert lists.indices[ends[-1] :].tolist() == [GUARD] * 5
    assert lists.lengths.tolist() == np.diff(ends).tolist()


@st.composite
def states(draw: st.DrawFn) -> State:
    """Any table of slots, any rows (several may be padding: row 0 and one token), any blocks, any tail."""
    block_tokens = draw(st.sampled_from([1, 2, 3, 5, 16, 64]))
    batch = draw(st.integers(1, 5))
    kept: list[Mask | None] = []
    contexts, rows = [], []
    for row in range(batch):
        blocks = draw(st.one_of(st.integers(0, 5), st.integers(0, 70)))
        mask = draw(
            st.one_of(
                st.none(),
                st.lists(st.booleans(), min_size=blocks, max_size=blocks),
                st.sampled_from([[True] * blocks, [False] * blocks]),
            )
        )
        kept.append(None if mask is None else np.array(mask, np.bool_))
        tail = draw(st.integers(1, 3 * block_tokens))
        contexts.append(tail + (0 if mask is None else blocks * block_tokens))
        rows.append(row + 1)
    rows = draw(st.permutations(rows))
    padding = draw(st.integers(0, 3))
    contexts, kept = contexts + [1] * padding, kept + [None] * padding
    rows = [*rows, *[0] * padding]
    width = max(contexts) + draw(st.integers(0, 3))
    seed = draw(st.integers(0, 2**16))
    apart = draw(st.sampled_from([0, 5]))
    slots = np.random.default_rng(seed).permutation((batch + 1) * (width + apart)).astype(np.int32)
    return State(
        table=slots.reshape(batch + 1, width + apart),
        width=width,
        rows=rows,
        contexts=contexts,
        kept=kept,
        block_tokens=block_tokens,
        span=draw(st.sampled_from([0, 16, 128])),
        rows_dtype=draw(st.sampled_from(["int64", "int32"])),
    )


def ramp(kept: list[Mask | None], contexts: list[int], block_tokens: int, span: int = 0) -> State:
    """Every slot is another number, so a foreign one is seen."""
    width = max(contexts)
    table = np.arange((len(contexts) + 1) * width, dtype=np.int32).reshape(-1, width)
    return State(table, width, list(range(1, len(contexts) + 1)), contexts, kept, block_tokens, span)


@given(states())
@settings(max_examples=60)
@example(ramp([np.arange(32) % 32 == 31], [33], 1))
@example(ramp([np.ones(64, np.bool_)], [65], 1))
@example(ramp([np.arange(2000) % 3 == 0, None], [2000 * 16 + 64, 5], 16))
def test_the_lists_are_what_a_walk_over_the_tokens_finds(ask: Ask, state: State) -> None:
    assert_lists(state, ask(state))


@given(states())
def test_so_does_the_plain_reference(state: State) -> None:
    reference = triton_pages.reference_lists(
        state.table, state.rows, state.contexts, state.kept, state.block_tokens
    )
    expected = walk(state)
    assert reference[1].tolist() == [slot for slots in expected for slot in slots]
    assert np.diff(reference[0]).tolist() == [len(slots) for slots in expected]
    assert {part.dtype for part in reference} == {np.dtype(np.int32)}


@given(st.lists(st.booleans(), max_size=200))
def test_packed_blocks_are_bits_with_the_count_before_them(mask: list[bool]) -> None:
    packed = triton_pages.pack_blocks(np.array(mask, np.bool_))
    assert (packed.blocks, packed.kept, len(packed.pairs)) == (len(mask), sum(mask), -(-len(mask) // 32))
    for word, (bits, before) in enumerate(packed.pairs.tolist()):
        part = mask[32 * word : 32 * word + 32]
        assert [bool(bits >> bit & 1) for bit in range(len(part))] == part
        assert (bits & 0xFFFFFFFF) >> len(part) == 0
        assert before == sum(mask[: 32 * word])


def test_keeping_all_is_the_dense_list(ask: Ask) -> None:
    """Bit for bit what a row without a selection gets."""
    contexts = [16 * 40 + 3, 16 * 7 + 16]
    all_kept = ask(ramp([np.ones(40, np.bool_), np.ones(7, np.bool_)], contexts, 16))
    dense = ask(ramp([None, None], contexts, 16))
    assert all_kept.indptr.tolist() == dense.indptr.tolist()
    assert all_kept.indices.tolist() == dense.indices.tolist()


def test_sinks_and_recent_tokens_stay_where_the_mask_says_so(ask: Ask) -> None:
    kept = np.zeros(100, np.bool_)
    kept[[0, 1, 50]] = True
    state = ramp([kept], [16 * 100 + 64], 16)
    lists = ask(state)
    positions = (lists.indices[: lists.indptr[1]] - state.width).tolist()
    assert positions == [*range(32), *range(800, 816), *range(1600, 1664)]


def test_the_lists_go_into_the_selections_of_the_pruner(ask: Ask) -> None:
    """A selection's own positions, through the table."""
    from sgl_entropic.attention.selection import select
    from sgl_entropic.attention.settings import AttentionSettings

    chosen = AttentionSettings()
    contribution = np.random.default_rng(3).random((1, (1000 - chosen.recent_tokens) // 16), np.float32)
    selection = select(contribution, 1000, 0.5, chosen)
    state = ramp([selection.kept[0]], [1003], 16)
    lists = ask(state)
    positions = selection.positions(1003, 16)
    assert lists.indices[: lists.indptr[1]].tolist() == state.table[1, positions].tolist()
    assert lists.lengths[0] == selection.tokens(1003, 16)


def test_no_row_is_an_empty_list() -> None:
    lists = triton_pages.host_lists([], [], 16)
    indptr = torch.full((2,), GUARD, dtype=torch.int32)
    table = torch.zeros((2, 4), dtype=torch.int32)
    rows = torch.zeros(0, dtype=torch.int64)
    triton_pages.write_lists(table, rows, lists, indptr, torch.zeros(0, dtype=torch.int32))
    assert indptr.tolist() == [0, GUARD]


# ------------------------------------------------------------------------------------- around the kernel


@pytest.mark.parametrize(
    ("contexts", "masks", "block_tokens", "said"),
    [
        ([5, 6], [None], 16, "1 rows of blocks for 2 contexts"),
        ([5], [None], 0, "block_tokens must be at least 1, not 0"),
        ([40, 32], [[True, False], [True, False]], 16, "row 1: 32 tokens, but its tail begins at 32"),
        ([0], [None], 16, "row 0: 0 tokens"),
        ([2**31 - 1, 1], [None, None], 16, "2147483648 slots in one step"),
    ],
)
def test_what_no_list_can_say_is_refused(
    contexts: list[int], masks: list[list[bool] | None], block_tokens: int, said: str
) -> None:
    packed = [None if mask is None else triton_pages.pack_blocks(np.array(mask)) for mask in masks]
    with pytest.raises(ValueError, match=said):
        triton_pages.host_lists(contexts, packed, block_tokens)


@pytest.mark.parametrize("kept", [np.zeros((1, 3), np.bool_), np.zeros(3, np.uint8)])
def test_blocks_are_one_row_of_booleans(kept: Any) -> None:
    with pytest.raises(ValueError, match=r"kept must be \[blocks\] bool"):
        triton_pages.pack_blocks(kept)


def tensors(**other: Any) -> dict[str, Any]:
    return {
        "req_to_token": torch.zeros((4, 50), dtype=torch.int32),
        "rows": torch.zeros(2, dtype=torch.int64),
        "kv_indptr": torch.zeros(3, dtype=torch.int32),
        "kv_indices": torch.zeros(32 + 16 + 8, dtype=torch.int32),
    } | other


@pytest.mark.parametrize(
    ("other", "error", "said"),
    [
        ({"req_to_token": torch.zeros((4, 50), dtype=torch.int64)}, TypeError, "req_to_token must be int32"),
        ({"req_to_token": torch.zeros((50, 4), dtype=torch.int32).T}, TypeError, "side by side"),
        ({"req_to_token": torch.zeros((4, 31), dtype=torch.int32)}, ValueError, "holds 31 tokens"),
        ({"rows": torch.zeros(2)}, TypeError, "rows must be int64 or int32"),
        ({"rows": torch.zeros(1, dtype=torch.int64)}, ValueError, r"rows must be \[2\] or longer"),
        ({"kv_indptr": torch.zeros(2, dtype=torch.int32)}, ValueError, r"kv_indptr must be \[3\]"),
        ({"kv_indices": torch.zeros(55, dtype=torch.int32)}, ValueError, r"kv_indices must be \[56\]"),
        (
            {"kv_indices": torch.zeros(120, dtype=torch.int32)[::2]},
            TypeError,
            "kv_indices must be contiguous",
        ),
        ({"rows": torch.zeros(2, dtype=torch.int64, device="meta")}, ValueError, "must be on cpu"),
    ],
)
def test_what_is_refused(other: dict[str, Any], error: type[Exception], said: str) -> None:
    """24 of 40 tokens in blocks of 16, of which one is kept; and 32 of 32."""
    lists = triton_pages.host_lists([40, 32], [triton_pages.pack_blocks(np.array([True, False])), None], 16)
    assert lists.lengths.tolist() == [24, 32]
    with pytest.raises(error, match=said):
        triton_pages.write_lists(lists=lists, **tensors(**other))


def test_the_kernel_compiles_for_gpus(tmp_path: Path) -> None:
    """To machine code of three generations, which needs none of them; the interpreter accepts what the compiler does not."""
    done = subprocess.run(
        [sys.executable, "-c", COMPILE_PROCESS],
        env=environment(tmp_path, interpret=False),
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    expected = ["80 i64 16 True", "90 i64 16 True", "90 i32 64 True", "100 i64 48 True"]
    assert done.stdout.splitlines() == expected
