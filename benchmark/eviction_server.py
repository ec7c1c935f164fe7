"""Eviction from the prefix cache on the real server with a small KV pool: ours against SGLang's LRU, request by request.

Arms: SGLang's LRU on its Rust tree (what a server has by default) and on its Python tree (which ours is built on), and ours;
with --arms also ours with gravity. One server lives at a time: each round starts a fresh one of each arm in an order that
turns, and asks it the same requests at the same times, each load of an empty cache. How fast times go is measured first: LRU's
work, as a simulation foresees it, is a share of what the machine does. The first part of a load fills the cache and is not
counted. An answer with other than the tokens asked for ends the run with an error, and so does a server with another tree
than its arm says.

chat        multi-turn sessions with time to think, of which a share goes on and the others ask once
structured  questions behind system prompts of unequal popularity, answers held by a regular expression or a JSON schema
trace       whole sessions of a trace in Mooncake's form, scaled (--trace FILE)

  eviction_server.py --trace mooncake.jsonl
  eviction_server.py --simulate --trace mooncake.jsonl
  eviction_server.py --arms lru_rust lru_python --rounds 1 --chat-sessions 20 --workloads chat --name ""
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from eviction_load import claims, simulation
from eviction_load.runner import ASSUMED, Findings, Loads, Pace, Run, content_of, simulated_table
from eviction_load.servers import ARMS, COMMON, GRAVITY
from eviction_load.sessions import NAMES, TRACE, Chat, Structured
from harness import Claim, claim, measuring, run_facts, write_result

from sgl_entropic.models import resolve_model_path
from sgl_entropic.replay.arms import PLAIN

_CHAT, _STRUCTURED = Chat(), Structured()


def parser() -> argparse.ArgumentParser:
    """The command line."""
    it = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    it.add_argument("--name", default="eviction_server", help="of the result; an empty one writes none")
    it.add_argument(
        "--workloads", nargs="+", choices=NAMES, metavar="WORKLOAD", help="default: all, the trace if named"
    )
    it.add_argument(
        "--arms", nargs="+", choices=tuple(ARMS), metavar="ARM", help=f"default: all but {GRAVITY}"
    )
    it.add_argument(
        "--simulate",
        action="store_true",
        help="no server: what each policy finds cached; NAME_simulated is written",
    )
    it.add_argument("--rounds", type=int, default=3)
    it.add_argument("--seed", type=int, default=1)
    it.add_argument("--pool-tokens", type=int, default=6144, help="KV slots of the server")
    it.add_argument("--max-running-requests", type=int, default=8)
    it.add_argument("--load", type=float, default=0.6, help="LRU's work, of what the server can do")
    it.add_argument("--warm", type=float, default=0.25, help="share of a load that is not counted")
    it.add_argument(
        "--pace",
        type=float,
        nargs=2,
        metavar=("PROMPT", "OUTPUT"),
        help="tokens per second that times are made of; measured without, assumed in a simulation",
    )
    it.add_argument("--chat-sessions", type=int, default=_CHAT.sessions)
    it.add_argument("--chat-continuing", type=float, default=_CHAT.continuing, help="share that goes on")
    it.add_argument("--chat-think", type=float, default=_CHAT.think, help="median, of the load's time")
    it.add_argument("--structured-requests", type=int, default=_STRUCTURED.requests)
    it.add_argument("--structured-systems", type=int, default=_STRUCTURED.systems)
    it.add_argument("--trace", type=Path, help="a trace in Mooncake's form")
    it.add_argument("--trace-requests", type=int, default=300)
    it.add_argument("--trace-scale-length", type=float, default=0.02, help="factor of all lengths")
    it.add_argument("--trace-most-tokens", type=int, default=1024, help="sessions of longer prompts stay out")
    it.add_argument("--entropic-flags", default="", help="further flags of our arms")
    it.add_argument(
        "--flags", nargs=argparse.REMAINDER, default=[], help="last: further flags of all servers"
    )
    return it


def checked(it: argparse.ArgumentParser, arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options, or an end with the reason why they cannot be."""
    options = it.parse_args(arguments)
    if options.workloads is None:
        options.workloads = [name for name in NAMES if name != TRACE or options.trace]
    # In the order of the catalogues, each once.
    options.workloads = [name for name in NAMES if name in options.workloads]
    options.arms = [
        name for name in ARMS if (name != GRAVITY if options.arms is None else name in options.arms)
    ]
    sizes = (
        "rounds",
        "max_running_requests",
        "chat_sessions",
        "structured_requests",
        "structured_systems",
        "trace_requests",
    )
    spans = ("load", "chat_think", "trace_scale_length", *(() if options.pace is None else ("pace",)))
    for wrong, reason in (
        (TRACE in options.workloads and options.trace is None, "the workload trace needs --trace FILE"),
        (min(getattr(options, name) for name in sizes) < 1, "a size is below 1"),
        (
            any(min(_numbers(getattr(options, name))) <= 0 for name in spans),
            "a time, load or pace is not above 0",
        ),
        (not 0 <= options.warm < 1, "--warm is a share below 1"),
        (not 0 <= options.chat_continuing <= 1, "--chat-continuing is a share"),
        (
            options.pool_tokens < 2 * max(_CHAT.most_tokens, options.trace_most_tokens),
            "--pool-tokens: twice the longest prompt at the least",
        ),
    ):
        if wrong:
            it.error(reason)
    return options


def _numbers(value: float | Sequence[float]) -> Sequence[float]:
    return value if isinstance(value, Sequence) else (value,)


def simulated(options: argparse.Namespace) -> Findings:
    """The loads of all rounds, without a server."""
    loads, pace = Loads(options), Pace(*options.pace) if options.pace else ASSUMED
    findings = Findings(pace)
    for load in options.workloads:
        for number in range(options.rounds):
            sessions, seconds = loads.of(load, number, pace)
            one = loads.simulated(sessions)
            findings.simulated.setdefault(load, []).append(one)
            print(
                f"{load}, round {number + 1}: {seconds:.0f} s, {one.prompt_tokens} tokens counted",
                file=sys.stderr,
            )
    return findings


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """What stands in the result of the command line and the arms."""
    settings = {name: value for name, value in vars(options).items() if not isinstance(value, Path)}
    return {
        "settings": {**settings, "trace": options.trace and options.trace.name},
        "arms": {
            name: " ".join(
                [
                    *(f"{key}={value}" for key, value in ARMS[name].env.items() if value),
                    *COMMON,
                    *ARMS[name].flags,
                ]
            )
            for name in options.arms
        },
        "model": Path(resolve_model_path(None)).name,
    }


def simulated_claims(found: dict[str, list[simulation.Simulated]]) -> list[Claim]:
    """Hit shares of ours over those of the best plain policy of all rounds; the interval is over rounds."""
    made = []
    for load, each in found.items():

        def ratio(rounds: list[simulation.Simulated]) -> float:
            best = max(sum(one.hit_share[name] for one in rounds) for name in PLAIN)
            return sum(one.hit_share["ours"] for one in rounds) / best

        ratios = [ratio([one]) for one in each]
        made.append(
            claim(
                f"evict_simulated_{load}_vs_best",
                ratio(each),
                (min(ratios), max(ratios)),
                "ratio",
                ">= 0.995",
            )
        )
    return made


def main() -> None:
    """Command line."""
    options = checked(parser())
    if options.simulate:
        found = simulated(options).simulated
        print(simulation.table(simulated_table(found)))
        if options.name:
            write_result(
                f"{options.name}_simulated",
                simulated_claims(found),
                run_facts(options.seed),
                {load: [asdict(one) for one in each] for load, each in found.items()},
                **settings_of(options),
            )
        return
    folder = Path(tempfile.mkdtemp(prefix="eviction_server_"))
    facts = run_facts(options.seed)
    with measuring(folder, ValueError, RuntimeError, OSError):
        run = Run(options, folder, facts)
        run.all()
    tables = claims.tables(run.findings.samples)
    print(
        simulation.table(simulated_table(run.findings.simulated)),
        claims.table(tables),
        sep="\n\n",
        end="\n\n",
    )
    made, beside, missing = claims.claims_of(run.findings.samples, options.seed)
    for reason in missing:
        print(f"no claim {reason}", file=sys.stderr)
    print(json.dumps(beside, indent=1))
    more = {**settings_of(options), **content_of(run.findings), "tables": tables}
    ratios = {"ratios": beside, "missing": missing}
    write_result(options.name, made, facts, run.findings.samples, beside_claims=ratios, **more)


if __name__ == "__main__":
    main()
