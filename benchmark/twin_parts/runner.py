"""The run: starts, rounds, and what is kept of them."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from twin_parts import bench_serving, processes
from twin_parts.arms import Arm, found_weight_bytes
from twin_parts.bandwidth import read_bytes_per_s
from twin_parts.client import Answer, LoadError, check_prompt_count, run_clients
from twin_parts.progress import Progress
from twin_parts.prompts import Prompts
from twin_parts.rates import figures
from twin_parts.workloads import DECODE, Client, Turn, Workload, shortened

WARM_ROUND = -1
_LOG_LINES = 25


class ArmError(RuntimeError):
    """An arm crashed, answered wrongly or not at all; the text names it and what it was asked."""

    def __init__(self, arm: Arm, doing: str, cause: BaseException) -> None:
        log = arm.server.log
        tail = arm.server.log_tail(_LOG_LINES) if log.exists() else ""
        super().__init__(f"arm {arm.name}, {doing}: {cause}\n--- end of {log} ---\n{tail}")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done.

    Attributes:
        arms: the servers.
        workloads: what each is asked in every round.
        rounds: how often, after one that warms up.
        starts: how often each server is started to time it.
        seed: of all text.
        restart: start and stop each server in every round instead of pausing it.
        bench_serving_model: the model's directory when SGLang's load generator is to be used where it serves.
    """

    arms: Sequence[Arm]
    workloads: Sequence[Workload]
    rounds: int
    starts: int
    seed: int
    restart: bool = False
    bench_serving_model: Path | None = None


@dataclass(slots=True)
class Findings:
    """What was measured so far."""

    samples: list[dict[str, Any]] = field(default_factory=list)
    start_s: dict[str, list[float]] = field(default_factory=dict)
    memory: list[dict[str, Any]] = field(default_factory=list)
    bandwidths: dict[int, float] = field(default_factory=dict)
    weight_bytes: dict[str, int] = field(default_factory=dict)
    skipped: list[dict[str, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Visit:
    """One arm is awake for these workloads."""

    arm: Arm
    workloads: tuple[Workload, ...]


class Run:
    """Carries out a plan; ``findings`` grow as it goes, so that they are there when it fails.

    Args:
        plan: what to do.
        prompts: where text comes from.
        folder: for files of the load generator.
        after_round: called when a round is complete.
        after_workload: called with arm, workload and round when one was measured, the arm being awake.
    """

    def __init__(
        self,
        plan: Plan,
        prompts: Prompts,
        folder: Path,
        after_round: Callable[[], None] = lambda: None,
        after_workload: Callable[[str, str, int], None] = lambda *_: None,
    ) -> None:
        self.plan = plan
        self.findings = Findings()
        self._prompts = prompts
        self._folder = folder
        self._after_round = after_round
        self._after_workload = after_workload
        starts = [("start", arm.name) for arm in plan.arms for _ in range(plan.starts)]
        rounds = [
            (index >= 0, visit.arm.name, workload.name)
            for index in range(WARM_ROUND, plan.rounds)
            for visit in visits(plan, index)
            for workload in visit.workloads
        ]
        self._progress = Progress([*starts, *rounds])

    def all(self) -> Findings:
        """Everything, servers stopped afterwards.

        Raises:
            ArmError: see there.
        """
        for arm in self.plan.arms:
            for workload in self.plan.workloads:
                if not takes(arm, workload):
                    self.findings.skipped.append({"arm": arm.name, "workload": workload.name})
        try:
            for arm in self.plan.arms:
                self._start_and_time(arm)
            for index in range(WARM_ROUND, self.plan.rounds):
                self._round(index)
                self._after_round()
        finally:
            for arm in self.plan.arms:
                _stop(arm)
        return self.findings

    def _start_and_time(self, arm: Arm) -> None:
        times_s = self.findings.start_s.setdefault(arm.name, [])
        for _ in range(self.plan.starts):
            _stop(arm)
            _start(arm)
            times_s.append(round(arm.server.ready_s, 3))
            self._progress.done(("start", arm.name), f"{arm.name} was ready after {arm.server.ready_s:.1f} s")
        with _blamed(arm, "first request"):
            text = self._prompts.text(64, self.plan.seed, "check", arm.name)
            asyncio.run(check_prompt_count(arm.server.url, text, 64))
        found = found_weight_bytes(arm.server.url) if arm.kind == "sglang" else None
        if found:
            self.findings.weight_bytes[arm.name] = found
        if self.plan.restart:
            _stop(arm)
        else:
            processes.pause(arm.pid)

    def _round(self, index: int) -> None:
        self.findings.bandwidths[index] = read_bytes_per_s()
        for visit in visits(self.plan, index):
            arm = visit.arm
            if self.plan.restart:
                _start(arm)
            with processes.awake(arm.pid):
                self._wake(arm, index)
                for workload in visit.workloads:
                    self._measure(arm, workload, index)
                self._weigh(arm, index)
            if self.plan.restart:
                _stop(arm)

    def _wake(self, arm: Arm, index: int) -> None:
        # A short request, so that no figure holds what waking up costs.
        turn = Turn(self._prompts.text(16, self.plan.seed, "wake", index, random.random()), 16, 4)  # noqa: S311
        with _blamed(arm, "waking up"):
            self._ask(arm, [Client((turn,))])

    def _measure(self, arm: Arm, workload: Workload, index: int) -> None:
        warming = index == WARM_ROUND
        kind = (not warming, arm.name, workload.name)
        place = f"round {index + 1}/{self.plan.rounds}" if not warming else "warming up"
        with _blamed(arm, f"{workload.name}, {place}"):
            found = self._figures(arm, workload, index)
            if not arm.server.alive():
                raise LoadError("the server has ended or no longer answers")
        self._after_workload(arm.name, workload.name, index)
        rate = found.get(workload.figure)
        if not warming:
            sample = {"round": index, "arm": arm.name, "workload": workload.name, "figure": workload.figure}
            self.findings.samples.append({**sample, **found})
        shown = "" if warming or rate is None else f": {rate:.1f} {workload.figure.removesuffix('_per_s')}/s"
        self._progress.done(kind, f"{place}, {arm.name}, {workload.name}{shown}")

    def _figures(self, arm: Arm, workload: Workload, index: int) -> dict[str, Any]:
        model = self.plan.bench_serving_model
        warming = index == WARM_ROUND
        if model is not None and not warming and bench_serving.serves(workload, arm.kind):
            # The same for every arm, and another in every round.
            seed = random.Random(f"{self.plan.seed}/{index}/{workload.name}").randrange(1 << 31)  # noqa: S311
            found = bench_serving.run(arm.server.url, workload, model, self._folder, seed)
            return {"load_generator": "bench_serving", **found}
        clients = workload.clients(self._prompts, self.plan.seed, index)
        answers = self._ask(arm, shortened(clients) if warming else clients)
        decode = workload.figure == DECODE and not warming
        return {"load_generator": "own", **figures(answers, serial=arm.serial, decode=decode)}

    def _ask(self, arm: Arm, clients: Sequence[Client]) -> list[Answer]:
        count = self._prompts.count
        return asyncio.run(run_clients(arm.server.url, clients, arm.dialect, count, seed=self.plan.seed))

    def _weigh(self, arm: Arm, index: int) -> None:
        with _blamed(arm, "memory"):
            now = processes.memory(arm.pid)
        self.findings.memory.append(
            {"round": index, "arm": arm.name, "pss_bytes": now.pss_bytes, "rss_bytes": now.rss_bytes}
        )


def takes(arm: Arm, workload: Workload) -> bool:
    """Whether the arm can do the workload at all."""
    return arm.dialect.structured is not None or not workload.structured


def visits(plan: Plan, index: int) -> Iterator[Visit]:
    """Who is awake when in round ``index``; the order turns with the round.

    Paused servers are visited for one workload at a time, so that what is compared lies close together in time; servers
    that are started anew stay for all workloads.
    """
    groups = [tuple(plan.workloads)] if plan.restart else [(workload,) for workload in plan.workloads]
    for turn, group in enumerate(groups):
        at = (index + turn) % len(plan.arms)
        for arm in [*plan.arms[at:], *plan.arms[:at]]:
            chosen = tuple(workload for workload in group if takes(arm, workload))
            if chosen:
                yield Visit(arm, chosen)


@contextlib.contextmanager
def _blamed(arm: Arm, doing: str) -> Iterator[None]:
    try:
        yield
    except (LoadError, RuntimeError, OSError) as error:
        raise ArmError(arm, doing, error) from error


def _start(arm: Arm) -> None:
    with _blamed(arm, "start"):
        arm.server.start()


def _stop(arm: Arm) -> None:
    if arm.server.process is not None:
        processes.resume(arm.pid)
        arm.server.stop()
