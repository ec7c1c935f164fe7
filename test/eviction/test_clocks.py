"""However fast time goes by, learning when nodes return is not worse than forgetting what was used longest ago."""

from __future__ import annotations

import random
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

from sgl_entropic.eviction.returns import EDGES_S
from sgl_entropic.replay.cache import replay
from sgl_entropic.replay.ours import Ours
from sgl_entropic.replay.trace import build

BLOCK_TOKENS = 4
DAY_S = 86_400.0


def load(seed: int = 1, requests: int = 1500) -> list[dict[str, Any]]:
    """Half an hour of requests in Mooncake's form: conversations with time to think, and prompts that come once."""
    draw = random.Random(seed)
    arrivals: list[tuple[float, list[int]]] = []
    block = 0
    while len(arrivals) < requests:
        at_s, path = draw.uniform(0.0, 1800.0), [0]
        talks = draw.random() < 0.4
        for _ in range(draw.randint(3, 9) if talks else 1):
            new = draw.randint(1, 3) if talks else draw.randint(2, 12)
            path = [*path, *range(block + 1, block + 1 + new)]
            block += new
            arrivals.append((at_s, path))
            at_s += draw.lognormvariate(3.5, 0.8)
    arrivals.sort(key=lambda one: one[0])
    return [
        {
            "timestamp": 1000.0 * at_s,
            "input_length": BLOCK_TOKENS * len(path),
            "output_length": 1,
            "hash_ids": path,
        }
        for at_s, path in arrivals
    ]


def lru_hits(rows: list[dict[str, Any]], pool_blocks: int) -> int:
    """Blocks that plain recency finds, whole paths being touched from their end: an ancestor is never older."""
    cached: OrderedDict[tuple[int, ...], None] = OrderedDict()
    hits = 0
    for row in rows:
        ids = tuple(row["hash_ids"])
        prefixes = [ids[:size] for size in range(len(ids), 0, -1)]
        found = [prefix for prefix in prefixes if prefix in cached]
        hits += len(found)
        for prefix in found:
            cached.move_to_end(prefix)
        while len(cached) + len(prefixes) - len(found) > pool_blocks:
            cached.popitem(last=False)
        for prefix in prefixes:
            cached[prefix] = None
            cached.move_to_end(prefix)
    return hits


@pytest.mark.parametrize("pool_blocks", [150, 300, 600])
@pytest.mark.parametrize("scale", [0.0, 0.01, 1.0, 8.0, 20.0, 100.0])
def test_no_clock_makes_it_worse_than_recency(scale: float, pool_blocks: int) -> None:
    rows = load()
    by_recency = lru_hits(rows, pool_blocks)
    trace = build([{**row, "timestamp": scale * row["timestamp"]} for row in rows], BLOCK_TOKENS)
    found = replay(trace, Ours(trace, np.full(len(trace.parent), np.nan)), pool_blocks).hit_blocks
    assert found >= 0.995 * by_recency > 0


def test_ages_are_told_apart_for_a_day() -> None:
    assert EDGES_S[-1] > DAY_S
