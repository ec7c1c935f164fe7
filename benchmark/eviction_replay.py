"""Hit shares of eviction policies on a trace, at five pool sizes: the figures of the replay's page, as a result file.

``python -m sgl_entropic.replay`` does the work, once as it comes and once with every active request in strong gravity, where
surprisal is what differs between ours and its placebo. Two trials of the placebo's seed in the latter give the spread.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from harness import Claim, claim, run_facts, write_result

from sgl_entropic.replay.__main__ import main as replay
from sgl_entropic.replay.arms import PLAIN

OURS, PLACEBO = "ours", "ours-placebo"
SHORT_REQUESTS, SHORT_POOL, SHORT_AGAIN = 100_000, 20_000, 0.2
RATES = 3
CLOCKS = (0.0, 0.1, 8.0, 20.0, 100.0)


def run(trace: Path, folder: Path, name: str, *more: str) -> dict[str, Any]:
    """What one replay wrote.

    Raises:
        RuntimeError: it failed; the reason stands on stderr.
    """
    path = folder / f"{name}.json"
    if replay([str(trace), "--json", str(path), *more]) != 0:
        raise RuntimeError(f"the replay {name} failed")
    content: dict[str, Any] = json.loads(path.read_text())
    content["settings"].pop("trace")
    content["settings"].pop("json")
    return content


def shares(rows: list[dict[str, Any]]) -> dict[str, dict[int, float]]:
    """Share of prompt tokens found cached, by policy and pool size."""
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        found.setdefault(row["policy"], {})[row["pool_blocks"]] = row["hit_tokens_share"]
    return found


def claims_of(plain: list[dict[str, Any]], strong: list[dict[str, Any]]) -> list[Claim]:
    """Against the best plain policy, against the optimum, and surprisal against its placebo.

    Intervals are the least and the most over pool sizes, and over draws of the placebo. Where surprisals are drawn at random
    themselves, the last claim is a check that they do no harm, and no evidence that measured ones help.
    """
    found = shares(plain)
    pools = sorted(found[OURS])
    best = {pool: max(found[name][pool] for name in PLAIN) for pool in pools}
    against = [found[OURS][pool] / best[pool] for pool in pools]
    closed = [
        (found[OURS][pool] - found["lru"][pool]) / (found["belady"][pool] - found["lru"][pool])
        for pool in pools
    ]
    beside = [
        shares(trial["rows"])[OURS][pool] / shares(trial["rows"])[PLACEBO][pool]
        for trial in strong
        for pool in pools
    ]
    return [
        claim(
            "evict_hits_vs_best_baseline_min", min(against), (min(against), max(against)), "ratio", ">= 0.995"
        ),
        claim(
            "evict_belady_gap_closed_mean",
            sum(closed) / len(closed),
            (min(closed), max(closed)),
            "share",
            ">= 0.2",
        ),
        claim(
            "evict_surprisal_vs_placebo",
            sum(beside) / len(beside),
            (min(beside), max(beside)),
            "ratio",
            ">= 1",
        ),
    ]


def on_other_clocks(trace: Path, folder: Path) -> dict[float, dict[str, Any]]:
    """The trace with its times multiplied: a busier server, a quieter one, and one without a clock."""
    rows = [json.loads(line) for line in trace.read_text().splitlines()]
    found = {}
    for scale in CLOCKS:
        path = folder / f"clock_{scale:g}.jsonl"
        scaled = ({**row, "timestamp": scale * row["timestamp"]} for row in rows)
        path.write_text("".join(json.dumps(row) + "\n" for row in scaled))
        found[scale] = run(path, folder, path.stem, "--policies", *PLAIN, OURS, "belady")
    return found


def clocks_claim(found: dict[float, dict[str, Any]]) -> Claim:
    """The worst of all clocks and pools; the interval is over clocks."""
    least = []
    for content in found.values():
        hits = shares(content["rows"])
        least.append(min(hits[OURS][p] / max(hits[name][p] for name in PLAIN) for p in hits[OURS]))
    ends = (min(least), max(least))
    return claim("evict_hits_vs_best_baseline_clocks_min", ends[0], ends, "ratio", ">= 0.995")


def blocks_per_minute(folder: Path, seed: int) -> float:
    """Rate of our policy where it is hardest: requests of one block each, all but a few seen for the first time."""
    rng = np.random.default_rng(seed)
    path = folder / "short.jsonl"
    with path.open("w") as file:
        for at in range(SHORT_REQUESTS):
            seen = at > 0 and rng.random() < SHORT_AGAIN
            row = {
                "timestamp": 1000 * at,
                "input_length": 512,
                "output_length": 1,
                "hash_ids": [int(rng.integers(at)) if seen else at],
            }
            file.write(json.dumps(row) + "\n")
    begin = time.perf_counter()
    run(path, folder, "short", "--pools", str(SHORT_POOL), "--policies", OURS)
    return 60 * SHORT_REQUESTS / (time.perf_counter() - begin)


def rate_claim(rates: list[float]) -> Claim:
    """The slowest trial counts; the interval is over trials."""
    low, high = min(rates), max(rates)
    return claim("evict_replay_short_blocks_per_min", low, (low, high), "blocks", ">= 1e6")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trace", type=Path, required=True, help="in Mooncake's form")
    parser.add_argument(
        "--surprisal", type=Path, help="mean surprisals of its blocks; drawn at random without"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    measured = [] if options.surprisal is None else ["--surprisal", str(options.surprisal)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rates = [blocks_per_minute(folder, options.seed + turn) for turn in range(RATES)]
        clocks = on_other_clocks(options.trace, folder)
        plain = run(options.trace, folder, "plain", "--seed", str(options.seed), *measured)
        strong = [
            run(
                options.trace,
                folder,
                f"strong_{trial}",
                "--gravity",
                "1",
                "--surprisal-weight",
                "0.5",
                "--policies",
                OURS,
                PLACEBO,
                "--seed",
                str(options.seed + trial),
                *measured,
            )
            for trial in range(2)
        ]
    write_result(
        "eviction_replay",
        [*claims_of(plain["rows"], strong), clocks_claim(clocks), rate_claim(rates)],
        run_facts(options.seed),
        {"plain": plain, "strong_gravity": strong, "clocks": clocks, "short_blocks_per_minute": rates},
        surprisal="measured" if measured else "drawn at random, independent of reuse",
    )


if __name__ == "__main__":
    main()
