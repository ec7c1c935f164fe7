"""Small decoders of every family, as float64 and as one call of the compiled kernels, and what must hold of the two."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import kernel_checks as checks
import numpy as np

from sgl_entropic_kernels import reference_ops as oracle

VOCABULARY = 57
SLOTS = 200
# name -> what its layers have beside the products
FAMILIES = {
    "llama": {},
    "qwen2": {"qkv_bias": True},
    "qwen3": {"norms": True},
    "interleaved": {"neox": False, "rotary": 8, "o_bias": True},
    "capped": {"logit_cap": 2.0},
    "windowed": {"window": 3, "logit_cap": 4.0},
}


@dataclass(frozen=True)
class Choice:
    """Which blocks of their contexts decoded requests read."""

    block_tokens: int
    kept: Any
    """uint8 [1 or layers, requests, blocks]."""
    tail: Any
    """[requests]: from which token on all is read; 0: everything."""

    def arguments(self) -> dict[str, Any]:
        return {"block_tokens": self.block_tokens, "kept": self.kept, "tail": self.tail}

    def only(self, request: int) -> Choice:
        """One request of several."""
        kept = np.ascontiguousarray(self.kept[:, request : request + 1])
        return replace(self, kept=kept, tail=self.tail[request : request + 1].copy())

    def sees(self, request: int, length: int, layer: int) -> Any:
        """Whether each of the tokens is read [length]."""
        token = np.arange(length)
        kept = self.kept[0 if len(self.kept) == 1 else layer, request]
        blocks = np.zeros(length // self.block_tokens + 1, bool)
        blocks[: len(kept)] = kept[: len(blocks)]
        return blocks[token // self.block_tokens] | (token >= self.tail[request])

    def step(self, whole: oracle.Step, layer: int) -> oracle.Step:
        """What the requests of a step read in a layer."""
        seen = []
        for r, (begin, end) in enumerate(zip(whole.kv_indptr, whole.kv_indptr[1:], strict=False)):
            seen.append(whole.kv_slots[begin:end][self.sees(r, end - begin, layer)])
        return replace(whole, kv_indptr=np.cumsum([0, *map(len, seen)]), kv_slots=np.concatenate(seen))


@dataclass
class Pair:
    """One model twice, each with caches of its own."""

    plain: oracle.Decoder
    fast: Any
    weights: list[list[Any]]
    plain_caches: list[Any]
    caches: list[Any]

    def forward(self, step: oracle.Step, ids: Any = None, embeddings: Any = None, **blocks: Any) -> Any:
        """Hidden states of the fast one [tokens, hidden]."""
        hidden = (
            np.full((len(step.positions), self.plain.embedding.shape[1]), np.nan, np.float32)
            if embeddings is None
            else embeddings.copy()
        )
        self.fast.forward(
            ids,
            step.positions,
            step.out_slots,
            step.kv_indptr,
            step.kv_slots,
            step.q_indptr,
            hidden,
            **blocks,
        )
        return hidden

    def forward_plain(self, step: oracle.Step, entered: Any, **options: Any) -> Any:
        half = len(self.plain_caches) // 2
        return self.plain.forward(
            entered, step, self.plain_caches[:half], self.plain_caches[half:], **options
        )

    def fill(self, rng: np.random.Generator) -> None:
        """Random keys and values everywhere, the same in both."""
        for cache, plain in zip(self.caches, self.plain_caches, strict=True):
            held = checks.normal(rng, *cache.shape)
            cache[:] = plain[:] = oracle.to_bfloat16(held) if cache.dtype == np.uint16 else held

    def forget(self, slots: Any, layer: int) -> None:
        """NaN at ``slots`` of a layer: who reads them will tell."""
        half = len(self.caches) // 2
        for caches in (self.caches, self.plain_caches):
            for cache in (caches[layer], caches[half + layer]):
                cache[slots] = 0x7FC0 if cache.dtype == np.uint16 else np.nan


def make(
    native: ModuleType,
    family: str,
    seed: int,
    *,
    bf16: bool = False,
    layers: int = 2,
    integer: bool = False,
    room: int = SLOTS,
) -> Pair:
    """A decoder of ``FAMILIES`` with random weights; its cache is NaN where nothing is written."""
    options: dict[str, Any] = FAMILIES[family]
    rng = checks.generator(seed)
    q_heads, kv_heads, d, hidden, intermediate = 6, 2, 16, 48, 80
    table = oracle.rope_table(room, options.get("rotary", d))

    def matrix(n: int, k: int) -> Any:
        return checks.normal(rng, n, k) / np.float32(k**0.5)

    def vector(n: int, *, wanted: bool = True) -> Any:
        return (1.0 + 0.2 * checks.normal(rng, n)).astype(np.float32) if wanted else None

    scoring = oracle.Scoring(d**-0.5, options.get("window", -1), options.get("logit_cap", 0.0))
    plain = oracle.Decoder(
        checks.normal(rng, VOCABULARY, hidden), vector(hidden), q_heads, kv_heads, d, 1e-6, scoring, table,
        options.get("neox", True),
    )  # fmt: skip
    embedding = native.pack(plain.embedding, "lossless")
    fast = native.Decoder(
        embedding, plain.final_norm, q_heads, kv_heads, d, intermediate, 1e-6, 1e-6, scoring.scale, scoring.window,
        scoring.logit_cap, table, plain.neox,
    )  # fmt: skip
    weights = []
    for _ in range(layers):
        matrices = [
            matrix((q_heads + 2 * kv_heads) * d, hidden),
            matrix(hidden, q_heads * d),
            matrix(2 * intermediate, hidden),
            matrix(hidden, intermediate),
        ]
        norms, biased = options.get("norms", False), options.get("qkv_bias", False)
        rest = [
            vector(hidden),
            vector(hidden),
            vector((q_heads + 2 * kv_heads) * d, wanted=biased),
            vector(hidden, wanted=options.get("o_bias", False)),
            vector(d, wanted=norms),
            vector(d, wanted=norms),
        ]
        packed = [native.pack(m, "int8" if integer else "lossless", integer) for m in matrices]
        fast.add_layer(*packed, *rest)
        plain.layers.append(oracle.Layer(*[checks.rows_of(w) for w in packed], *rest))
        weights.append([*packed, *rest])
    empty = np.uint16(0x7FC0) if bf16 else np.float32(np.nan)
    # Slots or heads first in memory.
    caches = [
        np.full((room, kv_heads, d), empty)
        if seed % 2
        else np.full((kv_heads, room, d), empty).transpose(1, 0, 2)
        for _ in range(2 * layers)
    ]
    fast.set_cache(caches[:layers], caches[layers:])
    return Pair(plain, fast, weights, [c.copy() for c in caches], caches)


def step_of(slots: list[Any], lengths: list[int], new: list[int]) -> oracle.Step:
    """Requests whose tokens lie at ``slots``, now ``lengths`` long, the last ``new`` of them computed in this step."""
    positions = [np.arange(length - count, length) for length, count in zip(lengths, new, strict=True)]
    out_slots = [own[at] for own, at in zip(slots, positions, strict=True)]
    seen = [own[:length] for own, length in zip(slots, lengths, strict=True)]
    return oracle.Step(
        np.concatenate(positions),
        np.concatenate(out_slots),
        np.cumsum([0, *lengths]),
        np.concatenate(seen),
        np.cumsum([0, *new]),
    )


def shuffled_slots(lengths: list[int], seed: int, room: int = SLOTS) -> list[Any]:
    order = checks.generator(seed).permutation(room)
    ends = np.cumsum(lengths)
    return [order[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def check_decoder(native: ModuleType, family: str, lengths: list[int], seed: int, *, bf16: bool) -> None:
    """Prompts at once, then two steps of one token each, against the definition."""
    pair = make(native, family, seed, bf16=bf16)
    slots = shuffled_slots([n + 2 for n in lengths], seed)
    rng = checks.generator(seed)
    for ahead in range(3):
        step = step_of(slots, [n + ahead for n in lengths], lengths if ahead == 0 else [1] * len(lengths))
        ids = rng.integers(0, VOCABULARY, len(step.positions))
        if ahead == 2:
            embeddings = checks.normal(rng, len(ids), pair.plain.embedding.shape[1])
            got, expected = pair.forward(step, None, embeddings), pair.forward_plain(step, embeddings)
        else:
            got, expected = pair.forward(step, ids), pair.forward_plain(step, ids)
        # Two layers, normed at the end; a key that rounds to the other neighbour in bfloat16 moves a score by that much.
        checks.check_close(got, expected, (4 * checks.BFLOAT16 if bf16 else 2e-4) * np.abs(expected).max())
        for cache, plain in zip(pair.caches, pair.plain_caches, strict=True):
            held, truth = oracle.cache_values(cache), oracle.cache_values(plain)
            assert (np.isnan(held) == np.isnan(truth)).all()
            written = ~np.isnan(truth)
            checks.check_close(held[written], truth[written], 4 * checks.BFLOAT16 * 4 if bf16 else 2e-4 * 4)


def check_batch_does_not_matter(
    native: ModuleType, family: str, lengths: list[int], seed: int, *, bf16: bool, integer: bool
) -> None:
    """Decoding many requests gives each of them the bits that decoding it alone gives."""
    pair = make(native, family, seed, bf16=bf16, integer=integer)
    slots = shuffled_slots(lengths, seed)
    rng = checks.generator(seed)
    pair.fill(rng)
    ids = rng.integers(0, VOCABULARY, len(lengths))
    every = pair.forward(step_of(slots, lengths, [1] * len(lengths)), ids)
    for r, length in enumerate(lengths):
        alone = pair.forward(step_of([slots[r]], [length], [1]), ids[r : r + 1])
        checks.check_same_bits(alone[0], every[r])


def check_one_call_is_the_operations(native: ModuleType, family: str, lengths: list[int], seed: int) -> None:
    """The decoder computes, bit for bit, what its operations compute when they are called one by one."""
    pair = make(native, family, seed)
    slots = shuffled_slots(lengths, seed)
    step = step_of(slots, lengths, lengths)
    ids = checks.generator(seed).integers(0, VOCABULARY, len(step.positions))
    got = pair.forward(step, ids)
    plain, half = pair.plain, len(pair.caches) // 2
    x, d = plain.embedding[ids], plain.head_dim
    pages = (step.kv_indptr, step.kv_slots, np.ones(len(lengths), np.int64), 1)
    for i, (qkv, o, gate_up, down, input_norm, post_norm, qkv_bias, o_bias, *_) in enumerate(pair.weights):
        k_cache, v_cache = pair.caches[i].copy(), pair.caches[half + i].copy()
        normed = np.empty_like(x)
        native.rms_norm(x, input_norm, plain.eps, normed)
        heads = checks.product(native, normed, qkv, bias=qkv_bias)
        native.rope_write_kv(heads, step.positions, step.out_slots, plain.table, plain.neox, k_cache, v_cache)
        checks.check_same_bits(k_cache, pair.caches[i])
        checks.check_same_bits(v_cache, pair.caches[half + i])
        q = np.ascontiguousarray(heads[:, : plain.q_heads * d]).reshape(len(x), plain.q_heads, d)
        attended, scoring = np.empty_like(q), plain.scoring
        native.paged_attention(
            q,
            k_cache,
            v_cache,
            *pages,
            scoring.scale,
            attended,
            step.q_indptr,
            scoring.window,
            scoring.logit_cap,
        )
        x = checks.product(native, attended.reshape(len(x), -1), o, bias=o_bias, add=True, out=x.copy())
        native.rms_norm(x, post_norm, plain.eps, normed)
        wide = checks.product(native, normed, gate_up)
        narrow = np.empty((len(x), wide.shape[1] // 2), np.float32)
        native.silu_mul(wide, narrow)
        x = checks.product(native, narrow, down, add=True, out=x.copy())
    native.rms_norm(x, plain.final_norm, plain.eps, normed)
    checks.check_same_bits(got, normed)
