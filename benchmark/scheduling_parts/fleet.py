"""Many workers behind a router, simulated in several processes.

All policies are given the same requests at the same workers, as a router knows nothing of policies. So their
ratios are paired worker by worker, and the intervals are over workers.
"""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from harness import Claim, claim
from twin_parts.progress import Progress

from scheduling_parts.arms import OURS, make_policy
from scheduling_parts.baselines import Fcfs
from scheduling_parts.engine import Engine, Totals
from scheduling_parts.machine import Machine
from scheduling_parts.measures import COLUMNS, rows, summary
from scheduling_parts.requests import Floats, Ints, Requests
from scheduling_parts.router import route
from scheduling_parts.workloads import work_ms

DRAWS = 200
# As the scenario of one worker on the trace claims.
BARS = (
    ("sim_fleet_mean_vs_hrrn", "hrrn", None, "<= 0.95"),
    ("sim_fleet_p99_vs_hrrn", "hrrn", 0.99, "<= 1.05"),
)
# Seconds for a million requests on two cores.
WALL_BAR = "<= 360"


@dataclass(frozen=True, slots=True)
class Fleet:
    """What a run of many workers is.

    Attributes:
        arm: name of the policy.
        router: name of the router.
        workers: engines behind it.
        machine: each of them.
        processes: simulating processes.
        seed: of the router's draws.
        counts_overtaking: as in ``Engine``.
        settings: of the policy under test, where they differ from its defaults.
    """

    arm: str
    router: str
    workers: int
    machine: Machine
    processes: int = 2
    seed: int = 1
    counts_overtaking: bool = False
    settings: tuple[tuple[str, float], ...] = ()


# What the forked processes read: it is too large to be sent to each.
_shared: tuple[Fleet, Requests, list[Ints]] | None = None


def _serve(worker: int) -> tuple[Floats, Totals]:
    assert _shared is not None
    fleet, requests, shares = _shared
    engine = Engine(
        fleet.machine,
        make_policy(fleet.arm, dict(fleet.settings)),
        requests,
        mine=shares[worker],
        counts_overtaking=fleet.counts_overtaking,
    )
    engine.run()
    return rows(engine), engine.totals


@dataclass(frozen=True, slots=True)
class Served:
    """What came of a run of many workers.

    Attributes:
        figures: of all, with ``wall_s`` of real time and ``simulated_per_s`` requests for each second of it.
        latency_ms: of each request, worker by worker, each worker's in the order they finished.
        ends: where each worker's end in ``latency_ms``, [workers].
    """

    figures: dict[str, float]
    latency_ms: Floats
    ends: Ints


def run_fleet(fleet: Fleet, requests: Requests, *, progress: bool = False) -> dict[str, float]:
    """Figures of a run, routing included."""
    begin = time.perf_counter()
    where = route(fleet.router, requests, fleet.workers, fleet.machine, fleet.seed)
    return serve(fleet, requests, where, time.perf_counter() - begin, progress=progress).figures


def serve(
    fleet: Fleet, requests: Requests, where: Ints, routing_s: float = 0.0, *, progress: bool = False
) -> Served:
    """What comes of a run in which request i goes to worker ``where[i]``.

    Args:
        fleet: policy, workers and processes.
        requests: in order of arrival.
        where: worker of each, [n].
        routing_s: real time that routing took, added to the run's.
        progress: whether to print how far it is.
    """
    global _shared  # noqa: PLW0603 -- inherited by the processes that are forked here
    begin = time.perf_counter()
    _shared = (fleet, requests, _shares(where, fleet.workers))
    tenth = max(1, fleet.workers // 10)
    bar = Progress(["tenth"] * (fleet.workers // tenth)) if progress else None
    tables, totals = [], []
    for at, (table, total) in enumerate(_served(fleet), 1):
        tables.append(table)
        totals.append(total)
        if bar is not None and at % tenth == 0:
            bar.done("tenth", f"{fleet.arm}: {at} of {fleet.workers} workers")
    _shared = None
    table = np.concatenate(tables)
    figures = summary(table, totals, requests.prompt + requests.output, requests.client)
    wall_s = routing_s + time.perf_counter() - begin
    figures |= {"wall_s": wall_s, "simulated_per_s": len(requests) / wall_s}
    return Served(figures, table[:, COLUMNS.index("latency_ms")], np.cumsum([len(one) for one in tables]))


def routed(fleet: Fleet, requests: Requests, load: float) -> tuple[Requests, Ints, float]:
    """Requests that came one a second, at ``load`` times the fleet's capacity.

    What the caches hold follows from the routing, and what a worker can do from that: so it is routed twice,
    first at a rate that is foreseen without any cache.

    Returns:
        The requests, the worker of each [n], and the seconds of real time that the second routing took.
    """
    foreseen = requests.at_rate(
        load * fleet.workers * 1000.0 / float(work_ms(requests, fleet.machine).mean())
    )
    where = route(fleet.router, foreseen, fleet.workers, fleet.machine, fleet.seed)
    scaled = requests.at_rate(load * _capacity_per_s(fleet, requests, where))
    begin = time.perf_counter()
    where = route(fleet.router, scaled, fleet.workers, fleet.machine, fleet.seed)
    return scaled, where, time.perf_counter() - begin


def _capacity_per_s(fleet: Fleet, requests: Requests, where: Ints, sampled: int = 8) -> float:
    """Requests a second that the fleet gets done first come, first served if all are queued at once.

    Measured at the first ``sampled`` workers.
    """
    ample, at_once = replace(fleet.machine, pool_tokens=1 << 40), requests.at_rate(math.inf)
    done, spent_ms = 0, 0.0
    for mine in _shares(where, fleet.workers)[:sampled]:
        engine = Engine(ample, Fcfs(), at_once, mine=mine, counts_overtaking=False)
        done += len(engine.run())
        spent_ms += engine.now_ms
    return fleet.workers * 1000.0 * done / spent_ms


def claims_of(found: Mapping[str, Served], seed: int) -> list[Claim]:
    """The policy over a peer, with intervals over workers, and its real time."""
    claims = []
    for name, peer, quantile, bar in BARS:
        if OURS in found and peer in found:
            one, other = found[OURS], found[peer]
            value, interval = _ratio(one, other, quantile, seed)
            claims.append(claim(name, value, interval, "ratio", bar))
    if OURS in found:
        wall_s = found[OURS].figures["wall_s"]
        claims.append(claim("sim_fleet_wall_s", wall_s, (wall_s, wall_s), "s", WALL_BAR))
    return claims


def _ratio(
    ours: Served, peer: Served, quantile: float | None, seed: int
) -> tuple[float, tuple[float, float]]:
    """Ratio of mean latencies, or of a quantile, and its interval by resampled workers."""

    def figure(served: Served, workers: Ints) -> float:
        parts = np.split(served.latency_ms, served.ends[:-1])
        latency = np.concatenate([parts[worker] for worker in workers])
        return float(latency.mean() if quantile is None else np.quantile(latency, quantile))

    rng, every = np.random.default_rng(seed), np.arange(len(ours.ends))
    drawn = [rng.choice(every, len(every)) for _ in range(DRAWS)]
    ratios = [figure(ours, workers) / figure(peer, workers) for workers in drawn]
    low, high = np.quantile(ratios, (0.025, 0.975))
    return figure(ours, every) / figure(peer, every), (float(low), float(high))


def _shares(where: Ints, workers: int) -> list[Ints]:
    """The requests of each worker, in order of arrival."""
    ends = np.cumsum(np.bincount(where, minlength=workers))
    return np.split(np.argsort(where, kind="stable"), ends[:-1])


def _served(fleet: Fleet) -> Iterator[tuple[Floats, Totals]]:
    if fleet.processes == 1:
        yield from map(_serve, range(fleet.workers))
        return
    with multiprocessing.get_context("fork").Pool(fleet.processes) as pool:
        yield from pool.imap(_serve, range(fleet.workers), chunksize=max(1, fleet.workers // 64))
