"""Workloads with their loads, machines and bars."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from scheduling_parts import workloads
from scheduling_parts.baselines import Fcfs
from scheduling_parts.engine import Engine
from scheduling_parts.machine import Machine
from scheduling_parts.requests import Requests


@dataclass(frozen=True, slots=True)
class Bar:
    """A claim: the median over seeds of a figure of the policy over that of a peer; no peer means the figure itself."""

    name: str
    figure: str
    peer: str
    bar: str


@dataclass(frozen=True, slots=True)
class Scenario:
    """One workload at one load.

    Attributes:
        name: what tables call it.
        build: seed and number of requests to requests.
        load: arrivals over what first come, first served gets done when all is queued at once.
        bars: what is claimed.
        pool_share: KV slots as a share of what ``most_running`` requests need at their ends; ``None`` leaves the machine's.
    """

    name: str
    build: Callable[[int, int], Requests]
    load: float
    bars: tuple[Bar, ...]
    pool_share: float | None = None


def _mixed_bars(name: str) -> tuple[Bar, ...]:
    return (
        Bar(f"sim_mean_vs_fcfs_{name}", "latency_mean_ms", "fcfs", "<= 0.80"),
        Bar(f"sim_mean_vs_hrrn_{name}", "latency_mean_ms", "hrrn", "<= 0.95"),
        Bar(f"sim_p99_ttft_vs_hrrn_{name}", "ttft_p99_ms", "hrrn", "<= 1.05"),
    )


def catalogue(trace: Path | None, length: float, most: tuple[int, int]) -> list[Scenario]:
    """All scenarios; that of the trace only where one is given."""
    tight = (
        Bar("sim_tight_tps_vs_fcfs", "tokens_per_s", "fcfs", ">= 1.15"),
        Bar("sim_tight_recompute_vs_fcfs", "recomputed_tokens", "fcfs", "<= 0.6"),
    )
    result = [
        Scenario("mixed_0.8", workloads.mixed, 0.8, _mixed_bars("0.8")),
        Scenario("bursty_0.8", workloads.bursty, 0.8, _mixed_bars("bursty_0.8")),
        Scenario("mixed_1.2", workloads.mixed, 1.2, _mixed_bars("1.2")),
        Scenario("tight", workloads.tight, math.inf, tight, pool_share=0.4),
        Scenario(
            "flood",
            workloads.flood,
            1.5,
            (Bar("sim_flood_longest_wait_vs_lpm", "longest_wait_ms", "lpm", "<= 1.0"),),
        ),
        Scenario(
            "clients", workloads.clients, 1.2, (Bar("sim_jain_vs_fcfs", "jain_served", "fcfs", ">= 1.0001"),)
        ),
    ]
    if trace is not None:
        bars = (
            Bar("sim_trace_mean_vs_hrrn", "latency_mean_ms", "hrrn", "<= 0.95"),
            Bar("sim_trace_p99_vs_hrrn", "latency_p99_ms", "hrrn", "<= 1.05"),
        )
        build = partial(_trace_window, path=trace, length=length, most=most)
        result.append(Scenario("trace", build, 0.9, bars))
    return result


def _trace_window(seed: int, count: int, path: Path, length: float, most: tuple[int, int]) -> Requests:
    return workloads.trace(path, count, length, most, skip=(seed - 1) * count)


def prepare(
    scenario: Scenario, machine: Machine, seed: int, count: int, lengths: str
) -> tuple[Requests, Machine]:
    """Requests at the scenario's load, and the machine with its pool."""
    requests = scenario.build(seed, count).with_lengths(lengths)
    ample = replace(machine, pool_tokens=1 << 40)
    at_once = Engine(ample, Fcfs(), requests.at_rate(math.inf), counts_overtaking=False)
    at_once.run()
    per_ms = len(requests) / at_once.now_ms
    own = (len(requests) - 1) / (requests.arrival_ms[-1] - requests.arrival_ms[0])
    scaled = requests.at_rate(per_ms * scenario.load / own)
    if scenario.pool_share is None:
        return scaled, machine
    need = machine.most_running * float((requests.prompt + requests.output).mean())
    least = int((requests.prompt + requests.most_new).max()) + 2
    return scaled, replace(machine, pool_tokens=max(least, round(scenario.pool_share * need)))
