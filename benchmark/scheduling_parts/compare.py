"""Every policy on the same requests, seed by seed; claims are medians of the seeds' ratios."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from harness import Claim, bootstrap_median, claim
from twin_parts.progress import Progress

from scheduling_parts.arms import OURS, make_policy
from scheduling_parts.engine import Engine
from scheduling_parts.machine import Machine
from scheduling_parts.measures import rows, summary
from scheduling_parts.scenarios import Bar, Scenario, prepare

Sample = dict[str, Any]
SHOWN = (
    "latency_mean_ms",
    "latency_p50_ms",
    "latency_p99_ms",
    "ttft_mean_ms",
    "ttft_p99_ms",
    "tokens_per_s",
    "recomputed_tokens",
    "retractions",
    "held_share",
    "cached_share",
    "longest_wait_ms",
    "longest_wait_tokens",
    "most_overtaken_tokens",
    "jain_served",
    "jain_speed",
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is compared.

    Attributes:
        arms: names of policies.
        machine: the engine.
        seeds: repeats.
        requests: of each repeat.
        lengths: what policies know of them.
        settings: of the policy under test, where they differ from its defaults.
    """

    arms: tuple[str, ...]
    machine: Machine
    seeds: int
    requests: int
    lengths: str
    settings: tuple[tuple[str, float], ...] = ()


def one_seed(job: tuple[Plan, Scenario, int]) -> list[Sample]:
    """All arms on one seed."""
    plan, scenario, seed = job
    requests, machine = prepare(scenario, plan.machine, seed, plan.requests, plan.lengths)
    samples = []
    for arm in plan.arms:
        engine = Engine(machine, make_policy(arm, dict(plan.settings)), requests)
        engine.run()
        figures = summary(rows(engine), [engine.totals], requests.prompt + requests.output, requests.client)
        samples.append(
            {
                "scenario": scenario.name,
                "arm": arm,
                "seed": seed,
                "pool_tokens": machine.pool_tokens,
                **figures,
            }
        )
    return samples


def run(plan: Plan, scenarios: Sequence[Scenario], processes: int, *, quiet: bool = False) -> list[Sample]:
    """Samples of all scenarios and seeds."""
    jobs = [(plan, scenario, seed) for scenario in scenarios for seed in range(1, plan.seeds + 1)]
    progress = None if quiet else Progress([scenario.name for _, scenario, _ in jobs])
    samples = []
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        for (_, scenario, seed), found in zip(jobs, pool.imap(one_seed, jobs), strict=True):
            samples += found
            if progress is not None:
                progress.done(scenario.name, f"{scenario.name}, seed {seed}")
    return samples


def figures(samples: Sequence[Sample], scenario: str, arm: str, figure: str) -> list[float]:
    """A figure of an arm, seed by seed."""
    return [s[figure] for s in samples if s["scenario"] == scenario and s["arm"] == arm and figure in s]


def ratios(samples: Sequence[Sample], scenario: str, bar: Bar) -> list[float]:
    """The policy over a peer, seed by seed; seeds on which the peer's figure is 0 have none."""
    ours, peer = (figures(samples, scenario, arm, bar.figure) for arm in (OURS, bar.peer))
    if not ours or not peer:
        return []
    return [a / b for a, b in zip(ours, peer, strict=True) if b]


def claims_of(samples: Sequence[Sample], scenarios: Sequence[Scenario], seed: int) -> list[Claim]:
    """Claims of those scenarios in which the policy and the peer ran."""
    result = []
    for scenario in scenarios:
        for bar in scenario.bars:
            found = ratios(samples, scenario.name, bar)
            if found:
                result.append(claim(bar.name, *bootstrap_median(found, seed), "ratio", bar.bar))
    return result


def table(samples: Sequence[Sample], scenario: str) -> str:
    """Medians over the seeds, one line for each arm."""
    mine = [s for s in samples if s["scenario"] == scenario]
    shown = [name for name in SHOWN if name in mine[0]]
    heads = [name.removesuffix("_ms").removesuffix("_tokens") for name in shown]
    lines = [f"{scenario:14}" + "".join(f"{head:>15}" for head in heads)]
    for arm in dict.fromkeys(s["arm"] for s in mine):
        cells = [float(np.median(figures(mine, scenario, arm, name))) for name in shown]
        lines.append(f"{arm:14}" + "".join(f"{_number(cell):>15}" for cell in cells))
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
