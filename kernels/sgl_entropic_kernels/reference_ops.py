"""What the compiled kernels of a decoder mean: float64, NumPy, one request and one token after the other.

Written from the papers that define the operations, not from the kernels; every fast version is tested against this.
Arrays of any float dtype enter, float64 leaves. Natural logs, entropies in nats.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]


class AttentionReference(NamedTuple):
    """What attention gives."""

    out: Floats
    """[queries, q_heads, head_dim]: 0 for a query that sees nothing."""
    lse: Floats
    """[queries, q_heads]: ln sum exp(score) over what is seen; ``-inf`` where that is nothing."""
    page_mass: Floats
    """[pages listed]: attention on a page, meant over the heads and summed over the queries of its request."""


class Pages(NamedTuple):
    """Which slots of a cache the requests own: page ``p`` is the slots ``[p * size, (p + 1) * size)``."""

    indptr: Indices
    """[requests + 1]: request ``r`` owns the pages ``indices[indptr[r]:indptr[r + 1]]``, in the order of its tokens."""
    indices: Indices
    last_page_len: Indices
    """[requests]: tokens in the last page of each request, 1 to ``size``; ignored where there is no page."""
    size: int

    def slots(self, request: int) -> Indices:
        """Slots of the tokens of ``request``, oldest first."""
        pages = self.indices[self.indptr[request] : self.indptr[request + 1]]
        if len(pages) == 0:
            return np.zeros(0, np.int64)
        every = (np.asarray(pages)[:, None] * self.size + np.arange(self.size)[None, :]).reshape(-1)
        kept = (len(pages) - 1) * self.size + int(self.last_page_len[request])
        return every[:kept].astype(np.int64)


class Scoring(NamedTuple):
    """How a query scores a key: ``scale * q . k``, and then what bounds or hides it."""

    scale: float
    window: int = -1
    """How many tokens before its own a query sees (Mistral, arXiv:2310.06825); negative: all."""
    logit_cap: float = 0.0
    """``cap * tanh(score / cap)`` instead of the score (Gemma 2, arXiv:2408.00118); 0: the score."""


class Rounded(NamedTuple):
    """Rows in 8 bits: ``scale * code`` in blocks of inputs."""

    codes: NDArray[np.int32]
    """[rows, k], from -127 to 127."""
    scales: NDArray[np.float32]
    """[rows, k]: of each input the scale of its block."""

    def values(self) -> Floats:
        """The numbers that the codes stand for [rows, k]."""
        return self.codes.astype(np.float64) * self.scales.astype(np.float64)


def f64(values: ArrayLike) -> Floats:
    """``values`` as a float64 array."""
    return np.asarray(values, dtype=np.float64)


def to_bfloat16(values: ArrayLike) -> NDArray[np.uint16]:
    """The bits of the nearest bfloat16 of finite numbers, ties to even (IEEE 754 with 8 significant bits)."""
    single = np.asarray(values, dtype=np.float32)
    _, exponent = np.frexp(single.astype(np.float64))
    # 2^7 steps between two powers of two, and none finer than the smallest number; numpy rounds halves to even.
    step = np.ldexp(1.0, np.maximum(exponent - 8, -133))
    nearest = (np.rint(single / step) * step).astype(np.float32)
    bits: NDArray[np.uint16] = (nearest.view(np.uint32) >> 16).astype(np.uint16)
    return bits


def from_bfloat16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The numbers that bfloat16 ``bits`` stand for."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def cache_values(cache: NDArray[Any]) -> Floats:
    """A cache of float32, or of bfloat16 seen as uint16, as numbers."""
    return f64(from_bfloat16(cache) if cache.dtype == np.uint16 else cache)


def linear(x: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None) -> Floats:
    """``x [rows, k] weight[n, k]^T + bias[n]``: [rows, n]."""
    product = f64(x) @ f64(weight).T
    return product if bias is None else product + f64(bias)


def round_inputs(x: NDArray[np.float32], block: int = 32) -> Rounded:
    """``x`` [rows, k] in 8 bits: each block of inputs by its own largest magnitude over 127, ties to even.

    The divisions are those of float32, so the codes are exactly the ones to expect (LLM.int8, arXiv:2208.07339, with
    blocks in the place of rows).
    """
    codes = np.zeros(x.shape, np.int32)
    scales = np.zeros(x.shape, np.float32)
    for start in range(0, x.shape[1], block):
        part = x[:, start : start + block]
        largest = np.abs(part).max(axis=1, keepdims=True, initial=np.float32(0.0))
        inverse = np.divide(np.float32(127.0), largest, out=np.zeros_like(largest), where=largest > 0)
        codes[:, start : start + block] = np.rint(part * inverse).astype(np.int32)
        scales[:, start : start + block] = largest / np.float32(127.0)
    return Rounded(codes, scales)


def rms_norm(
    x: ArrayLike, weight: ArrayLike, eps: float, residual: ArrayLike | None = None
) -> tuple[Floats, Floats]:
    """``y / sqrt(mean(y^2) + eps) * weight`` of rows [rows, n], and ``y``: ``x``, or ``x + residual`` (arXiv:1910.07467)."""
    y = f64(x) if residual is None else f64(x) + f64(residual)
    mean_square = np.mean(y * y, axis=-1, keepdims=True)
    return y / np.sqrt(mean_square + eps) * f64(weight), y


def silu_mul(x: ArrayLike) -> Floats:
    """``silu(gate) * up`` of rows ``[gate, up]`` [rows, 2 n]: SwiGLU without its products (arXiv:2002.05202)."""
    gate, up = np.split(f64(x), 2, axis=-1)
    # The logistic function by way of its logarithm, which neither overflows nor cancels.
    logistic: Floats = np.exp(-np.logaddexp(0.0, -gate))
    return gate * logistic * up


def rope_table(positions: int, rotary_dim: int, base: float = 10_000.0) -> NDArray[np.float32]:
    """[positions, rotary_dim]: cosines, then sines, of ``position * base^(-2 i / rotary_dim)`` (arXiv:2104.09864)."""
    frequencies = base ** (-np.arange(0, rotary_dim, 2) / rotary_dim)
    angles = np.arange(positions)[:, None] * frequencies[None, :]
    table: NDArray[np.float32] = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    return table


def rope(x: ArrayLike, positions: ArrayLike, table: ArrayLike, *, neox: bool) -> Floats:
    """Rotates the first ``rotary_dim`` of every head of ``x`` [tokens, heads, head_dim]; the rest stays.

    Pair ``i`` is the elements ``(i, i + rotary_dim / 2)`` (GPT-NeoX), or ``(2 i, 2 i + 1)`` (arXiv:2104.09864).
    """
    rotated = f64(x).copy()
    angles = f64(table)[np.asarray(positions, dtype=np.int64)]
    half = angles.shape[1] // 2
    for i in range(half):
        first, second = (i, i + half) if neox else (2 * i, 2 * i + 1)
        turn = (angles[:, i] + 1j * angles[:, half + i])[:, None]
        pair = (rotated[:, :, first] + 1j * rotated[:, :, second]) * turn
        rotated[:, :, first], rotated[:, :, second] = pair.real, pair.imag
    return rotated


def write_cache(cache: NDArray[Any], slots: ArrayLike, values: Floats) -> None:
    """Puts ``values`` [tokens, kv_heads, head_dim] into ``cache`` at ``slots``, rounded to what it holds."""
    rounded = to_bfloat16(values) if cache.dtype == np.uint16 else values
    cache[np.asarray(slots, dtype=np.int64)] = rounded


def paged_attention(
    q: ArrayLike,
    k_cache: NDArray[Any],
    v_cache: NDArray[Any],
    pages: Pages,
    scoring: Scoring,
    q_indptr: ArrayLike | None = None,
) -> AttentionReference:
    """Causal attention of each request's queries, the last ones of its tokens, over its pages.

    ``q`` [queries, q_heads, head_dim]; caches [slots, kv_heads, head_dim] of float32, or of bfloat16 seen as uint16.
    Query head ``h`` reads KV head ``h // (q_heads / kv_heads)`` (GQA, arXiv:2305.13245). Request ``r`` has the queries
    ``[q_indptr[r], q_indptr[r + 1])``; without ``q_indptr`` one query each.
    """
    queries = f64(q)
    requests = len(pages.indptr) - 1
    starts = np.asarray(np.arange(requests + 1) if q_indptr is None else q_indptr, dtype=np.int64)
    result = AttentionReference(
        np.zeros_like(queries), np.full(queries.shape[:2], -np.inf), np.zeros(len(pages.indices))
    )
    for r in range(requests):
        slots = pages.slots(r)
        keys, values = cache_values(k_cache[slots]), cache_values(v_cache[slots])
        rows = range(int(starts[r]), int(starts[r + 1]))
        for row in rows:
            own = len(slots) - (rows.stop - row)
            oldest = 0 if scoring.window < 0 else max(0, own - scoring.window)
            if own < 0:
                continue
            for h in range(queries.shape[1]):
                kv_head = h // (queries.shape[1] // keys.shape[1])
                scores = keys[oldest : own + 1, kv_head] @ queries[row, h] * scoring.scale
                if scoring.logit_cap > 0.0:
                    scores = scoring.logit_cap * np.tanh(scores / scoring.logit_cap)
                lse = scores.max() + np.log(np.exp(scores - scores.max()).sum())
                weights = np.exp(scores - lse)
                result.out[row, h] = weights @ values[oldest : own + 1, kv_head]
                result.lse[row, h] = lse
                at = pages.indptr[r] + np.arange(oldest, own + 1) // pages.size
                np.add.at(result.page_mass, at, weights / queries.shape[1])
    return result


def logit_statistics(logits: ArrayLike) -> Floats:
    """[rows, 4]: maximum, ln sum exp, entropy and varentropy (nats, nats squared) of finite rows [rows, n]."""
    z = f64(logits)
    largest = z.max(axis=1, keepdims=True)
    log_p = z - largest - np.log(np.exp(z - largest).sum(axis=1, keepdims=True))
    p = np.exp(log_p)
    entropy = -(p * log_p).sum(axis=1, keepdims=True)
    varentropy = (p * (-log_p - entropy) ** 2).sum(axis=1, keepdims=True)
    return np.concatenate(
        [largest, z.max(axis=1, keepdims=True) - log_p.max(axis=1, keepdims=True), entropy, varentropy], 1
    )


@dataclass(frozen=True)
class Layer:
    """Weights of one decoder layer, all [outputs, inputs]; ``None``: the model has none of these."""

    qkv: NDArray[np.float32]
    """[(q_heads + 2 kv_heads) head_dim, hidden]: queries, keys, values."""
    o: NDArray[np.float32]
    gate_up: NDArray[np.float32]
    """[2 intermediate, hidden]."""
    down: NDArray[np.float32]
    input_norm: NDArray[np.float32]
    post_norm: NDArray[np.float32]
    qkv_bias: NDArray[np.float32] | None = None
    o_bias: NDArray[np.float32] | None = None
    q_norm: NDArray[np.float32] | None = None
    """[head_dim]: with ``k_norm``, every head is normed before it is rotated (Qwen3, arXiv:2505.09388)."""
    k_norm: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class Step:
    """The tokens of one forward pass, and the slots that their requests read."""

    positions: Indices
    out_slots: Indices
    """[tokens]: where the keys and values of each token go."""
    kv_indptr: Indices
    kv_slots: Indices
    """The slots of request ``r`` are ``kv_slots[kv_indptr[r]:kv_indptr[r + 1]]``, its new tokens included, in order."""
    q_indptr: Indices


@dataclass
class Decoder:
    """A pre-norm decoder of the Llama family (arXiv:2302.13971), with what Qwen2 and Qwen3 add."""

    embedding: NDArray[np.float32]
    """[vocabulary, hidden]."""
    final_norm: NDArray[np.float32]
    q_heads: int
    kv_heads: int
    head_dim: int
    eps: float
    scoring: Scoring
    table: NDArray[np.float32]
    """See ``rope_table``."""
    neox: bool = True
    head_eps: float = 1e-6
    layers: list[Layer] = field(default_factory=list)

    def forward(
        self,
        hidden_or_ids: NDArray[Any],
        step: Step,
        k_caches: list[NDArray[Any]],
        v_caches: list[NDArray[Any]],
        read: list[Step] | None = None,
        received: list[Floats] | None = None,
    ) -> Floats:
        """Hidden states after the final norm [tokens, hidden]; writes the caches of all layers.

        ``hidden_or_ids``: token numbers [tokens], or embeddings [tokens, hidden]. ``read``: what the requests read in
        each layer, where that differs from layer to layer. ``received`` is extended, for each layer, by the attention
        that each of the listed slots received, meant over the heads and summed over the queries.
        """
        ids = np.issubdtype(hidden_or_ids.dtype, np.integer)
        x = f64(self.embedding[hidden_or_ids] if ids else hidden_or_ids)
        steps = read if read is not None else [step] * len(self.layers)
        for layer, seen, k_cache, v_cache in zip(self.layers, steps, k_caches, v_caches, strict=True):
            normed, _ = rms_norm(x, layer.input_norm, self.eps)
            attended = self._attend(layer, normed, seen, k_cache, v_cache)
            if received is not None:
                received.append(attended.page_mass)
            x = x + linear(attended.out.reshape(len(x), -1), layer.o, layer.o_bias)
            normed, _ = rms_norm(x, layer.post_norm, self.eps)
            x = x + linear(silu_mul(linear(normed, layer.gate_up)), layer.down)
        return rms_norm(x, self.final_norm, self.eps)[0]

    def _attend(
        self, layer: Layer, normed: Floats, step: Step, k_cache: NDArray[Any], v_cache: NDArray[Any]
    ) -> AttentionReference:
        """Attention of one layer, without its output product."""
        tokens = len(normed)
        heads = linear(normed, layer.qkv, layer.qkv_bias).reshape(
            tokens, self.q_heads + 2 * self.kv_heads, self.head_dim
        )
        q, k, v = np.split(heads, [self.q_heads, self.q_heads + self.kv_heads], axis=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = rms_norm(q, layer.q_norm, self.head_eps)[0], rms_norm(k, layer.k_norm, self.head_eps)[0]
        q = rope(q, step.positions, self.table, neox=self.neox)
        write_cache(k_cache, step.out_slots, rope(k, step.positions, self.table, neox=self.neox))
        write_cache(v_cache, step.out_slots, v)
        # Slots are pages of one token.
        pages = Pages(step.kv_indptr, step.kv_slots, np.ones(len(step.kv_indptr) - 1, np.int64), 1)
        return paged_attention(q, k_cache, v_cache, pages, self.scoring, step.q_indptr)
