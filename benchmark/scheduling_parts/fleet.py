"""Many workers behind a router, simulated in several processes."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from twin_parts.progress import Progress

from scheduling_parts.arms import make_policy
from scheduling_parts.engine import Engine, Totals
from scheduling_parts.machine import Machine
from scheduling_parts.measures import rows, summary
from scheduling_parts.requests import Floats, Ints, Requests
from scheduling_parts.router import route


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


def run_fleet(fleet: Fleet, requests: Requests, *, progress: bool = False) -> dict[str, float]:
    """Figures of a run, with ``simulated_per_s`` requests for each second of real time, routing included."""
    global _shared  # noqa: PLW0603 -- inherited by the processes that are forked here
    begin = time.perf_counter()
    where = route(fleet.router, requests, fleet.workers, fleet.machine, fleet.seed)
    order = np.argsort(where, kind="stable")
    ends = np.cumsum(np.bincount(where, minlength=fleet.workers))
    _shared = (fleet, requests, np.split(order, ends[:-1]))
    tenth = max(1, fleet.workers // 10)
    bar = Progress(["tenth"] * (fleet.workers // tenth)) if progress else None
    tables, totals = [], []
    for at, (table, total) in enumerate(_served(fleet), 1):
        tables.append(table)
        totals.append(total)
        if bar is not None and at % tenth == 0:
            bar.done("tenth", f"{fleet.arm}: {at} of {fleet.workers} workers")
    _shared = None
    result = summary(np.concatenate(tables), totals, requests.prompt + requests.output, requests.client)
    return result | {"simulated_per_s": len(requests) / (time.perf_counter() - begin)}


def _served(fleet: Fleet) -> Iterator[tuple[Floats, Totals]]:
    if fleet.processes == 1:
        yield from map(_serve, range(fleet.workers))
        return
    with multiprocessing.get_context("fork").Pool(fleet.processes) as pool:
        yield from pool.imap(_serve, range(fleet.workers), chunksize=max(1, fleet.workers // 64))
