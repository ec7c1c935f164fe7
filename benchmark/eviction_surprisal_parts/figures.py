"""Ratios of hit tokens over draws and pools, with intervals; the claims and the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from harness import Claim, claim
from scipy import stats

from eviction_surprisal_parts import replays
from eviction_surprisal_parts.loads import MIX

Sample = dict[str, Any]
"""``load``, ``draw``, ``pool_blocks``, ``most_hit_tokens``, and ``hit_tokens`` by arm."""
CONFIDENCE = 0.95


def hits(sample: Sample, arm: str) -> float:
    """Hit tokens of an arm; the mean over seeds for a placebo."""
    found = sample["hit_tokens"]
    if arm in found:
        return float(found[arm])
    seeds = [count for name, count in found.items() if name.rpartition("/")[0] == arm]
    return float(np.mean(seeds))


def ratio(samples: Sequence[Sample], upper: str, lower: str) -> tuple[float, float, float]:
    """Hit tokens of one arm over those of another, and the ends of a 95 % interval.

    The geometric mean over pools and draws. A draw's pools see the same requests, so that draws are what the interval is over:
    Student's, of the means of logarithms.
    """
    draws: dict[int, list[float]] = {}
    for sample in samples:
        draws.setdefault(sample["draw"], []).append(np.log(hits(sample, upper) / hits(sample, lower)))
    means = [float(np.mean(logs)) for logs in draws.values()]
    middle = float(np.mean(means))
    half = 0.0
    if len(means) > 1:
        error = float(np.std(means, ddof=1)) / len(means) ** 0.5
        half = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(means) - 1)) * error
    return float(np.exp(middle)), float(np.exp(middle - half)), float(np.exp(middle + half))


def claims_of(samples: Sequence[Sample]) -> list[Claim]:
    """Of the mix, at one weight."""
    mix = [sample for sample in samples if sample["load"] == MIX]
    measured = f"{replays.MEASURED}/{replays.CLAIMED:g}"
    made = []
    for name, lower in (
        ("placebo", f"{replays.PLACEBO}/{replays.CLAIMED:g}"),
        ("plain", replays.PLAIN),
    ):
        value, low, high = ratio(mix, measured, lower)
        made.append(claim(f"evict_measured_surprisal_vs_{name}", value, (low, high), "ratio", ">= 1"))
    return made


def ratios(samples: Sequence[Sample]) -> dict[str, dict[str, list[float]]]:
    """By load, and by load and pool: every arm over ours without surprisal, and measured surprisals over their placebo."""
    made: dict[str, dict[str, list[float]]] = {}
    for load in dict.fromkeys(sample["load"] for sample in samples):
        own = [sample for sample in samples if sample["load"] == load]
        pools = sorted({sample["pool_blocks"] for sample in own})
        made[load] = _ratios(own)
        for pool in pools:
            made[f"{load}, {pool} blocks"] = _ratios([s for s in own if s["pool_blocks"] == pool])
    return made


def _ratios(samples: Sequence[Sample]) -> dict[str, list[float]]:
    arms = dict.fromkeys(_arm(name) for name in samples[0]["hit_tokens"])
    pairs = [(arm, replays.PLAIN) for arm in arms if arm != replays.PLAIN]
    sides = ((replays.MEASURED, replays.PLACEBO), (replays.NODES, replays.NODES_PLACEBO))
    beside = [(f"{a}/{weight:g}", f"{b}/{weight:g}") for a, b in sides for weight in replays.WEIGHTS]
    pairs += [(measured, placebo) for measured, placebo in beside if placebo in arms]
    return {
        f"{upper} over {lower}": [round(x, 5) for x in ratio(samples, upper, lower)] for upper, lower in pairs
    }


def _arm(name: str) -> str:
    """Without the seed."""
    return name.rpartition("/")[0] if name.count("/") > 1 else name


def table(samples: Sequence[Sample]) -> str:
    """For people: LRU's hits of what can be found, and every ratio."""
    lines = []
    for load, found in ratios(samples).items():
        own = [s for s in samples if load in (s["load"], f"{s['load']}, {s['pool_blocks']} blocks")]
        share = np.mean([hits(s, replays.LRU) / s["most_hit_tokens"] for s in own])
        lines.append(f"{load}: LRU finds {share:.3f} of what can be found")
        lines += [
            f"  {name:40} {value:.4f} [{low:.4f}, {high:.4f}]" for name, (value, low, high) in found.items()
        ]
    return "\n".join(lines)
