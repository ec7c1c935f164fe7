"""Decoded requests that read some blocks of their contexts, layer by layer, and the attention that blocks receive."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import kernel_checks as checks
import kernel_decoders as decoders
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl_entropic_kernels import reference_ops as oracle
from sgl_entropic_kernels.native import library

LAYERS = 3
FAMILIES = st.sampled_from(sorted(set(decoders.FAMILIES) - {"windowed"}))
# Shares of decode attention are 128 tokens.
LENGTHS = st.lists(
    st.integers(1, 40) | st.sampled_from([127, 128, 129, 256, 257, 300, 390]), min_size=1, max_size=4
)
BLOCK_TOKENS = st.sampled_from([1, 2, 3, 16, 64, 100, 128, 150, 2**31 - 1])
SEEDS = st.integers(0, 2**31)


@dataclass
class Case:
    """A step of requests whose earlier tokens are in the caches."""

    pair: decoders.Pair
    slots: list[Any]
    lengths: list[int]
    new: list[int]
    ids: Any
    rng: np.random.Generator

    @property
    def step(self) -> oracle.Step:
        return decoders.step_of(self.slots, self.lengths, self.new)

    def choice(self, block_tokens: int, *, layers: int, pruned: float = 0.8) -> decoders.Choice:
        """Random blocks of most of the decoded requests; the others read everything, whatever is said of their blocks."""
        last = [
            (length - 1) // block_tokens if new == 1 else 0
            for length, new in zip(self.lengths, self.new, strict=True)
        ]
        blocks = [int(self.rng.integers(0, n + 1)) if self.rng.random() < pruned else 0 for n in last]
        shape = (layers, len(blocks), max(blocks) + int(self.rng.integers(0, 3)))
        # Any number but 0 keeps a block.
        kept = self.rng.integers(1, 256, shape) * (self.rng.random(shape) < self.rng.random())
        return decoders.Choice(block_tokens, kept.astype(np.uint8), np.array(blocks, np.int64) * block_tokens)

    def alone(self, request: int) -> tuple[oracle.Step, Any]:
        begin = sum(self.new[:request])
        step = decoders.step_of([self.slots[request]], [self.lengths[request]], [self.new[request]])
        return step, self.ids[begin : begin + self.new[request]]

    def mass(self, block_tokens: int, more: int = 0) -> Any:
        """Room for it, and for ``more`` blocks than there are; NaN."""
        blocks = -(-max(self.lengths) // block_tokens) + more
        return np.full((LAYERS, len(self.lengths), blocks), np.nan, np.float32)


def case_of(
    family: str, lengths: list[int], seed: int, *, bf16: bool, integer: bool = False, prompts: bool = False
) -> Case:
    """Decoded requests, and with ``prompts`` ones with more new tokens too."""
    rng, room = checks.generator(seed), sum(lengths) + 3
    new = [
        int(rng.integers(1, min(length, 40) + 1)) if prompts and rng.random() < 0.4 else 1
        for length in lengths
    ]
    pair = decoders.make(library(), family, seed, bf16=bf16, integer=integer, layers=LAYERS, room=room)
    pair.fill(rng)
    slots = decoders.shuffled_slots(lengths, seed, room)
    return Case(pair, slots, lengths, new, rng.integers(0, decoders.VOCABULARY, sum(new)), rng)


# ------------------------------------------------------------------------------------------------- what is read
@settings(max_examples=40)
@given(FAMILIES, LENGTHS, BLOCK_TOKENS, st.booleans(), st.booleans(), SEEDS)
def test_blocks_that_are_left_out_are_a_shorter_list_of_slots(
    family, lengths, block_tokens, bf16, integer, seed
) -> None:
    case = case_of(family, lengths, seed, bf16=bf16, integer=integer, prompts=True)
    choice = case.choice(block_tokens, layers=1)
    got = case.pair.forward(case.step, case.ids, **choice.arguments())
    checks.check_same_bits(got, case.pair.forward(choice.step(case.step, 0), case.ids))
    every = decoders.Choice(block_tokens, np.repeat(choice.kept, LAYERS, 0), choice.tail)
    checks.check_same_bits(got, case.pair.forward(case.step, case.ids, **every.arguments()))


@settings(max_examples=25)
@given(FAMILIES, LENGTHS, BLOCK_TOKENS, st.sampled_from([1, LAYERS]), st.booleans(), SEEDS)
def test_all_blocks_and_no_tail_are_what_is_read_without(
    family, lengths, block_tokens, layers, bf16, seed
) -> None:
    case = case_of(family, lengths, seed, bf16=bf16, prompts=True)
    plain = case.pair.forward(case.step, case.ids)
    choice = case.choice(block_tokens, layers=layers, pruned=1.0)
    for kept, tail in ((np.ones_like(choice.kept), choice.tail), (choice.kept, np.zeros_like(choice.tail))):
        same = decoders.Choice(block_tokens, kept, tail)
        checks.check_same_bits(case.pair.forward(case.step, case.ids, **same.arguments()), plain)


@settings(max_examples=40)
@given(FAMILIES, LENGTHS, BLOCK_TOKENS, st.booleans(), SEEDS)
def test_each_layer_reads_its_own_blocks_and_no_others(family, lengths, block_tokens, bf16, seed) -> None:
    case = case_of(family, lengths, seed, bf16=bf16, prompts=True)
    choice = case.choice(block_tokens, layers=LAYERS)
    read = [choice.step(case.step, layer) for layer in range(LAYERS)]
    for layer in range(LAYERS):
        case.pair.forget(np.setdiff1d(case.step.kv_slots, read[layer].kv_slots), layer)
    got = case.pair.forward(case.step, case.ids, **choice.arguments())
    expected = case.pair.forward_plain(case.step, case.ids, read=read)
    checks.check_close(got, expected, (4 * checks.BFLOAT16 if bf16 else 2e-4) * np.abs(expected).max())


@settings(max_examples=25)
@given(FAMILIES, LENGTHS, BLOCK_TOKENS, st.sampled_from([1, LAYERS]), st.booleans(), st.booleans(), SEEDS)
def test_neighbours_that_are_pruned_or_not_do_not_change_a_request(
    family, lengths, block_tokens, layers, bf16, integer, seed
) -> None:
    case = case_of(family, [*lengths, 33], seed, bf16=bf16, integer=integer, prompts=True)
    choice = case.choice(block_tokens, layers=layers, pruned=0.5)
    every = case.pair.forward(case.step, case.ids, **choice.arguments())
    for r, (begin, end) in enumerate(zip(case.step.q_indptr, case.step.q_indptr[1:], strict=False)):
        step, ids = case.alone(r)
        checks.check_same_bits(case.pair.forward(step, ids, **choice.only(r).arguments()), every[begin:end])
        if choice.tail[r] == 0:
            checks.check_same_bits(case.pair.forward(step, ids), every[begin:end])


def test_dropping_a_block_changes_its_request_and_no_other(native) -> None:
    case = case_of("llama", [200, 200], 1, bf16=False)
    kept, tail = np.ones((LAYERS, 2, 10), np.uint8), np.array([160, 160])
    arguments = {"block_tokens": 16, "kept": kept, "tail": tail}
    before = case.pair.forward(case.step, case.ids, **arguments)
    kept[LAYERS - 1, 1, 3] = 0
    after = case.pair.forward(case.step, case.ids, **arguments)
    checks.check_same_bits(before[0], after[0])
    assert (before[1] != after[1]).any()


def test_blocks_that_change_during_a_step_are_those_at_its_start_in_all_layers(native) -> None:
    case = case_of("llama", [390, 390], 1, bf16=False)
    kept, tail = np.ones((LAYERS, 2, 24), np.uint8), np.array([384, 384])
    arguments, ends = {"block_tokens": 16, "kept": kept, "tail": tail}, threading.Event()
    allowed = set()
    for value in (0, 1):
        kept.fill(value)
        allowed.add(case.pair.forward(case.step, case.ids, **arguments).tobytes())

    def change() -> None:
        while not ends.is_set():
            kept.fill(1 - kept[0, 0, 0])  # small: holds the interpreter's lock

    other = threading.Thread(target=change)
    other.start()
    try:
        seen = {case.pair.forward(case.step, case.ids, **arguments).tobytes() for _ in range(60)}
    finally:
        ends.set()
        other.join()
    assert seen <= allowed


# ------------------------------------------------------------------------------------------------- what is received
@settings(max_examples=40)
@given(FAMILIES, LENGTHS, BLOCK_TOKENS, st.sampled_from([0, 1, LAYERS]), st.booleans(), SEEDS)
def test_mass_is_the_attention_of_requests_that_read_everything(
    family, lengths, block_tokens, layers, bf16, seed
) -> None:
    case = case_of(family, lengths, seed, bf16=bf16)
    choice = case.choice(block_tokens, layers=max(layers, 1), pruned=0.5 if layers else 0.0)
    mass, received = case.mass(block_tokens, seed % 3), []
    arguments = choice.arguments() if layers else {"block_tokens": block_tokens}
    got = case.pair.forward(case.step, case.ids, mass=mass, **arguments)
    checks.check_same_bits(got, case.pair.forward(case.step, case.ids, **(arguments if layers else {})))
    read = [choice.step(case.step, layer) for layer in range(LAYERS)]
    case.pair.forward_plain(case.step, case.ids, read=read, received=received)
    expected = np.zeros(mass.shape)
    for r in np.flatnonzero(choice.tail == 0):
        for layer in range(LAYERS):
            begin, end = read[layer].kv_indptr[r : r + 2]
            np.add.at(expected[layer, r], np.arange(end - begin) // block_tokens, received[layer][begin:end])
    assert mass[:, choice.tail > 0].tobytes().strip(b"\0") == b""
    checks.check_close(mass.sum(2, dtype=np.float64), np.repeat((choice.tail == 0)[None], LAYERS, 0), 1e-5)
    # Keys are rounded once in both, but for the newest, and what the layers before give is only close.
    checks.check_close(mass, expected, 4 * checks.BFLOAT16 if bf16 else 2e-4)


@settings(max_examples=20)
@given(FAMILIES, LENGTHS, BLOCK_TOKENS, st.booleans(), SEEDS)
def test_mass_has_the_same_bits_in_any_batch_and_with_any_threads(
    family, lengths, block_tokens, bf16, seed
) -> None:
    case, native = case_of(family, [*lengths, 150], seed, bf16=bf16), library()
    choice = case.choice(block_tokens, layers=LAYERS, pruned=0.5)
    every = case.mass(block_tokens)
    hidden = case.pair.forward(case.step, case.ids, mass=every, **choice.arguments())
    before = native.threads()
    try:
        for threads in (1, 3):
            native.set_threads(threads)
            again = case.mass(block_tokens)
            got = case.pair.forward(case.step, case.ids, mass=again, **choice.arguments())
            checks.check_same_bits(got, hidden)
            checks.check_same_bits(again, every)
    finally:
        native.set_threads(before)
    for r in range(len(case.lengths)):
        step, ids = case.alone(r)
        alone = np.full((LAYERS, 1, every.shape[2]), np.nan, np.float32)
        case.pair.forward(step, ids, mass=alone, **choice.only(r).arguments())
        checks.check_same_bits(alone[:, 0], np.ascontiguousarray(every[:, r]))


def test_a_block_larger_than_any_context_receives_everything(native) -> None:
    case = case_of("llama", [300, 1], 1, bf16=False)
    mass = case.mass(2**31 - 1)
    case.pair.forward(case.step, case.ids, block_tokens=2**31 - 1, mass=mass)
    checks.check_close(mass, np.ones((LAYERS, 2, 1)), 1e-5)


def test_a_step_of_no_requests_has_no_blocks(native) -> None:
    pair, none = decoders.make(native, "llama", 1), np.zeros(0, np.int64)
    step = oracle.Step(none, none, np.zeros(1, np.int64), none, np.zeros(1, np.int64))
    kept, mass = np.zeros((1, 0, 5), np.uint8), np.zeros((2, 0, 5), np.float32)
    assert pair.forward(step, none, block_tokens=4, kept=kept, tail=none, mass=mass).shape == (0, 48)


# ------------------------------------------------------------------------------------------------- what is refused
def kept(layers: int = 1, requests: int = 2, blocks: int = 3) -> Any:
    return np.ones((layers, requests, blocks), np.uint8)


def mass(layers: int = 2, requests: int = 2, blocks: int = 3) -> Any:
    return np.full((layers, requests, blocks), 7.0, np.float32)


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


PROMPT = {
    "ids": ints(0, 1, 2), "positions": ints(7, 8, 0), "out_slots": ints(7, 8, 9), "kv_indptr": ints(0, 9, 10),
    "kv_slots": np.arange(10), "q_indptr": ints(0, 2, 3), "hidden_states": np.full((3, 48), 7.0, np.float32),
}  # fmt: skip
NO_MEMORY = torch.zeros(2, 2, 3, dtype=torch.float32, device="meta")
# What differs from two decoded requests, of 10 and of 9 tokens, in blocks of 4; and what is said of it.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no block_tokens": ({"block_tokens": 0}, "block_tokens must be at least 1"),
    "block_tokens -4": ({"block_tokens": -4}, "block_tokens must be at least 1"),
    "block_tokens 0 for mass": (
        {"block_tokens": 0, "kept": None, "tail": None},
        "block_tokens must be at least 1",
    ),
    "kept without tail": ({"tail": None}, "kept and tail come together"),
    "tail without kept": ({"kept": None}, "kept and tail come together"),
    "kept of 3 layers": ({"kept": kept(3)}, "kept must have 1 layer, or the decoder's"),
    "kept of no layer": ({"kept": kept(0)}, "kept must have 1 layer, or the decoder's"),
    "kept of too few requests": ({"kept": kept(1, 1)}, r"kept must be \[layers, requests, blocks\]"),
    "kept of too many requests": ({"kept": kept(2, 3)}, r"kept must be \[layers, requests, blocks\]"),
    "too few tails": ({"tail": ints(4)}, r"tail must be \[requests\]"),
    "too many tails": ({"tail": ints(4, 4, 0)}, r"tail must be \[requests\]"),
    "tail -4": ({"tail": ints(4, -4)}, r"tail\[1\] is -4; accepted: 0 to"),
    "tail past any sum": ({"tail": ints(2**62, 0)}, r"tail\[0\] is 4611686018427387904; accepted: 0 to"),
    "tail behind the newest token": ({"tail": ints(12, 4)}, "the tail must hold the newest token"),
    "tail at the end": (
        {"tail": ints(9, 9), "block_tokens": 3, "kept": kept(2)},
        "the tail must hold the newest token",
    ),
    "tail within a block": ({"tail": ints(4, 6)}, "tail must be a multiple of block_tokens"),
    "too few blocks in kept": ({"tail": ints(4, 8), "kept": kept(1, 2, 1)}, "kept must cover what is before it"),
    "kept of no blocks": ({"kept": kept(2, 2, 0)}, "kept must cover what is before it"),
    "a tail of new tokens": (
        PROMPT | {"tail": ints(4, 0), "mass": None},
        "only decoded requests leave blocks out: tail is 0 for others",
    ),
    "mass of new tokens": (PROMPT | {"kept": None, "tail": None}, "mass is for requests with one query"),
    "mass of new tokens and blocks": (PROMPT | {"tail": ints(0, 0)}, "mass is for requests with one query"),
    "mass of one layer": ({"mass": mass(1)}, r"mass must be \[layers, requests, blocks\]"),
    "mass of too many layers": ({"mass": mass(3)}, r"mass must be \[layers, requests, blocks\]"),
    "mass of too few requests": ({"mass": mass(2, 1)}, r"mass must be \[layers, requests, blocks\]"),
    "mass of too few blocks": ({"mass": mass(2, 2, 2)}, "mass has too few blocks"),
    "mass of no blocks": ({"mass": mass(2, 2, 0)}, "mass has too few blocks"),
    "mass without memory": ({"mass": NO_MEMORY}, "incompatible function arguments"),
    "choices of too few requests": ({"choices": [None]}, "choices must have one entry a request"),
    "kept of bool": ({"kept": kept().astype(bool)}, "incompatible function arguments"),
    "kept of int64": ({"kept": kept().astype(np.int64)}, "incompatible function arguments"),
    "kept of two dimensions": ({"kept": kept()[0]}, "incompatible function arguments"),
    "kept with holes": ({"kept": kept(1, 2, 6)[:, :, ::2]}, "incompatible function arguments"),
    "tail of int32": ({"tail": np.array([4, 4], np.int32)}, "incompatible function arguments"),
    "mass of float64": ({"mass": mass().astype(np.float64)}, "incompatible function arguments"),
    "mass with holes": ({"mass": mass(2, 2, 6)[:, :, ::2]}, "incompatible function arguments"),
    "mass that is read only": (
        {"mass": np.broadcast_to(mass(2, 2, 1), (2, 2, 3))},
        "incompatible function arguments",
    ),
    "half a block_token": ({"block_tokens": 4.5}, "incompatible function arguments"),
}  # fmt: skip


def decode(pair: decoders.Pair, changed: dict[str, Any]) -> dict[str, Any]:
    """The arguments, after the call."""
    arguments: dict[str, Any] = {
        "ids": ints(0, 1), "positions": ints(9, 8), "out_slots": ints(9, 18), "kv_indptr": ints(0, 10, 19),
        "kv_slots": np.arange(19), "q_indptr": ints(0, 1, 2), "hidden_states": np.full((2, 48), 7.0, np.float32),
        "block_tokens": 4, "kept": kept(), "tail": ints(4, 8), "mass": mass(),
    }  # fmt: skip
    arguments |= changed
    pair.fast.forward(**arguments)
    return arguments


def test_what_the_refused_arguments_differ_from_is_accepted(native) -> None:
    pair = decoders.make(native, "llama", 1)
    pair.fill(checks.generator(1))
    assert not decode(pair, {})["mass"].any()
    assert decode(pair, {"kept": kept(2), "tail": ints(0, 8)})["mass"][:, 0].all()
    decode(pair, PROMPT | {"tail": ints(0, 0), "mass": None})


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_and_nothing_is_written(native, name: str) -> None:
    changed, said = REFUSED[name]
    pair = decoders.make(native, "llama", 1)
    pair.fill(checks.generator(1))
    before = [cache.copy() for cache in pair.caches]
    hidden = np.full((len(changed.get("positions", (0, 0))), 48), 7.0, np.float32)
    masses = changed.get("mass", mass())
    with pytest.raises((TypeError, ValueError), match=said):
        decode(pair, changed | {"hidden_states": hidden, "mass": masses})
    assert (hidden == 7.0).all()
    assert masses is None or masses is NO_MEMORY or (masses == 7.0).all()
    for cache, held in zip(pair.caches, before, strict=True):
        checks.check_same_bits(cache, held)


def test_a_model_with_a_sliding_window_leaves_nothing_out(native) -> None:
    pair = decoders.make(native, "windowed", 1)
    pair.fill(checks.generator(1))
    before = [cache.copy() for cache in pair.caches]
    for changed in ({}, {"mass": None}, {"kept": None, "tail": None}):
        with pytest.raises(ValueError, match="blocks of a model with a sliding window cannot be left out"):
            decode(pair, changed)
    for cache, held in zip(pair.caches, before, strict=True):
        checks.check_same_bits(cache, held)
