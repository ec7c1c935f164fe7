"""What a KV head chooses by a query, held to the rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import kernel_checks as checks
import numpy as np

from sgl_entropic_kernels import reference_choice as rule
from sgl_entropic_kernels import reference_ops as oracle
from sgl_entropic_kernels.native import library

# Of scores in float32, and of bounds, which may round to the other neighbour in bfloat16.
TOLERANCE = 5e-3


@dataclass(frozen=True)
class Shares:
    """What a request chooses, but for its keys."""

    blocks: int
    budget: int
    sinks: int
    recent: int
    bonus: Any
    tilt: float = 0.0

    def row(self, keys: Any) -> tuple[Any, ...]:
        return (keys, self.blocks, self.budget, self.sinks, self.recent, self.bonus, self.tilt)

    def of_layer(self, layer: int, layers: int) -> int:
        least = self.sinks + self.recent
        return rule.layer_budgets(self.budget, self.blocks, least, layers, self.tilt)[layer]


def shares_of(rng: np.random.Generator, blocks: int) -> Shares:
    budget = int(rng.integers(0, blocks + 1))
    sinks = int(rng.integers(0, min(budget, 3) + 1))
    recent = int(rng.integers(0, min(budget - sinks, 3) + 1))
    bonus = (rng.integers(0, 3) * checks.normal(rng, blocks)).astype(np.float32)
    bonus[rng.random(blocks) < 0.1] = np.nan
    return Shares(blocks, budget, sinks, recent, bonus, float(rng.choice([0.0, 0.3, 1.0, rng.random()])))


def check_shares(
    every: Any, shares: Shares, scores: Any, layer: int = 0, layers: int = 1, doubt: Any = None
) -> None:
    """For each head as many as may be, the first and the last ones, and none that scores less than one left out.

    ``doubt``: how far rounding may move each score.
    """
    assert every.shape == scores.shape
    middle = np.arange(shares.sinks, shares.blocks - shares.recent)
    unsure = np.zeros(scores.shape) if doubt is None else doubt
    for kept, of_head, apart in zip(every, scores, unsure, strict=True):
        assert set(kept.tolist()) <= {0, 1}
        assert kept.sum() == shares.of_layer(layer, layers)
        assert kept[: shares.sinks].all()
        assert kept[shares.blocks - shares.recent :].all()
        taken, left = middle[kept[middle] == 1], middle[kept[middle] == 0]
        if len(taken) and len(left):
            assert (of_head + apart)[taken].min() >= (of_head - apart)[left].max() - TOLERANCE


@dataclass
class Keys:
    """One layer's keys of one request, and a query."""

    cache: Any
    slots: Any
    q: Any
    block_tokens: int
    scoring: oracle.Scoring

    def choose(self, shares: Shares, keys: Any, *, layer: int = 0, q: Any = None) -> Any:
        kept = np.full((self.cache.shape[1], shares.blocks), 7, np.uint8)
        library().choose_blocks(
            shares.row(keys), layer, self.q if q is None else q, self.cache, self.slots, self.block_tokens,
            self.scoring.scale, self.scoring.logit_cap, kept,
        )  # fmt: skip
        return kept

    def scores(self, held: Any, bonus: Any, *, bounds: bool) -> tuple[Any, Any]:
        """What the rule says of keys [tokens, kv_heads, head_dim], and how far rounding may move it."""
        if bounds:
            both = rule.block_bounds(held, self.block_tokens)
            return rule.bound_scores(self.q, both, self.scoring, bonus), None
        return rule.coded_scores(self.q, rule.code_keys(held), self.block_tokens, self.scoring, bonus)

    def fresh(self, *, bounds: bool, layers: int = 1) -> Any:
        return library().BlockKeys(layers, *self.cache.shape[1:], bounds)


def keys_of(
    rng: np.random.Generator,
    heads: tuple[int, int, int],
    tokens: int,
    block_tokens: int,
    *,
    bf16: bool,
    cap: float = 0.0,
) -> Keys:
    """What no token has is NaN."""
    kv_heads, group, d = heads
    slots = rng.permutation(tokens + 5)[:tokens]
    cache = np.full((tokens + 5, kv_heads, d), np.nan, np.float32)
    # Blocks that differ from one another more than their tokens do.
    blocks = np.arange(tokens) // block_tokens
    cache[slots] = checks.normal(rng, tokens, kv_heads, d) + checks.normal(rng, tokens, kv_heads, d)[blocks]
    if bf16:
        cache = np.where(np.isnan(cache), np.uint16(0x7FC0), oracle.to_bfloat16(np.nan_to_num(cache)))
    q = checks.normal(rng, kv_heads * group, d) * np.float32(rng.uniform(0.2, 1.5))
    return Keys(cache, slots, q, block_tokens, oracle.Scoring(d**-0.5, -1, cap))


def check_rule(
    heads: tuple[int, int, int],
    blocks: int,
    block_tokens: int,
    seed: int,
    *,
    bf16: bool,
    bounds: bool,
    cap: float,
) -> None:
    """In every layer of a model the blocks of the largest scores are read."""
    rng = checks.generator(seed)
    tokens = blocks * block_tokens + int(rng.integers(0, block_tokens))
    case = keys_of(rng, heads, tokens, block_tokens, bf16=bf16, cap=cap)
    held = oracle.cache_values(case.cache[case.slots])[: blocks * block_tokens]
    layers = int(rng.integers(1, 6))
    keys = case.fresh(bounds=bounds, layers=layers)
    for layer in range(layers):
        shares = shares_of(rng, blocks)
        scores, doubt = case.scores(held, shares.bonus, bounds=bounds)
        check_shares(case.choose(shares, keys, layer=layer), shares, scores, layer, layers, doubt)
    assert keys.ready in (0, blocks)
