"""Ratios of two arms over all rounds, with intervals over rounds, and the table."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from harness import Claim, claim
from numpy.typing import NDArray

from scheduling_load.measures import FIGURES, Figure, Sample, figures_of
from scheduling_load.servers import ACTED, ENTROPIC, FCFS, HRRN, LPM
from scheduling_load.workloads import CLIENTS, FLOOD, MIXED, NAMES, TIGHT, TIGHT_EARLY, TRACE

DRAWS = 2000
Rounds = NDArray[np.int64]
Interval = tuple[float, tuple[float, float]]


class NoRatioError(RuntimeError):
    """A ratio was asked for of figures that are not all there."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A claim: a figure of our arm over that of another, the geometric mean over its loads.

    Attributes:
        name: of the claim.
        loads: all of which are needed.
        figure: key of :data:`~scheduling_load.measures.FIGURES`.
        peer: the other arm.
        bar: to be reached.
    """

    name: str
    loads: tuple[str, ...]
    figure: str
    peer: str
    bar: str


CLAIMS = (
    Wanted("sched_mean_vs_fcfs", MIXED, "latency_mean_s", FCFS, "<= 0.80"),
    Wanted("sched_mean_vs_hrrn", MIXED, "latency_mean_s", HRRN, "<= 0.95"),
    Wanted("sched_p99_ttft_vs_hrrn", MIXED, "ttft_p99_s", HRRN, "<= 1.05"),
    Wanted("sched_tight_tps_vs_fcfs", (TIGHT,), "tokens_per_s", FCFS, ">= 1.15"),
    Wanted("sched_tight_recompute_vs_fcfs", (TIGHT,), "recomputed_tokens", FCFS, "<= 0.6"),
    Wanted("sched_tight_early_tps_vs_fcfs", (TIGHT_EARLY,), "tokens_per_s", FCFS, ">= 1.15"),
    Wanted("sched_tight_early_mean_vs_fcfs", (TIGHT_EARLY,), "latency_mean_s", FCFS, "<= 0.80"),
    Wanted("sched_trace_mean_vs_hrrn", (TRACE,), "latency_mean_s", HRRN, "<= 0.95"),
    Wanted("sched_trace_p99_vs_hrrn", (TRACE,), "latency_p99_s", HRRN, "<= 1.05"),
    Wanted("sched_trace_entropic_time_rate", (TRACE,), "tau_nats_per_s", HRRN, ">= 1.12"),
    Wanted("sched_flood_longest_wait_vs_lpm", (FLOOD,), "cold_longest_ttft_s", LPM, "<= 1"),
    Wanted("sched_jain_vs_fcfs", (CLIENTS,), "jain_satisfied", FCFS, ">= 1"),
)
BESIDE = (
    ("tight_window_tps_vs_fcfs", TIGHT, "window_tokens_per_s", FCFS),
    ("tight_mean_vs_fcfs", TIGHT, "latency_mean_s", FCFS),
    ("tight_early_window_tps_vs_fcfs", TIGHT_EARLY, "window_tokens_per_s", FCFS),
    ("trace_window_entropic_time_rate", TRACE, "window_tau_nats_per_s", HRRN),
    ("clients_jain_speed_vs_fcfs", CLIENTS, "jain_speed", FCFS),
    ("flood_cold_mean_ttft_vs_lpm", FLOOD, "cold_mean_ttft_s", LPM),
)


def rounds_of(samples: Sequence[Sample], load: str, arm: str) -> list[Sample]:
    """The samples of a load and an arm in the order of rounds."""
    chosen = [s for s in samples if s["workload"] == load and s["arm"] == arm]
    return sorted(chosen, key=lambda s: int(s["round"]))


def resampled(figure: Callable[[Rounds], float], rounds: int, seed: int) -> Interval:
    """``figure`` of all rounds, and its percentile bootstrap interval over rounds.

    A draw without a value (``nan``) says nothing and is left out.

    Raises:
        NoRatioError: all rounds together have no value.
    """
    value = figure(np.arange(rounds))
    if not math.isfinite(value):
        raise NoRatioError("nothing to divide by")
    rng = np.random.default_rng(seed)
    drawn = np.array([figure(rng.integers(0, rounds, rounds)) for _ in range(DRAWS)])
    low, high = np.quantile(drawn[np.isfinite(drawn)], (0.025, 0.975))
    return value, (float(low), float(high))


def ratio_of(
    samples: Sequence[Sample], loads: Sequence[str], figure: Figure, arms: tuple[str, str], seed: int
) -> Interval:
    """Geometric mean over ``loads`` of the figure of the first arm over that of the second.

    Rounds are drawn for both arms and all loads together, as they were asked the same in each.

    Raises:
        NoRatioError: a load lacks an arm or a round, or there is nothing to divide by.
    """
    pairs = [tuple(rounds_of(samples, load, arm) for arm in arms) for load in loads]
    numbers = [[s["round"] for s in side] for pair in pairs for side in pair]
    if not numbers[0] or any(one != numbers[0] for one in numbers):
        raise NoRatioError(f"{', '.join(loads)}: rounds of {' and '.join(arms)} are {numbers}")

    def drawn(chosen: Rounds) -> float:
        logs = []
        for pair in pairs:
            upper, lower = (figure([side[index] for index in chosen]) for side in pair)
            if lower <= 0:
                return math.nan
            logs.append(math.log(upper / lower) if upper > 0 else -math.inf)
        return math.exp(sum(logs) / len(logs))

    return resampled(drawn, len(numbers[0]), seed)


def claims_of(samples: Sequence[Sample], seed: int) -> tuple[list[Claim], dict[str, Any], list[str]]:
    """The claims of the loads that ran, further ratios beside them, and why a claim of those loads is missing."""
    made: list[Claim] = []
    beside: dict[str, Any] = {}
    missing: list[str] = []
    present = {(s["workload"], s["arm"]) for s in samples}
    for one in CLAIMS:
        if not all((load, arm) in present for load in one.loads for arm in (ENTROPIC, one.peer)):
            continue
        arms, figure = (ENTROPIC, one.peer), FIGURES[one.figure]
        try:
            value, interval = ratio_of(samples, one.loads, figure, arms, seed)
            if len(one.loads) > 1:
                each = {load: ratio_of(samples, [load], figure, arms, seed) for load in one.loads}
                beside[one.name] = {load: [value, *ends] for load, (value, ends) in each.items()}
        except NoRatioError as error:
            missing.append(f"{one.name}: {error}")
            continue
        made.append(claim(one.name, value, interval, "ratio", one.bar))
    for name, load, figure_name, peer in BESIDE:
        if not {(load, ENTROPIC), (load, peer)} <= present:
            continue
        try:
            value, ends = ratio_of(samples, [load], FIGURES[figure_name], (ENTROPIC, peer), seed)
            beside[name] = [value, *ends]
        except NoRatioError as error:
            missing.append(f"{name}: {error}")
    return made, beside, missing


def tables(samples: Sequence[Sample]) -> dict[str, dict[str, dict[str, float]]]:
    """All figures by load and arm."""
    present = {(s["workload"], s["arm"]): None for s in samples}
    result: dict[str, dict[str, dict[str, float]]] = {}
    for load in NAMES:
        for of, arm in present:
            if of == load:
                result.setdefault(load, {})[arm] = figures_of(rounds_of(samples, load, arm))
    return result


_COLUMNS = (
    ("mean s", "latency_mean_s", ".2f"),
    ("p50 s", "latency_p50_s", ".2f"),
    ("p99 s", "latency_p99_s", ".2f"),
    ("ttft s", "ttft_mean_s", ".2f"),
    ("p99 s", "ttft_p99_s", ".2f"),
    ("tok/s", "tokens_per_s", ".1f"),
    ("nats/s", "tau_nats_per_s", ".1f"),
    ("orders", ACTED, ".0f"),
    ("overtaken", "overtaken_requests", ".0f"),
    ("held", "held_rows", ".0f"),
    ("paced", "paced_starts", ".0f"),
    ("reserves", "predicted_reserves", ".0f"),
    ("retracted", "retracted_requests", ".0f"),
    ("recomputed", "recomputed_tokens", ".0f"),
)


def table(content: dict[str, dict[str, dict[str, float]]]) -> str:
    """The same for people."""
    lines = [f"{'load':10} {'arm':9}" + "".join(f" {title:>{_width(title)}}" for title, _, _ in _COLUMNS)]
    for load, arms in content.items():
        for arm, figures in arms.items():
            cells = (f" {figures[name]:>{_width(title)}{form}}" for title, name, form in _COLUMNS)
            extra = [f"{n} {v:.3f}" for n, v in figures.items() if n.startswith(("cold_", "jain_"))]
            lines.append(f"{load:10} {arm:9}{''.join(cells)} {', '.join(extra)}".rstrip())
    return "\n".join(lines)


def _width(title: str) -> int:
    return max(7, len(title))
