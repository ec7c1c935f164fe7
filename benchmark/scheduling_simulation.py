"""Scheduling policies in simulation: the policy that the server runs, against SGLang's own, oracles and fair queueing.

``compare`` runs every policy on the same requests of every scenario and writes results/scheduling_simulation.json.
``fleet`` runs many workers behind a router. ``predict`` foresees a run of the real server that a file describes.
``tune`` tries values of the policy's settings, one after the other.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

from harness import run_facts, write_result
from scheduling_parts import compare, tune, workloads
from scheduling_parts.arms import ARMS, NEUTRAL, OURS
from scheduling_parts.fleet import Fleet, run_fleet
from scheduling_parts.machine import Costs, Machine
from scheduling_parts.predict import LIMITS, predict
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
        _machine_options(command)
    for name in ("compare", "tune"):
        command = commands.choices[name]
        command.add_argument("--scenarios", nargs="+", help="names; default all")
        command.add_argument("--seeds", type=int, default=8, help="repeats")
        command.add_argument("--trace", type=Path, help="file in Mooncake's form")
        command.add_argument("--trace-length", type=float, default=0.05, help="factor of the trace's lengths")
        command.add_argument("--trace-most", type=int, nargs=2, default=(1_500, 256), metavar=("IN", "OUT"))
    commands.choices["compare"].add_argument(
        "--arms", nargs="+", choices=ARMS, default=[arm for arm in ARMS if arm != NEUTRAL]
    )
    commands.choices["compare"].add_argument(
        "--result", default="scheduling_simulation", help="file in results/; empty to write none"
    )
    commands.choices["tune"].add_argument(
        "--try", nargs="+", required=True, metavar="NAME=V1,V2", dest="tried"
    )
    command = commands.choices["fleet"]
    command.add_argument("--workers", type=int, default=1_000)
    command.add_argument("--router", choices=ROUTERS, default="cache_aware")
    command.add_argument("--arms", nargs="+", choices=ARMS, default=["fcfs", OURS])
    command.add_argument("--load", type=float, default=0.9, help="arrivals over the foreseen capacity")
    command = commands.add_parser("predict")
    command.add_argument("file", type=Path, help="described in scheduling_parts/predict.py")
    command.add_argument("--arm", choices=ARMS, default="fcfs")
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
    for one in claims:
        print(f"{one.name:32} {one.value:.3f} [{one.low:.3f}, {one.high:.3f}] bar {one.bar}")


def run_many(options: argparse.Namespace) -> None:
    """Simulate a fleet under each policy and print its figures."""
    machine = machine_of(options)
    one = workloads.mixed(options.seed, options.requests).with_lengths(options.lengths)
    # the workload has one request a second
    capacity = options.workers * 1000 / float(workloads.work_ms(one, machine).mean())
    requests = one.at_rate(capacity * options.load)
    for arm in options.arms:
        fleet = Fleet(
            arm,
            options.router,
            options.workers,
            machine,
            options.processes,
            options.seed,
            settings=settings_of(options),
        )
        figures = run_fleet(fleet, requests, progress=True)
        print(arm, {name: round(value, 3) for name, value in figures.items()}, flush=True)


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
        for name, value in predict(options.file, options.arm).items():
            print(f"{name:24} {value:.6g}")


if __name__ == "__main__":
    main()
