"""What choosing blocks by a query means: float64, NumPy, one request at a time.

Written from the rule in ``docs/concepts/attention.md``, not from the kernels, which are tested against this.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from fractions import Fraction
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sgl_entropic_kernels.reference_ops import Floats, Scoring, f64, from_bfloat16, to_bfloat16


def block_bounds(keys: ArrayLike, block_tokens: int) -> Floats:
    """The least and the largest of each number in each whole block of ``keys`` [tokens, kv_heads, head_dim].

    [blocks, 2, kv_heads, head_dim], rounded to bfloat16 (Quest, arXiv:2406.10774).
    """
    every = f64(keys)
    blocks = every[: len(every) // block_tokens * block_tokens].reshape(-1, block_tokens, *every.shape[1:])
    return f64(from_bfloat16(to_bfloat16(np.stack([blocks.min(1), blocks.max(1)], 1))))


SEGMENT_TOKENS = 256
_NEAR = 2e-5  # what rounding in float32 may move
_ANY = 100.0  # doubt of a score that may be another one altogether


@dataclass(frozen=True)
class CodedKeys:
    """Keys in codes of two bits a number: about ``mean + step (code - 1.5)``."""

    codes: Floats
    """[tokens, kv_heads, head_dim], each 0, 1, 2 or 3."""
    means: Floats
    """[tokens, kv_heads, head_dim], the same within a segment; also the steps."""
    steps: Floats
    near: NDArray[np.bool_]
    """[tokens, kv_heads, head_dim]: next to the middle between two codes, so that float32 may say the other one."""


def code_keys(keys: ArrayLike) -> CodedKeys:
    """Two bits for each number of finite ``keys`` [tokens, kv_heads, head_dim].

    Mean and step, its standard deviation, are by number (channel, as in KIVI, arXiv:2402.02750) and segment of 256 tokens. Of a
    segment that has fewer they are those of the first 16, 32, 64 or 128 that are there; below 16, of all.
    """
    every = f64(keys)
    parts: list[CodedKeys] = []
    for begin in range(0, len(every), SEGMENT_TOKENS):
        own = every[begin : begin + SEGMENT_TOKENS]
        measured = own if len(own) < 16 else own[: 1 << (len(own).bit_length() - 1)]
        mean, step = np.broadcast_arrays(measured.mean(0), measured.std(0))
        levels = np.divide(own - mean, step, out=np.zeros_like(own), where=step > 0) + 1.5
        near = (np.abs(levels % 1 - 0.5) < _NEAR) & (levels > 0) & (levels < 3) & (step > 0)
        shape = own.shape
        parts.append(
            CodedKeys(
                np.clip(np.rint(levels), 0, 3),
                np.broadcast_to(mean, shape),
                np.broadcast_to(step, shape),
                near,
            )
        )
    return CodedKeys(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(CodedKeys)))


def layer_budgets(budget: int, blocks: int, least: int, layers: int, tilt: float) -> list[int]:
    """Blocks that each layer reads: on the mean ``budget``, the last layer ``tilt`` more of it, the first as much less.

    Between the two in a line, rounded so that the sum is that of ``layers`` budgets. Where a layer would read fewer than
    ``least`` or more than ``blocks``, all lean less, until none does.
    """
    room = min(Fraction(tilt) * budget, Fraction(blocks - budget), Fraction(budget - least))
    if layers == 1:
        return [budget]
    lean = [room * (2 * Fraction(layer, layers - 1) - 1) for layer in range(layers)]
    before = [sum(lean[:layer], Fraction(0)) for layer in range(layers + 1)]
    # Of what is a whole number but for the rounding of the tilt.
    ends = [layer * budget + math.floor(part + Fraction(1, 10**7)) for layer, part in enumerate(before)]
    return [after - start for start, after in pairwise(ends)]


def bound_scores(q: ArrayLike, bounds: Floats, scoring: Scoring, bonus: ArrayLike) -> Floats:
    """How much a query [q_heads, head_dim] is likely to want each block of each KV head [kv_heads, blocks].

    ln of the sum over a KV head's query heads of the attention that each pays to blocks whose keys were all the best that
    their ``bounds`` allow, as ``block_bounds`` gives them; plus ``bonus`` [blocks], whose NaN is infinite.
    """
    query = f64(q)
    group = len(query) // bounds.shape[2]
    scores = [(bounds[:, :, h // group] * query[h]).max(1).sum(1) for h in range(len(query))]
    return _wanted(np.array(scores), bounds.shape[2], scoring, bonus)


def coded_scores(
    q: ArrayLike, keys: CodedKeys, block_tokens: int, scoring: Scoring, bonus: ArrayLike
) -> tuple[Floats, Floats]:
    """Likewise for blocks whose keys were all like the one of the largest product by its codes.

    Three eighths of the numbers are asked, see ``asked_numbers``; of the others the mean counts alone. The query is rounded
    too, once it is multiplied by the steps of a segment: to the 255 whole multiples of a 127th of its largest number. With
    it how far another rounding next to a middle may move each score.
    """
    query = f64(q)
    kv_heads, blocks = keys.codes.shape[1], len(keys.codes) // block_tokens
    tokens, group = blocks * block_tokens, len(query) // kv_heads
    scores, doubts = np.zeros((len(query), tokens)), np.zeros((len(query), tokens))
    for h in range(len(query)):
        head = h // group
        own = (slice(0, tokens), head)
        asked, sure = asked_numbers(query[head * group : (head + 1) * group], keys.steps[0, head])
        folded = query[h] * keys.steps[own] * asked
        unit = np.abs(folded).max(1, keepdims=True) / 127
        numbers = np.divide(folded, unit, out=np.zeros_like(folded), where=unit > 0)
        levels = keys.codes[own] - 1.5
        scores[h] = keys.means[own] @ query[h] + (np.rint(numbers) * unit * levels).sum(1)
        other_code = (np.abs(folded) * keys.near[own]).sum(1)
        other_number = (unit * np.abs(levels) * (np.abs(numbers % 1 - 0.5) < _NEAR)).sum(1)
        doubts[h] = scoring.scale * (other_code + other_number) + (0.0 if sure else _ANY)
    tops, doubt = (x.reshape(len(query), blocks, block_tokens).max(2) for x in (scores, doubts))
    # The other blocks' weights move one's share as well.
    weights = np.exp(scoring.scale * (tops - tops.max(1, keepdims=True)))
    doubt += np.log((weights * np.exp(doubt)).sum(1, keepdims=True) / weights.sum(1, keepdims=True))
    return _wanted(tops, kv_heads, scoring, bonus), doubt.reshape(kv_heads, -1, blocks).max(1)


def asked_numbers(queries: ArrayLike, steps: ArrayLike) -> tuple[NDArray[np.bool_], bool]:
    """Which numbers of a key the queries [heads, head_dim] that read one KV head ask for.

    By fours that lie side by side, three eighths of these, rounded up: those of the largest sum of the squares of query
    times ``steps`` [head_dim] (Ribar et al. 2024, SparQ, arXiv:2312.04985, by the query alone). Also whether rounding in
    float32 says the same.
    """
    energies = ((f64(queries) * f64(steps)) ** 2).sum(0).reshape(-1, 4).sum(1)
    wanted = -(-3 * len(energies) // 8)
    order = np.argsort(-energies, kind="stable")
    least, most = energies[order[wanted - 1]], energies[order[wanted]]
    asked = np.zeros(len(energies), bool)
    asked[order[:wanted]] = True
    return np.repeat(asked, 4), bool(most == 0 or most < least * (1 - 1e-4))


def _wanted(products: Floats, kv_heads: int, scoring: Scoring, bonus: ArrayLike) -> Floats:
    """[kv_heads, blocks] from products [q_heads, blocks]."""
    scores = products * scoring.scale
    if scoring.logit_cap > 0.0:
        scores = scoring.logit_cap * np.tanh(scores / scoring.logit_cap)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    added = f64(bonus)
    total = weights.reshape(kv_heads, -1, weights.shape[1]).sum(1)
    scored: Floats = np.where(np.isnan(added), np.inf, np.log(total) + added)
    return scored
