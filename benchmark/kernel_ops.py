"""Each compiled operation against PyTorch doing the same, on the sizes of the default model; no server.

Pairs are interleaved; a ratio is torch's time over ours, so above 1 is faster. PyTorch has as many threads as the kernels.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from harness import bootstrap_median, claim, run_facts, write_result
from torch.nn import functional

from sgl_entropic_kernels.native import library

HIDDEN, WIDE, VOCAB, Q_HEADS, KV_HEADS, HEAD_DIM = 576, 3072, 49_152, 9, 3, 64
Pair = tuple[Callable[[], Any], Callable[[], Any]]


def linear_pair(rows: int, wanted: str) -> Pair:
    """``[rows, 576]`` times ``[3072, 576]``, eight matrices in turn, so that they do not all stay in the nearest cache."""
    weights = [torch.randn(WIDE, HIDDEN) for _ in range(8)]
    packed = [
        library().pack(w, "int8", integer=True) if wanted == "int8" else library().pack(w, "float32")
        for w in weights
    ]
    x, out = torch.randn(rows, HIDDEN), torch.empty(rows, WIDE)
    return (
        lambda: [functional.linear(x, w) for w in weights],
        lambda: [library().linear(x, w, out) for w in packed],
    )


def head_pair(rows: int) -> Pair:
    """Logits of ``rows`` rows with maximum, log-sum-exp and entropy."""
    weight, x = torch.randn(VOCAB, HIDDEN) * 0.05, torch.randn(rows, HIDDEN)
    packed = library().pack(weight, "float32")
    logits, statistics = torch.empty(rows, VOCAB), torch.empty(rows, 4)

    def torch_way() -> None:
        z = functional.linear(x, weight)
        log_p = torch.log_softmax(z, -1)
        p = log_p.exp()
        entropy = -(p * log_p).sum(-1)
        (z.amax(-1), z.logsumexp(-1), entropy, (p * log_p.square()).sum(-1) - entropy.square())

    return torch_way, lambda: library().lm_head(x, packed, logits, statistics)


def norm_pair(rows: int) -> Pair:
    """Residual addition and RMSNorm."""
    x, weight, out = torch.randn(rows, HIDDEN), torch.rand(HIDDEN), torch.empty(rows, HIDDEN)
    ours, theirs = torch.randn(rows, HIDDEN), torch.randn(rows, HIDDEN)

    def torch_way() -> torch.Tensor:
        added = theirs.add_(x)
        return added * torch.rsqrt(added.square().mean(-1, keepdim=True) + 1e-5) * weight

    return torch_way, lambda: library().rms_norm(x, weight, 1e-5, out, ours)


def activation_pair(rows: int) -> Pair:
    """SiLU and multiplication."""
    x, out = torch.randn(rows, WIDE), torch.empty(rows, WIDE // 2)
    return (
        lambda: functional.silu(x[:, : WIDE // 2]) * x[:, WIDE // 2 :],
        lambda: library().silu_mul(x, out),
    )


def rope_pair(rows: int) -> Pair:
    """Rotation of queries and keys, keys and values written to their slots."""
    table = torch.randn(8192, HEAD_DIM)
    positions, slots = torch.randint(0, 8192, (rows,)), torch.randperm(8192)[:rows]
    qkv = torch.randn(rows, (Q_HEADS + 2 * KV_HEADS) * HEAD_DIM)
    k_cache, v_cache = torch.zeros(8192, KV_HEADS, HEAD_DIM), torch.zeros(8192, KV_HEADS, HEAD_DIM)

    def torch_way() -> None:
        heads = qkv.view(rows, -1, HEAD_DIM)
        cos, sin = table[positions].unsqueeze(1).chunk(2, -1)
        low, high = heads[:, : Q_HEADS + KV_HEADS].chunk(2, -1)
        rotated = torch.cat((low * cos - high * sin, high * cos + low * sin), -1)
        k_cache[slots] = rotated[:, Q_HEADS:]
        v_cache[slots] = heads[:, Q_HEADS + KV_HEADS :]

    return torch_way, lambda: library().rope_write_kv(qkv, positions, slots, table, True, k_cache, v_cache)


def attention_pair(requests: int, context: int, queries: int) -> Pair:
    """The last ``queries`` tokens of each of ``requests`` requests of ``context`` tokens, slots scattered."""
    total = requests * context
    k_cache, v_cache = torch.randn(total, KV_HEADS, HEAD_DIM), torch.randn(total, KV_HEADS, HEAD_DIM)
    slots = torch.randperm(total)
    q = torch.randn(requests * queries, Q_HEADS, HEAD_DIM)
    out, scale = torch.empty_like(q), HEAD_DIM**-0.5
    indptr, q_indptr = torch.arange(requests + 1) * context, torch.arange(requests + 1) * queries
    ones = torch.ones(requests, dtype=torch.int64)
    seen = torch.arange(context) <= torch.arange(context - queries, context).unsqueeze(1)

    def torch_way() -> list[torch.Tensor]:
        return [
            functional.scaled_dot_product_attention(
                q[r * queries : (r + 1) * queries].movedim(0, 1).unsqueeze(0),
                k_cache[slots[r * context : (r + 1) * context]].movedim(0, 1).unsqueeze(0),
                v_cache[slots[r * context : (r + 1) * context]].movedim(0, 1).unsqueeze(0),
                attn_mask=None if queries == 1 else seen,
                scale=scale,
                enable_gqa=True,
            )
            for r in range(requests)
        ]

    return torch_way, lambda: library().paged_attention(
        q, k_cache, v_cache, indptr, slots, ones, 1, scale, out, q_indptr
    )


PAIRS: dict[str, tuple[Callable[..., Pair], tuple[Any, ...]]] = {
    "linear_float32_1": (linear_pair, (1, "float32")),
    "linear_float32_16": (linear_pair, (16, "float32")),
    "linear_float32_64": (linear_pair, (64, "float32")),
    "linear_float32_512": (linear_pair, (512, "float32")),
    "linear_int8_1": (linear_pair, (1, "int8")),
    "linear_int8_16": (linear_pair, (16, "int8")),
    "linear_int8_64": (linear_pair, (64, "int8")),
    "linear_int8_512": (linear_pair, (512, "int8")),
    "lm_head_statistics_1": (head_pair, (1,)),
    "lm_head_statistics_16": (head_pair, (16,)),
    "rms_norm_16": (norm_pair, (16,)),
    "rms_norm_512": (norm_pair, (512,)),
    "silu_mul_16": (activation_pair, (16,)),
    "silu_mul_512": (activation_pair, (512,)),
    "rope_write_16": (rope_pair, (16,)),
    "rope_write_512": (rope_pair, (512,)),
    "decode_attention_4x2000": (attention_pair, (4, 2000, 1)),
    "decode_attention_16x200": (attention_pair, (16, 200, 1)),
    "extend_attention_512_of_2000": (attention_pair, (1, 2000, 512)),
}


def milliseconds(work: Callable[[], Any], at_least_s: float) -> float:
    """Mean time of one call over at least ``at_least_s`` seconds."""
    count, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < at_least_s or count == 0:
        work()
        count += 1
    return 1e3 * spent / count


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.1, help="of one measurement")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(library().threads())
    torch.manual_seed(options.seed)
    claims, samples = [], []
    for name, (make, arguments) in PAIRS.items():
        torch_way, ours = make(*arguments)
        torch_way(), ours()
        times = [
            {
                "torch_ms": milliseconds(torch_way, options.seconds),
                "ours_ms": milliseconds(ours, options.seconds),
            }
            for _ in range(options.rounds)
        ]
        samples.append({"operation": name, "times": times})
        ratio, interval = bootstrap_median([t["torch_ms"] / t["ours_ms"] for t in times], options.seed)
        claims.append(claim(f"kernel_{name}_vs_torch", ratio, interval, "ratio", ">= 1"))
        print(f"{name:32} {ratio:6.2f}", flush=True)
    write_result(
        "kernel_ops",
        claims,
        run_facts(options.seed),
        samples,
        isa=library().isa(),
        threads=library().threads(),
    )


if __name__ == "__main__":
    main()
