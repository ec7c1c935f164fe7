"""Scheduling on the real server: this project's policy against SGLang's own, on the same platform with the same requests.

Arms: SGLang's ``fcfs``, ``lpm`` and ``hrrn``, and ours. All servers live at once, but only one is awake; the others are stopped
(SIGSTOP). Every load of a round is asked of every arm that it compares, in an order that turns. What a load can be is measured
first: capacity is what the fcfs arm does with as many clients as may run. A request that is refused, or answered with other
than the tokens asked for, ends the run with an error, and so does a policy that did not act, or acted where it must not;
what was measured until then is kept in a file that is no result.

mixed_0.8, mixed_1.2  open loop, Poisson, at so much of capacity; log-normal lengths; 30 % share one of 4 prefixes
flood                 open loop above capacity on one hot prefix, and cold requests now and then
clients               one heavy client that asks for much at once, three light ones
trace                 replay of a trace in Mooncake's form, scaled (--trace FILE)
tight                 closed loop, KV pool at 40 % of what the running requests need when they end; answers run to their limits
tight_early           the same where half of the answers end before their limits, as the others of these loads do

  scheduling.py --trace mooncake.jsonl
  scheduling.py --workloads mixed_1.2 --rounds 1 --seconds 5 --capacity-requests 24 --warm-requests 8 --max-running-requests 4 --name ""
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import Claim, bootstrap_median, claim, measuring, run_facts, write_result
from scheduling_load import claims, inprocess
from scheduling_load.runner import Findings, Run, kind_of
from scheduling_load.servers import ARMS, COMMON, ENTROPIC
from scheduling_load.workloads import MIXED, NAMES, TIGHTS, TRACE, tight_pool_tokens

from sgl_entropic.models import resolve_model_path

RANK_BAR = "<= 1"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    it = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    it.add_argument("--name", default="scheduling", help="of the result; an empty one writes none")
    it.add_argument("--suffix", default="", help="of the claims' names, for a run beside the main one")
    it.add_argument(
        "--workloads", nargs="+", choices=NAMES, metavar="WORKLOAD", help="default: all, the trace if named"
    )
    it.add_argument("--all-arms", action="store_true", help="all four arms in every load")
    it.add_argument("--rounds", type=int, default=5)
    it.add_argument("--seed", type=int, default=1)
    it.add_argument("--max-running-requests", type=int, default=16)
    it.add_argument("--seconds", type=float, default=16.0, help="of arrivals of mixed_*")
    it.add_argument("--flood-seconds", type=float, default=12.0)
    it.add_argument("--flood-load", type=float, default=1.5, help="of what the server can do of it")
    it.add_argument(
        "--clients-seconds", type=float, default=12.0, help="of the time in which service is compared"
    )
    it.add_argument(
        "--clients-load", type=float, default=1.2, help="the heavy one's tokens, of those of that time"
    )
    it.add_argument("--capacity-requests", type=int, default=64, help="of each measurement of capacity")
    it.add_argument("--warm-requests", type=int, default=24, help="to each server before the first round")
    it.add_argument("--trace", type=Path, help="a trace in Mooncake's form")
    it.add_argument("--trace-requests", type=int, default=40, help="of a round")
    it.add_argument("--trace-scale-length", type=float, default=0.05, help="factor of all lengths")
    it.add_argument(
        "--trace-most-tokens", type=int, default=1024, help="of a prompt, and a quarter of an answer"
    )
    it.add_argument("--trace-load", type=float, default=1.0, help="of what the server can do of it")
    it.add_argument("--tight-running", type=int, default=16, help="most that may run at a time in tight")
    it.add_argument("--tight-share", type=float, default=0.4, help="of the KV that the running requests need")
    it.add_argument("--tight-requests", type=int, default=96)
    it.add_argument("--tight-clients", type=int, help="at a time; default: half more than may run")
    it.add_argument("--tight-flags", default="", help="further flags of all servers of tight")
    it.add_argument("--entropic-flags", default="", help="further flags of our arm")
    it.add_argument(
        "--flags", nargs=argparse.REMAINDER, default=[], help="last: further flags of all servers"
    )
    return it


def checked(it: argparse.ArgumentParser, arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options, or an end with the reason why they cannot be."""
    options = it.parse_args(arguments)
    if options.workloads is None:
        options.workloads = [name for name in NAMES if name != TRACE or options.trace]
    # In the order of the catalogue, each once.
    options.workloads = [name for name in NAMES if name in options.workloads]
    options.tight_clients = options.tight_clients or max(1, 3 * options.tight_running // 2)
    sizes = (
        "rounds",
        "max_running_requests",
        "capacity_requests",
        "warm_requests",
        "trace_requests",
        "tight_requests",
        "tight_running",
    )
    spans = (
        "seconds",
        "flood_seconds",
        "clients_seconds",
        "flood_load",
        "clients_load",
        "trace_load",
        "tight_share",
    )
    for wrong, reason in (
        (TRACE in options.workloads and options.trace is None, "the workload trace needs --trace FILE"),
        (min(getattr(options, name) for name in sizes) < 1, "a size is below 1"),
        (min(getattr(options, name) for name in spans) <= 0, "a time, load or share is not above 0"),
        (
            bool({*TIGHTS} & {*options.workloads}) and options.tight_clients >= options.tight_requests,
            "--tight-requests: more than --tight-clients, or the loop is never full",
        ),
        (
            options.capacity_requests < 2 * options.max_running_requests,
            "--capacity-requests: at least twice --max-running-requests, or capacity is of a start and an end",
        ),
    ):
        if wrong:
            it.error(reason)
    return options


def all_claims(options: argparse.Namespace, findings: Findings) -> tuple[list[Claim], dict[str, Any]]:
    """Every claim whose load ran, and what stands beside them; what is missing is said on stderr."""
    made, beside, missing = claims.claims_of(findings.samples, options.seed)
    for reason in missing:
        print(f"no claim {reason}", file=sys.stderr)
    median, interval = bootstrap_median(inprocess.rank_ms(options.seed), options.seed)
    made.append(claim("sched_rank_ms_1000", median, interval, "ms", RANK_BAR))
    made = [replace(one, name=one.name + options.suffix) for one in made]
    foreseen = {}
    for loads in (MIXED, (TRACE,)):
        chosen = [s for s in findings.samples if s["arm"] == ENTROPIC and s["workload"] in loads]
        if chosen:
            foreseen[kind_of(loads[0])] = inprocess.foreseen(chosen)
    return made, {"ratios": beside, "missing": missing, "kendall_tau_of_remaining_tokens": foreseen}


def content_of(options: argparse.Namespace, findings: Findings) -> dict[str, Any]:
    """What stands in the result beside claims, facts and samples."""
    settings = {name: value for name, value in vars(options).items() if not isinstance(value, Path)}
    return {
        "settings": {**settings, "trace": options.trace and options.trace.name},
        "arms": {name: " ".join((*COMMON, *flags)) for name, flags in ARMS.items()},
        "model": Path(resolve_model_path(None)).name,
        "tight_pool_tokens": tight_pool_tokens(options.tight_running, options.tight_share),
        "capacity": findings.capacity,
        "counters": findings.totals,
        "tables": claims.tables(findings.samples),
    }


def main() -> None:
    """Command line."""
    options = checked(parser())
    folder = Path(tempfile.mkdtemp(prefix="scheduling_"))
    facts = run_facts(options.seed)
    with measuring(folder, ValueError, RuntimeError):
        run = Run(options, folder, facts)
        run.all()
    content = content_of(options, run.findings)
    print(claims.table(content["tables"]), end="\n\n")
    made, beside = all_claims(options, run.findings)
    print(json.dumps(beside, indent=1))
    write_result(options.name, made, facts, run.findings.samples, beside_claims=beside, **content)


if __name__ == "__main__":
    main()
