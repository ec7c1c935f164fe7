"""What a prefix tree costs the scheduler: match, insert and evict, on SGLang's Rust core, its Python core and ours.

In one process, on paths of 40 tokens that share nothing, so that every path is a leaf that may be evicted. Rounds are
interleaved: each builds all three trees and times every operation on each.
"""

from __future__ import annotations

import argparse
import statistics
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import torch
from harness import Claim, bootstrap_median, claim, run_facts, write_result
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_cache.tree_core_registry import register_tree_core_backend
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from sgl_entropic.eviction import EvictionPolicy
from sgl_entropic.runtime.eviction.book import Book
from sgl_entropic.runtime.eviction.tree_core import EntropicTreeCore
from sgl_entropic.trace.counters import Counters

RUST, PYTHON, OURS = "rust", "python", "entropic-measured"
PATH_TOKENS = 40
FEW, MANY = 16, 2000


@dataclass(slots=True)
class Tree:
    """A cache full of paths.

    Attributes:
        cache: SGLang's.
        allocator: of its slots.
        paths: tokens of each.
    """

    cache: Any
    allocator: Any
    paths: list[list[int]]

    def key(self, tokens: list[int]) -> RadixKey:
        """SGLang's key."""
        return RadixKey(array("q", tokens))


def build(backend: str, leaves: int, seed: int) -> Tree:
    """A tree of ``leaves`` paths, each of which a request has visited."""
    allocator = TokenToKVPoolAllocator(
        (PATH_TOKENS + 24) * leaves + 2 * MANY, torch.float32, "cpu", None, need_sort=False
    )
    cache = UnifiedRadixCache(
        CacheInitParams(
            disable=False,
            req_to_token_pool=ReqToTokenPool(4, 4096, "cpu", enable_memory_saver=False),
            token_to_kv_pool_allocator=allocator,
            page_size=1,
            tree_components=(ComponentType.FULL,),
            tree_core_backend=backend,
        )
    )
    rng = np.random.default_rng(seed)
    paths = [[at + 10, *rng.integers(0, 1000, PATH_TOKENS - 1).tolist()] for at in range(leaves)]
    tree = Tree(cache, allocator, paths)
    slots = allocator.alloc(PATH_TOKENS * leaves).split(PATH_TOKENS)
    for path, of_path in zip(paths, slots, strict=True):
        cache.insert(InsertParams(key=tree.key(path), value=of_path))
        if isinstance(cache.tree_core, EntropicTreeCore):
            node = cache.match_prefix(MatchPrefixParams(key=tree.key(path))).last_device_node
            cache.tree_core.book.visited(cache.tree_core.path_to(node), PATH_TOKENS)
    return tree


def median_us(act: Callable[[int], Any], times: int) -> float:
    """Median time of a call."""
    samples = []
    for at in range(times):
        begin = time.perf_counter()
        act(at)
        samples.append(time.perf_counter() - begin)
    return 1e6 * statistics.median(samples)


def operations(tree: Tree, leaves: int) -> dict[str, float]:
    """Microseconds of each operation."""
    cache, paths = tree.cache, tree.paths
    spare = tree.allocator.alloc(MANY).split(PATH_TOKENS)
    new = [[-at - 5, *range(PATH_TOKENS - 1)] for at in range(len(spare))]

    def match(at: int) -> None:
        cache.match_prefix(MatchPrefixParams(key=tree.key(paths[at * 37 % leaves])))

    def insert(at: int) -> None:
        cache.insert(InsertParams(key=tree.key(new[at]), value=spare[at]))

    return {
        "match": median_us(match, 500),
        "insert": median_us(insert, len(spare)),
        f"evict_{FEW}": median_us(lambda _: cache.evict(EvictParams(num_tokens=FEW)), 60),
        f"evict_{MANY}": median_us(lambda _: cache.evict(EvictParams(num_tokens=MANY)), 5),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--leaves", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    ticks = count()

    def ours(params: Any, components: dict[Any, Any]) -> EntropicTreeCore:
        # A second between two requests: return times are learnt, whatever the processor's speed.
        book = Book(EvictionPolicy(), lambda: float(next(ticks)), Counters(), 1_000_000, params.page_size)
        return EntropicTreeCore(params, components, book)

    register_tree_core_backend(OURS, ours)
    samples: list[dict[str, Any]] = []
    backends = [RUST, PYTHON, OURS]
    for index in range(options.rounds):
        for leaves in options.leaves:
            for backend in backends[index % 3 :] + backends[: index % 3]:
                us = operations(build(backend, leaves, options.seed + index), leaves)
                samples.append({"round": index, "leaves": leaves, "core": backend, "us": us})
        print(f"round {index + 1} of {options.rounds}", flush=True)
    write_result("eviction_cost", claims_of(samples, options.seed), run_facts(options.seed), samples)


def claims_of(samples: list[dict[str, Any]], seed: int) -> list[Claim]:
    """Ours over SGLang's Python core, operation by operation; what it takes is in the samples."""
    claims = []
    for leaves in sorted({s["leaves"] for s in samples}):
        of = {
            core: [s["us"] for s in samples if (s["leaves"], s["core"]) == (leaves, core)]
            for core in (PYTHON, OURS)
        }
        for name in of[OURS][0]:
            ratios = [a[name] / b[name] for a, b in zip(of[OURS], of[PYTHON], strict=True)]
            value, interval = bootstrap_median(ratios, seed)
            bar = "<= 2" if name == "insert" else "<= 1.25"
            claims.append(claim(f"evict_core_{name}_{leaves}_vs_python", value, interval, "ratio", bar))
    return claims


if __name__ == "__main__":
    main()
