"""Scheduling policies in simulation: the policy that the server runs, against SGLang's own, oracles and fair queueing.

compare  every policy on the same requests of every scenario; writes results/scheduling_comparison.json
fleet    many workers behind a router, on copies of a trace; writes results/scheduling_fleet.json
predict  what scheduling.py measured at the real server; writes its error to results/scheduling_simulation.json
tune     values of the policy's settings, one after the other

  scheduling_simulation.py fleet --trace mooncake.jsonl
  scheduling_simulation.py predict benchmark/results/scheduling.json
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path

from harness import Claim, run_facts, write_result
from scheduling_parts import compare, fleet, predict, tune, workloads
from scheduling_parts.arms import ARMS, NEUTRAL, OURS
from scheduling_parts.machine import LIMITS, Costs, Machine
from scheduling_parts.requests import LENGTHS
from scheduling_parts.router import ROUTERS
from scheduling_parts.scenarios import Scenario, catalogue


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = result.add_subparsers(dest="command", required=True)
    for name in ("compare", "tune", "fleet"):
        command = commands.add_parser(name)
        command.add_argument("--seed", type=int, default=1)
        command.add_argument("--processes", type=int, default=2)
        command.add_argument("--requests", type=int, default=1_000_000 if name == "fleet" else 400)
        command.add_argument("--lengths", choices=LENGTHS, default="half", help="what policies know of them")
        command.add_argument(
            "--set", nargs="+", default=[], metavar="NAME=VALUE", help="settings of the policy"
        )
        command.add_argument("--trace", type=Path, help="file in Mooncake's form")
        command.add_argument("--trace-length", type=float, default=0.05, help="factor of the trace's lengths")
        command.add_argument("--trace-most", type=int, nargs=2, default=(1_500, 256), metavar=("IN", "OUT"))
        _machine_options(command)
    for name in ("compare", "tune"):
        command = commands.choices[name]
        command.add_argument("--scenarios", nargs="+", help="names; default all")
        command.add_argument("--seeds", type=int, default=8, help="repeats")
    commands.choices["compare"].add_argument(
        "--arms", nargs="+", choices=ARMS, default=[arm for arm in ARMS if arm != NEUTRAL]
    )
    commands.choices["compare"].add_argument(
        "--result", default="scheduling_comparison", help="file in results/; empty to write none"
    )
    commands.choices["tune"].add_argument(
        "--try", nargs="+", required=True, metavar="NAME=V1,V2", dest="tried"
    )
    command = commands.choices["fleet"]
    command.add_argument("--workers", type=int, default=1_000)
    command.add_argument("--router", choices=ROUTERS, default="cache_aware")
    command.add_argument(
        "--arms", nargs="+", choices=ARMS, default=["fcfs", "lpm", "hrrn", "sjf", "vtc", OURS]
    )
    command.add_argument(
        "--load", type=float, default=0.9, help="arrivals over what fcfs gets done with all queued at once"
    )
    command.add_argument("--result", default="scheduling_fleet", help="file in results/; empty to write none")
    command = commands.add_parser("predict")
    command.add_argument("file", type=Path, help="result of scheduling.py")
    command.add_argument("--seed", type=int, default=1, help="of the intervals")
    command.add_argument("--pool-tokens", type=int, default=17_476, help="KV slots of its servers")
    command.add_argument("--chunk-tokens", type=int, default=4_096, help="their --chunked-prefill-size")
    command.add_argument(
        "--result", default="scheduling_simulation", help="file in results/; empty to write none"
    )
    return result


def _machine_options(command: argparse.ArgumentParser) -> None:
    for field in fields(Costs):
        command.add_argument(f"--{field.name.replace('_', '-')}", type=float, default=field.default)
    default = Machine()
    for name in LIMITS:
        value = getattr(default, name)
        command.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)


def machine_of(options: argparse.Namespace) -> Machine:
    """The engine that the options describe."""
    costs = Costs(**{field.name: getattr(options, field.name) for field in fields(Costs)})
    return Machine(costs=costs, **{name: getattr(options, name) for name in LIMITS})


def chosen(options: argparse.Namespace) -> list[Scenario]:
    """The scenarios asked for.

    Raises:
        SystemExit: one is not there.
    """
    every = {s.name: s for s in catalogue(options.trace, options.trace_length, tuple(options.trace_most))}
    names: Sequence[str] = options.scenarios or list(every)
    unknown = [name for name in names if name not in every]
    if unknown:
        raise SystemExit(
            f"no scenario {', '.join(unknown)}; there are {', '.join(every)} (trace needs --trace)"
        )
    return [every[name] for name in names]


def settings_of(options: argparse.Namespace) -> tuple[tuple[str, float], ...]:
    """Settings of the policy that the options change."""
    return tuple((name, float(value)) for name, value in (one.split("=") for one in options.set))


def plan_of(options: argparse.Namespace, arms: Sequence[str]) -> compare.Plan:
    """What the options ask to compare."""
    return compare.Plan(
        tuple(arms),
        machine_of(options),
        options.seeds,
        options.requests,
        options.lengths,
        settings_of(options),
    )


def run_compare(options: argparse.Namespace) -> None:
    """Compare, print tables, write the result."""
    plan, scenarios = plan_of(options, options.arms), chosen(options)
    samples = compare.run(plan, scenarios, options.processes)
    for scenario in scenarios:
        print(compare.table(samples, scenario.name), end="\n\n")
    claims = compare.claims_of(samples, scenarios, options.seed)
    if options.result:
        write_result(options.result, claims, run_facts(options.seed), samples, plan=asdict(plan))
        return
    show(claims)


def run_many(options: argparse.Namespace) -> None:
    """Simulate a fleet under each policy, print its figures and write the result."""
    facts = run_facts(options.seed)
    if options.trace is None:
        one = workloads.mixed(options.seed, options.requests)
    else:
        one = workloads.many_traces(
            options.trace, options.requests, options.trace_length, tuple(options.trace_most), options.seed
        )
    many = fleet.Fleet(
        OURS,
        options.router,
        options.workers,
        machine_of(options),
        options.processes,
        options.seed,
        settings=settings_of(options),
    )
    requests, where, routing_s = fleet.routed(many, one.with_lengths(options.lengths), options.load)
    found = {}
    for arm in options.arms:
        found[arm] = fleet.serve(replace(many, arm=arm), requests, where, routing_s, progress=True)
        print(arm, {name: round(value, 3) for name, value in found[arm].figures.items()}, flush=True)
    claims = fleet.claims_of(found, options.seed)
    if options.result:
        plan = {**asdict(many), "arms": options.arms, "load": options.load, "requests": len(requests)}
        plan |= {"trace": options.trace and options.trace.name, "lengths": options.lengths}
        plan |= {"trace_length": options.trace_length, "trace_most": options.trace_most}
        samples = [{"arm": arm, **served.figures} for arm, served in found.items()]
        del plan["arm"]
        write_result(options.result, claims, facts, samples, plan=plan)
        return
    show(claims)


def run_predict(options: argparse.Namespace) -> None:
    """Foresee a run of the real server, print the errors and write the result."""
    facts = run_facts(options.seed)
    machine = Machine(pool_tokens=options.pool_tokens, chunk_tokens=options.chunk_tokens)
    found = predict.predict(options.file, machine)
    print(predict.table(found), end="\n\n")
    claims = predict.claims_of(found, options.seed)
    if options.result:
        samples = {of: found[of].pop("rounds") for of in (predict.ONE_SPEED, predict.OWN_SPEED)}
        write_result(options.result, claims, facts, samples, **found)
        return
    show(claims)


def show(claims: Sequence[Claim]) -> None:
    """Print claims that no file keeps."""
    for one in claims:
        print(f"{one.name:32} {one.value:.3f} [{one.low:.3f}, {one.high:.3f}] bar {one.bar}")


def main() -> None:
    """Do what the command line asks."""
    options = parser().parse_args()
    if options.command == "compare":
        run_compare(options)
    elif options.command == "fleet":
        run_many(options)
    elif options.command == "tune":
        plan = plan_of(options, ("fcfs", "hrrn", OURS))
        tune.run(plan, chosen(options), options.tried, options.processes)
    else:
        run_predict(options)


if __name__ == "__main__":
    main()
