"""``python -m sgl_entropic.replay``: a trace, pool sizes and policies in; hit shares and first-token times out."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from sgl_entropic.errors import ConfigError, EntropicError
from sgl_entropic.eviction import EvictionSettings
from sgl_entropic.replay import arms, outputs, plot, surprisal, table, trace
from sgl_entropic.replay.cache import check_pool, replay
from sgl_entropic.replay.ours import GHOST_BLOCKS
from sgl_entropic.replay.prefill import PrefillCost
from sgl_entropic.replay.progress import Bar

_POOLS = (1000, 3000, 8000, 20_000, 50_000)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the replays and return the exit status: 0, 1 for a clear failure, 130 when interrupted."""
    arguments = _parser().parse_args(argv)
    try:
        return _run(arguments)
    except OSError as error:
        print(
            f"error: {error.filename}: {error.strerror}" if error.filename else f"error: {error}",
            file=sys.stderr,
        )
        return 1
    except (EntropicError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: nothing was written", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sgl_entropic.replay",
        description="Replay a request trace through a prefix cache under several eviction policies.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add(
        "trace",
        type=Path,
        help="JSON lines, or those packed by gzip: timestamp, input_length, output_length, hash_ids",
    )
    add("--pools", type=_positive, nargs="+", default=list(_POOLS), metavar="BLOCKS", help="pool sizes")
    add("--policies", nargs="+", choices=arms.NAMES, default=list(arms.NAMES), metavar="NAME", help="which")
    add("--block-tokens", type=_positive, default=trace.BLOCK_TOKENS, help="prompt tokens of a block")
    add("--requests", type=_positive, help="only so many requests of the trace, in the order of its lines")
    add("--skip", type=_natural, default=0, help="requests that warm the cache and are not counted")
    add("--running", type=_positive, default=1, help="requests that hold their blocks at a time")
    add("--slru-hits", type=_natural, default=1, help="hits after which SLRU protects")
    add("--tlru-threshold", type=_natural, default=2048, metavar="TOKENS", help="T-LRU: uncached in time")
    add("--tlru-next", type=_natural, default=0, metavar="TOKENS", help="T-LRU: what a next prompt adds")
    ttft = PrefillCost()
    add(
        "--ttft",
        type=float,
        nargs=3,
        default=[ttft.p0_ms, ttft.p1_ms, ttft.p2_ms],
        metavar=("P0", "P1", "P2"),
        help="ms: P0 + P1 new + P2 new cached",
    )
    add("--surprisal", type=Path, metavar="FILE", help="mean surprisals: JSON lines hash_id, surprisal_nats")
    add("--gravity", type=_share, default=0.0, help="share of active requests in strong gravity")
    add("--ghosts", type=_natural, default=GHOST_BLOCKS, help="ours: evicted blocks it remembers")
    add("--work-weight", type=float, default=0.0, help="ours: exponent of the prefill work a token saves")
    add(
        "--surprisal-weight",
        type=float,
        default=0.0,
        help="ours: exponent of a block's surprisal where --gravity is 1, none up to 0.5",
    )
    add("--seed", type=_natural, default=0, help="of synthetic and shuffled surprisal")
    add("--json", type=Path, metavar="FILE", help="write all figures")
    add("--plot", type=Path, metavar="FILE", help="write a picture")
    return parser


def _run(arguments: argparse.Namespace) -> int:
    settings = _settings(arguments)
    outputs.require(
        {"--json": arguments.json, "--plot": arguments.plot},
        {"the trace": arguments.trace, "--surprisal": arguments.surprisal},
    )
    if arguments.plot is not None:
        plot.require(arguments.plot)
    read = trace.read(arguments.trace, block_tokens=arguments.block_tokens, requests=arguments.requests)
    if arguments.skip >= len(read.requests):
        raise ConfigError(
            f"--skip is {arguments.skip}: less than the {len(read.requests)} requests is needed"
        )
    check_pool(read, min(arguments.pools))
    rows = _replay_all(read, arguments, settings)
    claims = table.summary(rows)
    print("\n".join(table.lines(rows)))
    for name, value in claims.items():
        print(f"{name}: {value:.4f}")
    if arguments.json is not None:
        given = {
            key: str(value) if isinstance(value, Path) else value for key, value in vars(arguments).items()
        }
        text = json.dumps({"settings": given, "rows": rows, "summary": claims}, indent=1)
        with outputs.told("--json", arguments.json):
            arguments.json.write_text(text + "\n", encoding="utf-8")
    if arguments.plot is not None:
        with outputs.told("--plot", arguments.plot):
            plot.write(arguments.plot, rows, arguments.trace.name)
    return 0


def _replay_all(
    read: trace.Trace, arguments: argparse.Namespace, settings: arms.ArmSettings
) -> list[table.Row]:
    if not set(arms.READ_SURPRISAL) & set(arguments.policies):
        known = surprisal.unknown(read)
    elif arguments.surprisal is None:
        known = surprisal.synthetic(read, arguments.seed)
    else:
        known = surprisal.read(arguments.surprisal, read)
    factories = arms.factories(read, known, settings)
    bar = Bar(len(arguments.pools) * len(arguments.policies) * len(read.requests))
    rows = []
    for pool in arguments.pools:
        for name in arguments.policies:
            begin_s = time.perf_counter()
            outcome = replay(
                read,
                factories[name](),
                pool,
                running=arguments.running,
                skip=arguments.skip,
                step=bar.step,
            )
            spent_s = time.perf_counter() - begin_s
            figures = outcome.figures(settings.cost)
            rows.append({"pool_blocks": pool, "policy": name, **figures, "replay_s": spent_s})
            bar.say(f"{pool} blocks, {name}: {figures['hit_tokens_share']:.4f}")
    return rows


def _settings(arguments: argparse.Namespace) -> arms.ArmSettings:
    cost = PrefillCost(*arguments.ttft)
    if not all(0 <= ms < math.inf for ms in asdict(cost).values()) or cost.p1_ms == 0:
        raise ConfigError(
            f"--ttft is {arguments.ttft}: finite numbers of at least 0 are needed, and P1 above 0"
        )
    return arms.ArmSettings(
        cost,
        slru_hits=arguments.slru_hits,
        tlru_threshold_tokens=arguments.tlru_threshold,
        tlru_next_tokens=arguments.tlru_next,
        gravity=arguments.gravity,
        seed=arguments.seed,
        ghost_blocks=arguments.ghosts,
        eviction=EvictionSettings(
            surprisal_weight=arguments.surprisal_weight,
            work_weight=arguments.work_weight,
            work_per_context=cost.p2_ms / cost.p1_ms,
        ),
    )


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def _natural(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is not at least 0")
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0.0 <= value <= 1.0:
        raise argparse.ArgumentTypeError(f"{text} is not within 0 and 1")
    return value


if __name__ == "__main__":
    raise SystemExit(main())
