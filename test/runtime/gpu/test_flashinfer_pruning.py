"""A planned decode step reads exactly what is selected; every other call goes SGLang's way unchanged.

Runs SGLang's own backend, updater and kernels, and FlashInfer's own wrapper and planners, on CPU tensors in a process with
Triton's interpreter (see ``updater_process.py``); only what was compiled for a GPU is stood in for.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sgl_entropic.errors import SeamError

POOL_ROWS, CONTEXT, MOST_ROWS = 12, 700, 8
Mask = NDArray[np.bool_]
Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[bytes]]:
    directory = tmp_path_factory.mktemp("updater")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "TRITON_INTERPRET": "1",
        "TRITON_CACHE_DIR": str(directory / "cache"),
    }
    with (directory / "log").open("wb") as log:
        started = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("updater_process.py"))],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    assert started.stdin is not None
    assert started.stdout is not None
    try:
        kinds = pickle.load(started.stdout)
    except EOFError:
        pytest.fail((directory / "log").read_text())
    assert kinds == {"stock": "FlashInferAttnBackend", "ours": "EntropicFlashInferBackend"}
    with started:
        yield started
        if started.poll() is None:
            pickle.dump(None, started.stdin)
    assert started.returncode == 0, (directory / "log").read_text()


@pytest.fixture(scope="module")
def ask(process: subprocess.Popen[bytes]) -> Ask:
    """Asks the process for a step, or what it is told to do."""

    def answer(**question: Any) -> Any:
        assert process.stdin is not None
        assert process.stdout is not None
        pickle.dump({"do": "step", "backend": "ours", "padding": 0, "graph": False} | question, process.stdin)
        process.stdin.flush()
        return pickle.load(process.stdout)

    return answer


def table(seed: int = 0) -> NDArray[np.int32]:
    """A table in which no two entries are equal."""
    slots = np.random.default_rng(seed).permutation(POOL_ROWS * CONTEXT)
    return slots.astype(np.int32).reshape(POOL_ROWS, CONTEXT)


def step(**changes: Any) -> dict[str, Any]:
    """Two rows, the first of which leaves blocks 1 and 3 of 5 out."""
    mask = np.array([True, False, True, False, True])
    plain = {"rows": [3, 5], "lengths": [100, 40], "kept": [mask, None], "block_tokens": 16, "table": table()}
    return plain | changes


def positions(kept: Mask | None, length: int, block_tokens: int) -> list[int]:
    """Tokens that are read, one by one."""
    return [
        token
        for token in range(length)
        if kept is None or token // block_tokens >= len(kept) or kept[token // block_tokens]
    ]


def assert_read(question: dict[str, Any], answer: Any) -> None:
    """The lists are the selected slots, in order; the host's lengths are the device's; padding reads one token."""
    assert isinstance(answer, dict), answer
    padding = question.get("padding", 0)
    kept = question["kept"] or [None] * len(question["rows"])
    ends = [0]
    for row, length, mask in zip(
        question["rows"] + [0] * padding,
        question["lengths"] + [1] * padding,
        [*kept, *[None] * padding],
        strict=True,
    ):
        read = positions(mask, length, question["block_tokens"])
        ends.append(ends[-1] + len(read))
        assert answer["indices"][ends[-2] : ends[-1]].tolist() == question["table"][row, read].tolist()
        assert answer["indices"][ends[-1] - 1] == question["table"][row, length - 1]
    assert answer["indptr"].tolist() == ends
    assert answer["told"][0].tolist() == ends
    assert answer["told"][0].device.type == "cpu"
    assert answer["last_page_len"].tolist() == [1] * (len(ends) - 1)


def assert_equal_steps(one: Any, other: Any) -> None:
    """FlashInfer, wrapper and compiled module, was given the same."""
    for name in ("indptr", "indices", "last_page_len", "static", "fast"):
        assert np.array_equal(one[name], other[name]), name
    for given_to_one, given_to_other in zip(one["told"], other["told"], strict=True):
        assert type(given_to_one) is type(given_to_other)
        same = torch.equal if isinstance(given_to_one, torch.Tensor) else (lambda a, b: a == b)
        assert same(given_to_one, given_to_other)


@st.composite
def steps(draw: st.DrawFn) -> dict[str, Any]:
    """Any batch of at most 8 rows, padding included; at least one row leaves something out or could."""
    block_tokens = draw(st.sampled_from([1, 4, 16, 64]))
    batch = draw(st.integers(1, 5))
    kept: list[Mask | None] = []
    lengths = []
    for row in range(batch):
        blocks = draw(st.integers(1, min(40, 500 // block_tokens)))
        mask = draw(st.lists(st.booleans(), min_size=blocks, max_size=blocks))
        dense = row > 0 and draw(st.booleans())
        kept.append(None if dense else np.array(mask))
        tail = draw(st.integers(1, 2 * block_tokens))
        lengths.append(tail if dense else blocks * block_tokens + tail)
    graph = draw(st.booleans())
    return {
        "rows": draw(st.permutations(range(1, POOL_ROWS)))[:batch],
        "lengths": lengths,
        "kept": kept,
        "block_tokens": block_tokens,
        "table": table(draw(st.integers(0, 100))),
        "graph": graph,
        "padding": draw(st.integers(0, MOST_ROWS - batch)) if graph else 0,
    }


# ------------------------------------------------------------------------------------------- what is read


@given(steps())
@settings(max_examples=40)
def test_a_planned_step_reads_the_selected_slots(ask: Ask, question: dict[str, Any]) -> None:
    """With CUDA graphs and without; each example also compares keeping everything with SGLang's own lists."""
    answer = ask(**question)
    assert_read(question, answer)
    assert answer["asked"]
    assert answer["used"]
    assert answer["verified"]
    assert answer["steps"] == (1, 0)
    assert answer["override_left"] is None


@pytest.mark.parametrize("graph", [False, True])
def test_attention_over_the_lists_is_attention_over_the_kept_tokens(ask: Ask, *, graph: bool) -> None:
    """One query head and one key head, computed from the lists on one side and from a mask over the context on the other."""
    question = step(graph=graph)
    answer = ask(**question)
    random = np.random.default_rng(5)
    keys, values = random.normal(size=(2, POOL_ROWS * CONTEXT, 64))
    for row, (length, mask) in enumerate(zip(question["lengths"], question["kept"], strict=True)):
        query = random.normal(size=64)
        listed = answer["indices"][answer["indptr"][row] : answer["indptr"][row + 1]]
        weights = np.exp(keys[listed] @ query / 8)
        from_lists = (weights / weights.sum()) @ values[listed]

        slots = question["table"][question["rows"][row], :length]
        read = positions(mask, length, question["block_tokens"])
        scores = np.full(length, -np.inf)
        scores[read] = (keys[slots] @ query / 8)[read]
        weights = np.exp(scores)
        masked = (weights / weights.sum()) @ values[slots]
        np.testing.assert_allclose(from_lists, masked, rtol=1e-12)


@pytest.mark.parametrize("graph", [False, True])
def test_keeping_every_block_gives_flashinfer_what_sglang_gives(ask: Ask, *, graph: bool) -> None:
    question = step(kept=[np.ones(5, np.bool_), None], graph=graph)
    assert_equal_steps(ask(**question), ask(**question | {"backend": "stock", "kept": None}))


def test_a_cuda_graph_finds_its_lists_where_it_knows_them(ask: Ask) -> None:
    """Both in the backend's static storage, planned by the planner that copies neither."""
    question = step(graph=True, padding=3)
    answer = ask(**question)
    assert answer["static"] == (True, True)
    assert answer["fast"]
    assert_read(question, answer)


def test_a_selection_is_packed_once_as_long_as_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what it is, not by what it looks like; and forgotten when no row reads it any more."""
    from sgl_entropic.attention.selection import Selection
    from sgl_entropic.runtime.gpu import flashinfer_pruning as ours
    from sgl_entropic.runtime.gpu.plan import GpuPlan

    packings = []
    original = ours.pack_blocks
    monkeypatch.setattr(ours, "pack_blocks", lambda kept: packings.append(kept) or original(kept))
    updater = object.__new__(ours.EntropicDecodeUpdater)
    updater._packed, updater.kv_indptr = {}, [torch.zeros(3)]
    one, twin = (Selection(np.array([[True, False]]), 32) for _ in range(2))
    for step, (pair, packed) in enumerate(
        [((one, None), 1), ((one, one), 1), ((one, twin), 2), ((twin, None), 2)]
    ):
        lengths = [40 + step, 50 + step]
        lists = updater._lists(GpuPlan(pair, tuple(lengths), 16), lengths)
        assert lists.lengths.tolist() == [
            n if s is None else n - 16 for n, s in zip(lengths, pair, strict=True)
        ]
        assert len(packings) == packed
    assert list(updater._packed) == [id(twin)]


# ------------------------------------------------------------------------------- what goes SGLang's way


@pytest.mark.parametrize("changes", [{}, {"graph": True}, {"graph": True, "padding": 3}])
@pytest.mark.parametrize("kept", [None, [None, None]])
def test_without_a_plan_a_step_is_sglangs(ask: Ask, changes: dict[str, Any], kept: Any) -> None:
    question = step(kept=kept, **changes)
    answer = ask(**question)
    assert_equal_steps(answer, ask(**question | {"backend": "stock", "kept": None}))
    assert answer["steps"] == (0, 0)
    assert not answer["asked"]
    assert not answer["verified"]


def test_a_capture_passes_through_though_a_plan_is_in_force(ask: Ask) -> None:
    """Its batch is not the planned one; the replay that follows is."""
    answer = ask(**step(graph=True, padding=2))
    assert answer["captured"] == (False, 0)
    assert answer["used"]


@pytest.mark.parametrize(
    "changes", [{"spec": True}, {"no_host_lengths": True}, {"start": [60, 8]}], ids=lambda c: next(iter(c))
)
def test_what_is_not_plain_decoding_is_sglangs_and_says_so(ask: Ask, changes: dict[str, Any]) -> None:
    """Lists of drafts, no lengths on the host, a window or an encoder: dense, asked for, and not counted as pruned."""
    question = step(**changes)
    answer = ask(**question)
    assert isinstance(answer, dict), answer
    assert_equal_steps(answer, ask(**question | {"backend": "stock", "kept": None}))
    assert answer["asked"]
    assert not answer["used"]
    assert answer["steps"] == (0, 1)


# --------------------------------------------------------------------------------------- dead or moved


@pytest.mark.parametrize("planned", [[101, 40], [40, 100], [100, 40, 7]])
def test_a_batch_other_than_the_planned_one_is_an_error(ask: Ask, planned: list[int]) -> None:
    kept = [np.zeros(2, np.bool_), *[None] * (len(planned) - 1)]
    answer = ask(**step(planned=planned, kept=kept))
    assert answer.startswith("SeamError: a decode step was planned for contexts of")


def test_a_plan_that_sglangs_own_backend_ignores_is_an_error(ask: Ask) -> None:
    answer = ask(**step(backend="stock"))
    assert answer.startswith("SeamError: a decode step was planned to leave tokens out, and SGLang ran it")


@pytest.mark.parametrize(
    ("tamper", "said"),
    [("kernel", "differ from SGLang's"), ("host", "no longer takes ready-made page lists")],
)
@pytest.mark.parametrize("graph", [False, True])
def test_the_first_pruned_step_notices_lists_that_would_be_wrong(
    ask: Ask, tamper: str, said: str, *, graph: bool
) -> None:
    answer = ask(**step(do="tampered", tamper=tamper, graph=graph))
    assert answer.startswith("SeamError: ")
    assert said in answer


def test_a_kernel_that_computes_something_else_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    from sgl_entropic.runtime.gpu import flashinfer_pruning

    monkeypatch.setattr(flashinfer_pruning, "write_lists", lambda *_: None)
    with pytest.raises(SeamError, match="computes something else on cpu"):
        flashinfer_pruning.check_kernel(torch.device("cpu"), 16)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"sliding_window_size": 128},
            "UnsupportedError: attention cannot be pruned here: layers with sliding",
        ),
        (
            {"workspace": True},
            "UnsupportedError: attention cannot be pruned here: keys and values are unpacked",
        ),
        ({"virtual": True}, "UnsupportedError: attention cannot be pruned here: the table of KV slots"),
        (
            {"no_access": True},
            "ValueError: KV cache method 'a method without decode' does not support prefill",
        ),
        ({}, "EntropicFlashInferBackend"),
    ],
    ids=lambda value: next(iter(value), "plain") if isinstance(value, dict) else "",
)
def test_a_model_whose_lists_are_not_pruned_is_refused(ask: Ask, changes: dict[str, Any], said: str) -> None:
    """When its backend is built; SGLang's own check, which it makes for its own class only, is made too."""
    assert ask(do="build", changes=changes).startswith(said)


# ------------------------------------------------------------------------------------------- contracts


def test_the_table_of_touches_fits_sglang_and_flashinfer() -> None:
    from sgl_entropic.runtime.seam_table_attention import ATTENTION_SEAMS
    from sgl_entropic.runtime.seams import problems_of

    assert problems_of(ATTENTION_SEAMS) == []
    for seam in ATTENTION_SEAMS:
        moved = dataclasses.replace(seam, parameters=(*seam.parameters, "parameter_of_the_future"))
        assert problems_of((moved,)), seam.target


@pytest.mark.parametrize(
    ("ours", "stock", "method"),
    [
        ("EntropicDecodeUpdater", "FlashInferIndicesUpdaterDecode", "call_begin_forward"),
        ("EntropicFlashInferBackend", "FlashInferAttnBackend", "init_forward_metadata_out_graph"),
    ],
)
def test_overrides_take_what_sglang_passes(ours: str, stock: str, method: str) -> None:
    """Names, kinds and defaults, one for one."""
    from sglang.srt.layers.attention import flashinfer_backend

    from sgl_entropic.runtime.gpu import flashinfer_pruning

    def shape(owner: Any) -> list[tuple[str, Any, Any]]:
        signature = inspect.signature(vars(owner)[method])
        return [(p.name, p.kind, p.default) for p in signature.parameters.values()]

    assert shape(getattr(flashinfer_pruning, ours)) == shape(getattr(flashinfer_backend, stock))


def test_flashinfers_planners_take_what_sglang_hands_on() -> None:
    """The arguments by name; and that the wrapper's ``begin_forward`` is its ``plan``."""
    from flashinfer.decode import BatchDecodeWithPagedKVCacheWrapper as Wrapper
    from flashinfer.decode import fast_decode_plan

    lists = ("self", "indptr", "indices", "last_page_len", "heads", "kv_heads", "width", 1)
    options = dict.fromkeys(
        ("data_type", "q_data_type", "non_blocking", "fixed_split_size", "disable_split_kv"), None
    )
    assert Wrapper.begin_forward is Wrapper.plan
    inspect.signature(Wrapper.plan).bind(*lists, **options)
    bound = inspect.signature(fast_decode_plan).bind(*lists, **options, global_override_indptr_cpu=None)
    assert list(bound.arguments)[:4] == ["self", "indptr", "indices", "last_page_len"]
    assert isinstance(Wrapper.is_cuda_graph_enabled, property)
    assert "_paged_kv_indices_buf" in inspect.getsource(fast_decode_plan)


# --------------------------------------------------------------------------------------------- factory


@pytest.fixture
def registry() -> Iterator[Any]:
    from sglang.srt.layers.attention import attention_registry

    from sgl_entropic.runtime.gpu import flashinfer_pruning

    yield attention_registry
    flashinfer_pruning.uninstall()


def test_a_server_that_does_not_ask_has_sglangs_factory(registry: Any) -> None:
    from sgl_entropic.runtime.gpu import flashinfer_pruning

    assert registry.ATTENTION_BACKENDS["flashinfer"] is registry.create_flashinfer_backend
    with pytest.raises(SeamError, match="is not installed"):
        flashinfer_pruning.verify()


def test_the_factory_goes_by_sglangs_name_and_comes_off_again(registry: Any) -> None:
    from sgl_entropic.runtime.gpu import flashinfer_pruning

    before = dict(registry.ATTENTION_BACKENDS)
    for _ in range(2):
        flashinfer_pruning.install(16)
        flashinfer_pruning.verify()
    ours = {"flashinfer": flashinfer_pruning.create_flashinfer_backend}
    assert before | ours == registry.ATTENTION_BACKENDS
    flashinfer_pruning.uninstall()
    assert before == registry.ATTENTION_BACKENDS
    flashinfer_pruning.uninstall()
    assert before == registry.ATTENTION_BACKENDS


@pytest.mark.parametrize(
    ("runner", "speculative"),
    [({"use_mla_backend": True}, None), ({"is_draft_worker": True}, None), ({}, "EAGLE")],
)
def test_other_backends_are_built_by_sglang(
    monkeypatch: pytest.MonkeyPatch, runner: dict[str, bool], speculative: str | None
) -> None:
    from sgl_entropic.runtime.gpu import flashinfer_pruning

    monkeypatch.setattr(flashinfer_pruning, "_stock_factory", lambda made: ("stock", made))
    spec = SimpleNamespace(speculative_algorithm=speculative)
    monkeypatch.setattr(flashinfer_pruning, "get_spec", lambda: spec)
    made = SimpleNamespace(**{"use_mla_backend": False, "is_draft_worker": False} | runner)
    assert flashinfer_pruning.create_flashinfer_backend(made) == ("stock", made)


def test_a_moved_seam_stops_the_installation(registry: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from sgl_entropic.runtime.gpu import flashinfer_pruning

    moved = dataclasses.replace(flashinfer_pruning.ATTENTION_SEAMS[-1], parameters=("elsewhere",))
    monkeypatch.setattr(flashinfer_pruning, "ATTENTION_SEAMS", (moved,))
    with pytest.raises(SeamError, match=r"cannot be installed: flashinfer\.decode\.fast_decode_plan"):
        flashinfer_pruning.install(16)
    assert registry.ATTENTION_BACKENDS["flashinfer"] is registry.create_flashinfer_backend
