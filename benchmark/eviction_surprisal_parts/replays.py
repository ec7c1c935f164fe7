"""The requests through the policies of ``sgl_entropic.replay``, with measured surprisals and with others in their place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from eviction_surprisal_parts.loads import Ask
from eviction_surprisal_parts.readings import BLOCK_TOKENS, names_of
from sgl_entropic.eviction import EvictionSettings
from sgl_entropic.eviction.arrays import FloatArray
from sgl_entropic.replay import baselines
from sgl_entropic.replay.cache import replay
from sgl_entropic.replay.ours import Ours
from sgl_entropic.replay.policy import Policy
from sgl_entropic.replay.surprisal import shuffled
from sgl_entropic.replay.trace import Trace, build

LRU, SLRU, PLAIN, BELADY = "lru", "slru", "plain", "belady"
MEASURED, REVERSED, PLACEBO = "measured", "reversed", "placebo"
NODES, NODES_PLACEBO = "nodes", "nodes_placebo"
WEIGHTS = (0.25, 0.5, 1.0)
"""Exponents of surprisal; the second is that of the claims."""
CLAIMED = WEIGHTS[1]
RUNNING = 4
WARM = 0.2
"""Share of the requests at whose beginning nothing is counted."""
_STEPS = 7


@dataclass(frozen=True, slots=True)
class Load:
    """A trace with the mean surprisal of each of its nodes, NaN where unknown."""

    trace: Trace
    surprisal_nats: FloatArray


def load_of(asks: Sequence[Ask], surprisal_nats: dict[str, float]) -> Load:
    """The requests in blocks; a request leaves prompt and answer in the cache, and asks for the prompt alone."""
    numbers: dict[str, int] = {}
    made = []
    for ask in asks:
        ids = ask.prompt + ask.answer
        made.append(
            {
                "timestamp": 1000.0 * ask.at_s,
                "input_length": len(ids),
                "output_length": len(ask.answer),
                "hash_ids": [numbers.setdefault(name, len(numbers)) for name in names_of(ids)],
            }
        )
    trace = build(made, BLOCK_TOKENS)
    requests = zip(trace.requests, asks, strict=True)
    trace = replace(
        trace, requests=tuple(replace(one, input_tokens=len(ask.prompt)) for one, ask in requests)
    )
    known = np.array([surprisal_nats.get(name, np.nan) for name in numbers])
    return Load(trace, known[np.array(trace.hash_id, dtype=np.int64)])


def runs_of(trace: Trace) -> np.ndarray:
    """For each block the run that it lies in [node], which a server would keep as one node.

    Blocks of a run follow each other without a branch, as far as the whole trace tells, and the same requests touch them.
    """
    visits, children = np.zeros(len(trace.parent), int), np.zeros(len(trace.parent), int)
    for request in trace.requests:
        visits[list(request.path)] += 1
    for parent in trace.parent:
        if parent >= 0:
            children[parent] += 1
    run = np.zeros(len(trace.parent), int)
    for node, parent in enumerate(trace.parent):
        same = parent >= 0 and children[parent] == 1 and visits[parent] == visits[node]
        run[node] = run[parent] if same else node
    return run


def over_runs(load: Load, run: np.ndarray) -> FloatArray:
    """The mean surprisal of each block's run, each token alike [node]."""
    known = np.isfinite(load.surprisal_nats)
    weight = np.where(known, np.array(load.trace.tokens, float), 0.0)
    total = np.bincount(run, weight * np.where(known, load.surprisal_nats, 0.0), len(run))
    of_run = np.bincount(run, weight, len(run))
    mean: FloatArray = np.divide(total, of_run, out=np.full(len(run), np.nan), where=of_run > 0)[run]
    return mean


def shuffled_runs(load: Load, run: np.ndarray, seed: int) -> FloatArray:
    """The means of the runs, each at a run drawn at random [node]: the placebo of ``over_runs``."""
    mean, first = over_runs(load, run), np.unique(run)
    drawn = mean.copy()
    drawn[first] = shuffled(mean[first], seed)
    return drawn[run]


def arms_of(load: Load, seeds: Sequence[int]) -> dict[str, Callable[[], Policy]]:
    """What makes a fresh policy of each arm; weights stand behind its name, and of placebos the seeds: ``placebo/0.5/3``."""
    trace, nats = load.trace, load.surprisal_nats
    run = runs_of(trace)

    def ours(weight: float, values: FloatArray) -> Callable[[], Policy]:
        return lambda: Ours(trace, values, 1.0, EvictionSettings(surprisal_weight=weight))

    made: dict[str, Callable[[], Policy]] = {
        LRU: lambda: baselines.Lru(trace),
        SLRU: lambda: baselines.Slru(trace, 1),
        BELADY: lambda: baselines.Belady(trace),
        PLAIN: ours(0.0, nats),
    }
    for weight in WEIGHTS:
        made[f"{MEASURED}/{weight:g}"] = ours(weight, nats)
        # What a factor common to all does to an order is nothing, so the inverse is a negative exponent.
        made[f"{REVERSED}/{weight:g}"] = ours(weight, 1.0 / np.maximum(nats, 1e-3))
        made[f"{NODES}/{weight:g}"] = ours(weight, over_runs(load, run))
        for seed in seeds:
            made[f"{PLACEBO}/{weight:g}/{seed}"] = ours(weight, shuffled(nats, seed))
            if weight == CLAIMED:
                made[f"{NODES_PLACEBO}/{weight:g}/{seed}"] = ours(weight, shuffled_runs(load, run, seed))
    return made


def hit_tokens(load: Load, policy: Policy, pool_blocks: int) -> int:
    """Prompt tokens found cached, without those of the first requests."""
    skip = int(WARM * len(load.trace.requests))
    return replay(load.trace, policy, pool_blocks, running=RUNNING, skip=skip).hit_tokens


def most_hit_tokens(load: Load) -> int:
    """The same in a pool that holds everything."""
    return hit_tokens(load, baselines.Lru(load.trace), len(load.trace.parent))


def pools_of(load: Load, shares: Sequence[float]) -> list[int]:
    """Blocks with which LRU finds about these shares of what can be found, each number once.

    The smallest holds the longest request, which may find more.
    """
    most = most_hit_tokens(load)
    least = max(len(request.path) for request in load.trace.requests)
    pools: list[int] = []
    for share in shares:
        low, high = least, len(load.trace.parent)
        for _ in range(_STEPS):
            middle = round((low * high) ** 0.5)
            found = hit_tokens(load, baselines.Lru(load.trace), middle)
            low, high = (middle, high) if found < share * most else (low, middle)
        pools.append(round((low * high) ** 0.5))
    return list(dict.fromkeys(pools))


def described(load: Load) -> dict[str, float]:
    """What a load is like, and whether surprisal tells what is asked for again."""
    visits = np.zeros(len(load.trace.parent), int)
    for request in load.trace.requests:
        visits[list(request.path)] += 1
    known = np.isfinite(load.surprisal_nats)
    again, once = load.surprisal_nats[known & (visits > 1)], load.surprisal_nats[known & (visits == 1)]
    ranks = np.argsort(np.argsort(np.concatenate((again, once))))
    # Chance that a block that is asked for again has the higher surprisal of the two (Mann and Whitney).
    above = ranks[: len(again)].sum() - len(again) * (len(again) - 1) / 2
    return {
        "requests": len(load.trace.requests),
        "prompt_tokens": sum(request.input_tokens for request in load.trace.requests),
        "distinct_blocks": len(load.trace.parent),
        "again_share": len(again) / max(1, len(again) + len(once)),
        "again_mean_nats": float(again.mean()),
        "once_mean_nats": float(once.mean()),
        "again_above_once": float(above / (len(again) * len(once))),
    }
