"""Decoded requests that choose in each layer, by their query, which blocks of their contexts they read."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Any

import choice_checks as choices
import kernel_checks as checks
import kernel_decoders as decoders
import numpy as np
import pytest
from choice_checks import Keys, Shares, check_shares, keys_of, shares_of
from hypothesis import given, settings
from hypothesis import strategies as st
from test_native_blocks import BLOCK_TOKENS, FAMILIES, LAYERS, LENGTHS, SEEDS, Case, case_of

from sgl_entropic_kernels import reference_choice as rule
from sgl_entropic_kernels import reference_ops as oracle
from sgl_entropic_kernels.native import library

# Without norms of heads, which are not an operation of their own.
COMPOSED = st.sampled_from(["llama", "qwen2", "interleaved", "capped"])


# ------------------------------------------------------------------------------------------------- the rule
@settings(max_examples=150)
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 9), st.sampled_from([16, 48, 64, 160])),
    st.integers(1, 70),
    st.sampled_from([8, 16, 32, 48, 64, 256]) | st.integers(1, 20),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.0, 3.0]),
    SEEDS,
)
def test_the_blocks_of_the_largest_scores_are_read(
    heads, blocks, block_tokens, bf16, bounds, cap, seed
) -> None:
    blocks = min(blocks, 1500 // block_tokens)
    choices.check_rule(heads, blocks, block_tokens, seed, bf16=bf16, bounds=bounds, cap=cap)


@given(st.integers(1, 400), st.integers(1, 80), st.floats(0, 1), SEEDS)
def test_layers_lean_to_the_last_and_add_up(blocks, layers, tilt, seed) -> None:
    """Of the oracle that the kernel is held to, and of the kernel in every layer of one model."""
    rng = checks.generator(seed)
    plain = shares_of(rng, blocks)
    least = plain.sinks + plain.recent
    found = rule.layer_budgets(plain.budget, blocks, least, layers, tilt)
    assert sum(found) == layers * plain.budget
    assert all(least <= one <= blocks for one in found)
    assert found[0] <= plain.budget <= found[-1]
    room = min(tilt * plain.budget, blocks - plain.budget, plain.budget - least) if layers > 1 else 0
    line = [plain.budget + room * (2 * layer / max(1, layers - 1) - 1) for layer in range(layers)]
    assert np.abs(np.subtract(found, line)).max() <= 1 + 1e-5


def test_every_layer_of_a_model_reads_its_share(native) -> None:
    rng = checks.generator(1)
    case = keys_of(rng, (1, 3, 16), 4 * 50, 4, bf16=False)
    for tilt, budget in ((0.0, 20), (0.1, 20), (0.5, 20), (0.5, 40), (1.0, 20), (1.0, 3)):
        shares = Shares(50, budget, 1, 1, np.zeros(50, np.float32), tilt)
        keys = case.fresh(bounds=False, layers=7)
        found = [int(case.choose(shares, keys, layer=layer).sum()) for layer in range(7)]
        assert found == rule.layer_budgets(budget, 50, 2, 7, tilt)
        assert found == sorted(found)
        assert (found[0] == found[-1]) == (tilt == 0.0)


def test_a_bound_is_no_less_than_the_product_of_any_key() -> None:
    rng = checks.generator(1)
    keys, q = checks.normal(rng, 60, 2, 16), checks.normal(rng, 6, 16)
    stand = rule.block_bounds(keys, 7)
    assert stand.shape == (8, 2, 2, 16)
    for h in range(6):
        most = (stand[:, :, h // 3] * q[h]).max(1).sum(1)
        held = (keys[:56, h // 3] @ q[h]).reshape(8, 7).max(1)
        assert (most >= held - checks.BFLOAT16 * np.abs(keys).max() * np.abs(q[h]).sum()).all()


@pytest.mark.parametrize("bounds", [False, True])
@pytest.mark.parametrize("blocks", [5, 16, 37])
def test_of_equal_blocks_the_later_ones_are_read(native, blocks, bounds) -> None:
    case = keys_of(checks.generator(1), (1, 3, 16), 2 * blocks, 2, bf16=False)
    case.cache[case.slots] = np.tile(case.cache[case.slots[:2]], (blocks, 1, 1))
    kept = case.choose(Shares(blocks, 4, 1, 1, np.zeros(blocks, np.float32)), case.fresh(bounds=bounds))
    assert np.flatnonzero(kept[0]).tolist() == [0, *range(blocks - 3, blocks)]


@pytest.mark.parametrize("head_dim", [16, 128, 144, 256, 272])
@pytest.mark.parametrize("sign", [-1, 1])
def test_one_key_that_stands_out_is_found(native, head_dim, sign) -> None:
    """All of its codes are the largest (or the least) and all numbers of the query too: no sum can be larger or less."""
    case = keys_of(checks.generator(1), (1, 3, head_dim), 320, 16, bf16=False)
    # Every number of the keys has the same mean and deviation, so that none of the query is smaller than another.
    case.cache[case.slots] = np.float32(0.25) * checks.normal(checks.generator(2), 320, 1, 1)
    case.cache[case.slots[100]] = sign * 9.0
    case.cache[case.slots[101]] = -sign * 9.0
    case.q[:] = sign
    kept = case.choose(Shares(20, 1, 0, 0, np.zeros(20, np.float32)), case.fresh(bounds=False))
    assert np.flatnonzero(kept[0]).tolist() == [100 // 16]


def test_a_key_among_others_of_its_block_is_found(native) -> None:
    """Where the mean of its block says nothing of it."""
    rng = checks.generator(3)
    case = keys_of(rng, (1, 1, 64), 512, 16, bf16=True)
    held = checks.normal(rng, 512, 1, 64)
    held[200] = 4.0 * case.q[0] / np.abs(case.q).max()
    held[201] = -held[200]
    case.cache[case.slots] = oracle.to_bfloat16(held)
    kept = case.choose(Shares(32, 3, 0, 0, np.zeros(32, np.float32)), case.fresh(bounds=False))
    assert kept[0, 200 // 16] == 1


def test_a_bonus_moves_a_block_and_one_that_is_no_number_always_wins(native) -> None:
    case = keys_of(checks.generator(1), (1, 3, 16), 80, 4, bf16=True)
    bonus = np.zeros(20, np.float32)
    bonus[3], bonus[8], bonus[11], bonus[12] = 1e30, np.nan, -np.inf, 2e30
    keys = case.fresh(bounds=False)
    assert np.flatnonzero(case.choose(Shares(20, 1, 0, 0, bonus), keys)[0]).tolist() == [8]
    assert np.flatnonzero(case.choose(Shares(20, 3, 0, 0, bonus), keys)[0]).tolist() == [3, 8, 12]
    assert np.flatnonzero(case.choose(Shares(20, 19, 0, 0, bonus), keys)[0] == 0).tolist() == [11]


@pytest.mark.parametrize("bounds", [False, True])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38, -3e38])
@pytest.mark.parametrize("where", ["a number", "a head", "all"])
def test_a_query_that_is_no_number_still_chooses_as_many(native, where, value, bounds) -> None:
    rng = checks.generator(1)
    for blocks in (1, 15, 16, 50):
        case = keys_of(rng, (2, 3, 16), 3 * blocks, 3, bf16=False)
        if where == "a number":
            case.q[4, 3] = value
        else:
            case.q[slice(None) if where == "all" else 4] = value
        shares = shares_of(rng, blocks)
        found = case.choose(shares, case.fresh(bounds=bounds))
        check_shares(found, shares, np.zeros((2, blocks)))
        if where != "all":
            # It is a query of the second KV head: the first chooses as it would.
            clean = case.choose(
                shares, case.fresh(bounds=bounds), q=np.nan_to_num(case.q, posinf=0, neginf=0)
            )
            assert (found[0] == clean[0]).all()
        # And so does one whose keys are none.
        case.cache[case.slots[1]] = value
        check_shares(case.choose(shares, case.fresh(bounds=bounds)), shares, np.zeros((2, blocks)))


# ------------------------------------------------------------------------------------------------- a step
@dataclass
class Choosing:
    """A step in which some requests choose, some read given blocks, and some read all."""

    case: Case
    given: decoders.Choice
    shares: list[Shares | None]
    bounds: bool

    def fresh(self) -> list[Any]:
        plain = self.case.pair.plain
        return [
            None if s is None else library().BlockKeys(LAYERS, plain.kv_heads, plain.head_dim, self.bounds)
            for s in self.shares
        ]

    def arguments(self, keys: list[Any] | None = None) -> dict[str, Any]:
        every = self.fresh() if keys is None else keys
        rows = [None if s is None else s.row(k) for s, k in zip(self.shares, every, strict=True)]
        return self.given.arguments() | {"choices": rows}

    def forward(self, keys: list[Any] | None = None, **more: Any) -> Any:
        return self.case.pair.forward(self.case.step, self.case.ids, **self.arguments(keys), **more)

    def alone(self, request: int) -> Any:
        step, ids = self.case.alone(request)
        only = replace(self, given=self.given.only(request), shares=[self.shares[request]])
        return self.case.pair.forward(step, ids, **only.arguments())


def choosing(case: Case, block_tokens: int, *, layers: int, bounds: bool, share: float = 0.6) -> Choosing:
    given = case.choice(block_tokens, layers=layers)
    shares = [
        shares_of(case.rng, int(tail) // block_tokens) if tail and case.rng.random() < share else None
        for tail in given.tail
    ]
    return Choosing(case, given, shares, bounds)


def composed(step: Choosing) -> tuple[Any, Any]:
    """Hidden states of the operations called one by one, and the slots of each layer, request that chooses and KV head."""
    case, native = step.case, library()
    pair, whole, scoring = case.pair, case.step, case.pair.plain.scoring
    plain, half, d = pair.plain, len(pair.caches) // 2, pair.plain.head_dim
    read: dict[tuple[int, int, int], Any] = {}
    x, keys = plain.embedding[case.ids], step.fresh()
    normed = np.empty_like(x)
    for i, (qkv, o, gate_up, down, input_norm, post_norm, qkv_bias, o_bias, *_) in enumerate(pair.weights):
        k_cache, v_cache = pair.caches[i].copy(), pair.caches[half + i].copy()
        native.rms_norm(x, input_norm, plain.eps, normed)
        heads = checks.product(native, normed, qkv, bias=qkv_bias)
        native.rope_write_kv(
            heads, whole.positions, whole.out_slots, plain.table, plain.neox, k_cache, v_cache
        )
        q = np.ascontiguousarray(heads[:, : plain.q_heads * d]).reshape(len(x), plain.q_heads, d)
        seen, attended = step.given.step(whole, i), np.empty_like(q)
        pages = (seen.kv_indptr, seen.kv_slots, np.ones(len(seen.kv_indptr) - 1, np.int64), 1)
        native.paged_attention(
            q,
            k_cache,
            v_cache,
            *pages,
            scoring.scale,
            attended,
            seen.q_indptr,
            scoring.window,
            scoring.logit_cap,
        )
        for r, shares in enumerate(step.shares):
            if shares is None:
                continue
            own, row = whole.kv_slots[whole.kv_indptr[r] : whole.kv_indptr[r + 1]], whole.q_indptr[r]
            of_request = Keys(k_cache, own, q[row], step.given.block_tokens, scoring)
            kept = of_request.choose(shares, keys[r], layer=i)
            group = plain.q_heads // plain.kv_heads
            for h in range(plain.kv_heads):
                heads_of = slice(h * group, (h + 1) * group)
                only = decoders.Choice(
                    step.given.block_tokens, kept[None, h : h + 1], step.given.tail[r : r + 1]
                )
                slots = read[i, r, h] = own[only.sees(0, len(own), 0)]
                out = np.empty((1, group, d), np.float32)
                native.paged_attention(
                    np.ascontiguousarray(q[row : row + 1, heads_of]),
                    np.ascontiguousarray(k_cache[:, h : h + 1]),
                    np.ascontiguousarray(v_cache[:, h : h + 1]),
                    np.array([0, len(slots)]),
                    slots,
                    np.ones(1, np.int64),
                    1,
                    scoring.scale,
                    out,
                    np.array([0, 1]),
                    scoring.window,
                    scoring.logit_cap,
                )
                attended[row, heads_of] = out[0]
        x = checks.product(native, attended.reshape(len(x), -1), o, bias=o_bias, add=True, out=x.copy())
        native.rms_norm(x, post_norm, plain.eps, normed)
        wide = checks.product(native, normed, gate_up)
        narrow = np.empty((len(x), wide.shape[1] // 2), np.float32)
        native.silu_mul(wide, narrow)
        x = checks.product(native, narrow, down, add=True, out=x.copy())
    native.rms_norm(x, plain.final_norm, plain.eps, normed)
    return normed, read


@settings(max_examples=60)
@given(COMPOSED, LENGTHS, BLOCK_TOKENS, st.sampled_from([1, LAYERS]), st.booleans(), st.booleans(), SEEDS)
def test_a_step_reads_what_the_query_of_each_layer_chooses(
    family, lengths, block_tokens, layers, bf16, bounds, seed
) -> None:
    case = case_of(family, lengths, seed, bf16=bf16, prompts=True)
    step = choosing(case, block_tokens, layers=layers, bounds=bounds)
    got = step.forward()
    hidden, read = composed(step)
    checks.check_same_bits(got, hidden)
    # And nothing else: what a KV head leaves out may be no number, once it is known what stands for its blocks.
    keys, half = step.fresh(), len(case.pair.caches) // 2
    step.forward(keys)
    for (layer, r, head), slots in read.items():
        out = np.setdiff1d(case.step.kv_slots[case.step.kv_indptr[r] : case.step.kv_indptr[r + 1]], slots)
        for cache in (case.pair.caches[layer], case.pair.caches[half + layer]):
            cache[out, head] = 0x7FC0 if bf16 else np.nan
    checks.check_same_bits(step.forward(keys), got)


@settings(max_examples=25)
@given(FAMILIES, LENGTHS, BLOCK_TOKENS, st.booleans(), st.booleans(), SEEDS)
def test_a_budget_of_all_blocks_reads_everything(family, lengths, block_tokens, bf16, bounds, seed) -> None:
    case = case_of(family, lengths, seed, bf16=bf16, prompts=True)
    step = choosing(case, block_tokens, layers=1, bounds=bounds, share=1.0)
    step.given.kept[:] = 1
    step.shares = [None if s is None else replace(s, budget=s.blocks) for s in step.shares]
    checks.check_same_bits(step.forward(), case.pair.forward(case.step, case.ids))


@settings(max_examples=25)
@given(FAMILIES, LENGTHS, BLOCK_TOKENS, st.booleans(), st.booleans(), SEEDS)
def test_neighbours_and_threads_do_not_change_a_request(
    family, lengths, block_tokens, integer, bounds, seed
) -> None:
    case, native = case_of(family, [*lengths, 150], seed, bf16=True, integer=integer, prompts=True), library()
    step = choosing(case, block_tokens, layers=LAYERS, bounds=bounds)
    every, before = step.forward(), native.threads()
    try:
        for threads in (1, 3):
            native.set_threads(threads)
            checks.check_same_bits(step.forward(), every)
    finally:
        native.set_threads(before)
    for r, (begin, end) in enumerate(zip(case.step.q_indptr, case.step.q_indptr[1:], strict=False)):
        checks.check_same_bits(step.alone(r), every[begin:end])


def test_requests_that_choose_have_no_mass_and_others_all_of_theirs(native) -> None:
    case = case_of("llama", [300, 300], 1, bf16=True)
    bonus, kept = np.zeros(18, np.float32), np.zeros((1, 2, 18), np.uint8)
    given_none = decoders.Choice(16, kept, np.array([288, 0]))
    step, mass = Choosing(case, given_none, [Shares(18, 9, 1, 1, bonus), None], False), case.mass(16)
    checks.check_same_bits(step.forward(mass=mass), step.forward())
    assert not mass[:, 0].any()
    checks.check_close(mass[:, 1].sum(1), np.ones(LAYERS), 1e-5)


# ------------------------------------------------------------------------------------------------- keys that are kept
@settings(max_examples=20)
@given(
    FAMILIES,
    st.integers(1, 80) | st.sampled_from([120, 250, 255, 256, 500]),
    st.integers(1, 12),
    st.sampled_from([1, 2, 5, 16]),
    st.booleans(),
    st.booleans(),
    SEEDS,
)
def test_keys_grow_with_their_context(family, first, steps, block_tokens, bf16, bounds, seed) -> None:
    whole, rng = first + 3 * steps, checks.generator(seed)
    case = case_of(family, [whole, 40], seed, bf16=bf16)
    plain, native = case.pair.plain, library()
    kept_on = native.BlockKeys(LAYERS, plain.kv_heads, plain.head_dim, bounds)
    for length in sorted(rng.choice(np.arange(first, whole), steps, replace=False) + 1):
        now = replace(case, lengths=[int(length), 40], ids=rng.integers(0, decoders.VOCABULARY, 2))
        blocks = (int(length) - 1) // block_tokens
        given_none = decoders.Choice(
            block_tokens, np.zeros((1, 2, blocks), np.uint8), np.array([blocks * block_tokens, 0])
        )
        step = Choosing(now, given_none, [shares_of(rng, blocks) if blocks else None, None], bounds)
        checks.check_same_bits(step.forward([kept_on, None]), step.forward())
        scored = step.shares[0] is not None
        assert kept_on.ready == blocks if scored else kept_on.ready == 0
        # Two numbers of two bytes for a block, or two bits for a token.
        least = blocks * 4 if bounds else blocks * block_tokens / 4
        assert kept_on.nbytes >= LAYERS * plain.kv_heads * plain.head_dim * least * scored


def test_keys_that_are_reset_are_computed_anew_and_may_have_other_blocks(native) -> None:
    rng = checks.generator(1)
    case = keys_of(rng, (1, 3, 16), 160, 4, bf16=False)
    keys, shares = case.fresh(bounds=False), Shares(40, 10, 0, 0, np.zeros(40, np.float32))
    before = case.choose(shares, keys)
    case.cache[:] = checks.normal(rng, *case.cache.shape)
    assert (case.choose(shares, keys) == before).all()
    keys.reset()
    assert keys.ready == 0
    after = case.choose(shares, keys)
    assert (after == case.choose(shares, case.fresh(bounds=False))).all()
    assert (after != before).any()
    case.block_tokens = 2
    with pytest.raises(ValueError, match="the keys of a choice are of blocks of 4 tokens, not 2"):
        case.choose(shares, keys)
    keys.reset()
    assert (case.choose(shares, keys) == case.choose(shares, case.fresh(bounds=False))).all()


def test_keys_that_a_step_uses_are_neither_reset_nor_used_by_another(native) -> None:
    case = case_of("llama", [390], 1, bf16=True)
    given_none = decoders.Choice(2, np.zeros((1, 1, 194), np.uint8), np.array([388]))
    step = Choosing(case, given_none, [Shares(194, 50, 1, 1, np.zeros(194, np.float32))], False)
    expected, keys, outcomes = step.forward().tobytes(), step.fresh(), []

    def decode() -> None:
        for _ in range(60):
            try:
                outcomes.append(step.forward(keys).tobytes() == expected)
            except ValueError as error:
                outcomes.append(str(error))

    others = [threading.Thread(target=decode) for _ in range(3)]
    for other in others:
        other.start()
    refused = set()
    while any(other.is_alive() for other in others):
        try:
            keys[0].reset()
        except ValueError as error:
            refused.add(str(error))
        assert keys[0].ready in (0, *range(195))
    for other in others:
        other.join()
    assert set(outcomes) <= {True, "the keys of a choice are in use by another request or step"}
    assert True in outcomes
    assert refused <= {"the keys are in use by a step"}
    assert step.forward(keys).tobytes() == expected


# ------------------------------------------------------------------------------------------------- what is refused
def ints(*values: int) -> Any:
    return np.array(values, np.int64)


def bonus(blocks: int = 2) -> Any:
    return np.zeros(blocks, np.float32)


def new_keys(layers: int = 2, kv_heads: int = 2, head_dim: int = 16, *, bounds: bool = False) -> Any:
    return library().BlockKeys(layers, kv_heads, head_dim, bounds)


def row(**changed: Any) -> tuple[Any, ...]:
    parts = {
        "keys": None,
        "blocks": 2,
        "budget": 1,
        "sinks": 0,
        "recent": 1,
        "bonus": bonus(),
        "tilt": 0.0,
    } | changed
    parts["keys"] = new_keys() if parts["keys"] is None else parts["keys"]
    return tuple(parts.values())


SHARES_SAID = "accepted: sinks [+] recent <= budget <= blocks"
KEYS_SAID = "the keys of a choice must be of the decoder's layers, kv_heads and head_dim"
ENDS_SAID = "the blocks of a choice must end where the tail begins"
TYPE_SAID = "incompatible function arguments"
# The second of two decoded requests' rows, in blocks of 4 and with a tail from token 8; and what is said of it.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "more sinks than the budget": ({"sinks": 1}, SHARES_SAID),
    "sinks -1": ({"sinks": -1}, SHARES_SAID),
    "recent -1": ({"recent": -1}, SHARES_SAID),
    "sinks past any sum": ({"sinks": 2**31 - 1}, SHARES_SAID),
    "budget 3 of 2": ({"budget": 3}, SHARES_SAID),
    "budget -1": ({"budget": -1, "recent": 0}, SHARES_SAID),
    "budget past any int": ({"budget": 2**31}, TYPE_SAID),
    "3 blocks": ({"blocks": 3, "bonus": bonus(3)}, ENDS_SAID),
    "1 block": ({"blocks": 1, "bonus": bonus(1)}, ENDS_SAID),
    "no block": ({"blocks": 0, "budget": 0, "recent": 0, "bonus": bonus(0)}, ENDS_SAID),
    "blocks -2": ({"blocks": -2}, ENDS_SAID),
    "bonus of 1": ({"bonus": bonus(1)}, r"bonus must be \[blocks\]"),
    "bonus of 3": ({"bonus": bonus(3)}, r"bonus must be \[blocks\]"),
    "bonus of float64": ({"bonus": bonus().astype(np.float64)}, TYPE_SAID),
    "bonus of two dimensions": ({"bonus": bonus()[None]}, TYPE_SAID),
    "bonus with holes": ({"bonus": bonus(4)[::2]}, TYPE_SAID),
    "half a budget": ({"budget": 0.5}, TYPE_SAID),
    "tilt -0.1": ({"tilt": -0.1}, "accepted: tilt within 0 and 1"),
    "tilt 1.1": ({"tilt": 1.1}, "accepted: tilt within 0 and 1"),
    "tilt of no number": ({"tilt": float("nan")}, "accepted: tilt within 0 and 1"),
    "keys that are none": ({"keys": 7}, TYPE_SAID),
}  # fmt: skip


@dataclass
class Two:
    """Two decoded requests, of 10 and of 9 tokens."""

    pair: decoders.Pair
    hidden: Any

    def decode(self, choices: Any, **changed: Any) -> None:
        kept = np.ones((1, 2, 2), np.uint8)
        arguments = {"block_tokens": 4, "kept": kept, "tail": ints(8, 8), "choices": choices} | changed
        self.pair.fast.forward(
            ints(0, 1), ints(9, 8), ints(9, 18), ints(0, 10, 19), np.arange(19), ints(0, 1, 2), self.hidden, **arguments
        )  # fmt: skip

    def check_refused(self, choices: Any, said: str, **changed: Any) -> None:
        before = [cache.copy() for cache in self.pair.caches]
        with pytest.raises((TypeError, ValueError), match=said):
            self.decode(choices, **changed)
        assert (self.hidden == 7.0).all()
        for cache, held in zip(self.pair.caches, before, strict=True):
            checks.check_same_bits(cache, held)


@pytest.fixture
def two(native) -> Two:
    pair = decoders.make(native, "llama", 1)
    pair.fill(checks.generator(1))
    return Two(pair, np.full((2, 48), 7.0, np.float32))


def test_what_the_refused_rows_differ_from_is_accepted(two: Two) -> None:
    two.decode([row(), row()])
    two.decode([None, row(budget=0, recent=0)])
    two.decode([None, None])
    two.decode(None)
    assert not (two.hidden == 7.0).any()


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_and_nothing_is_written(two: Two, name: str) -> None:
    changed, said = REFUSED[name]
    first = new_keys()
    two.check_refused([row(keys=first), row(**changed)], said)
    assert (first.ready, first.nbytes) == (0, 0)
    # Not claimed by the call that was refused, and free to be of other blocks.
    first.reset()
    two.decode([row(keys=first), None])
    assert first.ready == 2


def test_keys_of_another_model_another_request_or_other_blocks_are_refused(two: Two) -> None:
    for shape in ((1, 2, 16), (3, 2, 16), (2, 1, 16), (2, 2, 32)):
        two.check_refused([None, row(keys=new_keys(*shape))], KEYS_SAID)
    same = new_keys(bounds=True)
    for _ in range(2):
        two.check_refused(
            [row(keys=same), row(keys=same)], "the keys of a choice are in use by another request or step"
        )
    two.decode([row(keys=same), row()])
    two.hidden[:] = 7.0
    others = {"block_tokens": 2, "kept": np.ones((1, 2, 4), np.uint8)}
    shares = {"blocks": 4, "bonus": bonus(4)}
    said = "the keys of a choice are of blocks of 4 tokens, not 2"
    fresh = new_keys()
    two.check_refused([row(keys=fresh, **shares), row(keys=same, **shares)], said, **others)
    # A refused call says nothing of the blocks of keys that it did not come to use.
    two.decode([row(keys=fresh), row(keys=same)])


def test_choices_of_other_steps_are_refused(two: Two) -> None:
    two.check_refused([row()], "choices must have one entry a request")
    two.check_refused([row(), None, None], "choices must have one entry a request")
    two.check_refused([row(), None], "choices need kept and tail", kept=None, tail=None)
    two.check_refused([row(), None], ENDS_SAID, tail=ints(0, 8))
    two.check_refused([row(), None], ENDS_SAID, tail=ints(4, 8))
    two.check_refused([row(), None], "kept must cover what is before it", kept=np.ones((1, 2, 1), np.uint8))
    two.check_refused([row(), None], "block_tokens must be at least 1", block_tokens=0)
    two.check_refused([row()[:6], None], TYPE_SAID)
    two.check_refused(row(), TYPE_SAID)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((0, 2, 16, False), "layers and kv_heads must be at least 1"),
        ((2, 0, 16, False), "layers and kv_heads must be at least 1"),
        ((2, 2, 0, False), "head_dim must be a positive multiple of 16"),
        ((2, 2, 24, False), "head_dim must be a positive multiple of 16"),
        ((-1, 2, 16, False), "layers and kv_heads must be at least 1"),
        ((1, 1, 1040, False), "codes are of keys of at most 1024 numbers a head"),
    ],
)
def test_keys_of_no_model_are_refused(native, arguments: tuple[Any, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        native.BlockKeys(*arguments)


CACHE = np.zeros((12, 2, 16), np.float32)
KEPT_SAID = r"kept must be \[kv_heads, blocks\]"
OTHER_KEYS = "the keys of a choice must be of the cache's kv_heads and head_dim"
ALONE_REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "layer 2": ({"layer": 2}, "layer must be one of those of the keys"),
    "layer -1": ({"layer": -1}, "layer must be one of those of the keys"),
    "3 heads": ({"q": np.zeros((3, 16), np.float32)}, "q heads must be a multiple of the KV heads"),
    "wide heads": ({"q": np.zeros((4, 32), np.float32)}, OTHER_KEYS),
    "another cache": ({"k_cache": np.zeros((12, 4, 16), np.float32)}, OTHER_KEYS),
    "an integer cache": ({"k_cache": CACHE.astype(np.int32)}, "the cache must be float32, or bfloat16"),
    "too few slots": ({"slots": np.arange(7)}, "slots must hold the blocks of the choice"),
    "a slot too far": ({"slots": np.arange(5, 13)}, r"slots\[7\] is 12; accepted: 0 to 11"),
    "a slot below 0": ({"slots": np.arange(-1, 7)}, r"slots\[0\] is -1; accepted: 0 to 11"),
    "no block_tokens": ({"block_tokens": 0}, "slots must hold the blocks of the choice"),
    "large block_tokens": ({"block_tokens": 2**31 - 1}, "slots must hold the blocks of the choice"),
    "no scale": ({"scale": float("nan")}, "scale must be finite"),
    "a cap below 0": ({"logit_cap": -1.0}, "logit_cap must be finite and at least 0"),
    "a short kept": ({"kept": np.full((2, 1), 7, np.uint8)}, KEPT_SAID),
    "a long kept": ({"kept": np.full((2, 3), 7, np.uint8)}, KEPT_SAID),
    "kept of one head": ({"kept": np.full((1, 2), 7, np.uint8)}, KEPT_SAID),
    "kept of all heads alike": ({"kept": np.full(2, 7, np.uint8)}, TYPE_SAID),
    "kept of bool": ({"kept": np.ones((2, 2), bool)}, TYPE_SAID),
    "q of float64": ({"q": np.zeros((4, 16))}, TYPE_SAID),
}  # fmt: skip


@pytest.mark.parametrize("name", [*ALONE_REFUSED, *(f"row: {name}" for name in REFUSED)])
def test_a_choice_of_one_layer_is_refused_and_nothing_is_written(native, name: str) -> None:
    base = {
        "layer": 1, "q": np.zeros((4, 16), np.float32), "k_cache": CACHE, "slots": np.arange(8), "block_tokens": 4,
        "scale": 0.25, "logit_cap": 0.0, "kept": np.full((2, 2), 7, np.uint8),
    }  # fmt: skip
    keys = new_keys()
    if name.startswith("row: "):
        changed, said = REFUSED[name.removeprefix("row: ")]
        choice, arguments = row(**({"keys": keys} | changed)), base
        said = (
            "slots must hold the blocks of the choice|bonus and kept|kept must" if said == ENDS_SAID else said
        )
    else:
        changed, said = ALONE_REFUSED[name]
        choice, arguments = row(keys=keys), base | changed
    with pytest.raises((TypeError, ValueError), match=said):
        native.choose_blocks(choice, **arguments)
    assert (arguments["kept"] == 7).all() or name == "kept of bool"
    native.choose_blocks(row(keys=keys), **base)
    assert base["kept"].tolist() == [[0, 1], [0, 1]]
