"""Which worker a request is sent to: the policies of SGLang's router, with what a router knows.

A router counts the requests that a worker has in flight. Workers are simulated apart from one another and only after
routing, so the ends that lower the count are foreseen: a worker is taken to work off its requests one after the other at
its capacity. Only the count rests on that, never a figure of the result.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduling_parts.machine import Machine
from scheduling_parts.requests import Ints, Requests
from scheduling_parts.workloads import work_ms

ROUTERS = ("round_robin", "random", "power_of_two", "shortest_queue", "cache_aware")


@dataclass(frozen=True, slots=True)
class RouterLimits:
    """Defaults of SGLang's router for ``cache_aware``."""

    cache_threshold: float = 0.3
    balance_abs: int = 64
    balance_rel: float = 1.5


class _Loads:
    """Requests in flight at each worker, as foreseen."""

    def __init__(self, workers: int) -> None:
        self.count = np.zeros(workers, np.int64)
        self._free_ms = np.zeros(workers)
        self._ends: list[tuple[float, int]] = []

    def until(self, now_ms: float) -> None:
        while self._ends and self._ends[0][0] <= now_ms:
            self.count[heapq.heappop(self._ends)[1]] -= 1

    def add(self, worker: int, now_ms: float, work_ms: float) -> None:
        self._free_ms[worker] = max(now_ms, self._free_ms[worker]) + work_ms
        self.count[worker] += 1
        heapq.heappush(self._ends, (float(self._free_ms[worker]), worker))


def route(
    name: str,
    requests: Requests,
    workers: int,
    machine: Machine,
    seed: int,
    limits: RouterLimits = RouterLimits(),
) -> Ints:
    """The worker of every request.

    Raises:
        ValueError: there is no such router.
    """
    count, rng = len(requests), np.random.default_rng([seed, 7])
    if name == "round_robin":
        return np.arange(count) % workers
    if name == "random":
        return rng.integers(0, workers, count)
    if name not in ROUTERS:
        raise ValueError(f"no router is called {name}; there are {', '.join(ROUTERS)}")
    loads, work = _Loads(workers), work_ms(requests, machine)
    pairs = rng.integers(0, workers, (count, 2))
    last_worker: dict[int, int] = {}
    result = np.empty(count, np.int64)
    for at in range(count):
        now_ms = float(requests.arrival_ms[at])
        loads.until(now_ms)
        if name == "power_of_two":
            one, other = pairs[at]
            worker = int(one if loads.count[one] <= loads.count[other] else other)
        elif name == "shortest_queue":
            worker = int(loads.count.argmin())
        else:
            worker = _cache_aware(
                requests.blocks(at), int(requests.prompt[at]), requests, loads, last_worker, limits
            )
        loads.add(worker, now_ms, float(work[at]))
        result[at] = worker
    return result


def _cache_aware(
    ids: Sequence[int],
    prompt: int,
    requests: Requests,
    loads: _Loads,
    last_worker: dict[int, int],
    limits: RouterLimits,
) -> int:
    """The worker that saw most of the prompt; the least loaded if that is too little, or the loads too far apart."""
    least = int(loads.count.argmin())
    low, high = int(loads.count[least]), int(loads.count.max())
    worker = least
    if not (high - low > limits.balance_abs and high > limits.balance_rel * low):
        known = 0
        for one in ids:
            if one not in last_worker:
                break
            known += 1
        if known * requests.block_tokens > limits.cache_threshold * prompt:
            worker = last_worker[ids[known - 1]]
    for one in ids:
        last_worker[one] = worker
    return worker
