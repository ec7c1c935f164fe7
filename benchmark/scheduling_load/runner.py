"""The rounds: which servers are started, what they are asked in which order, and what is kept of it."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from twin_parts import mooncake
from twin_parts.progress import Progress
from twin_parts.prompts import WordPrompts

from scheduling_load import measures
from scheduling_load.asks import Ask, require_digits
from scheduling_load.client import Answer, ask_all
from scheduling_load.servers import ARMS, ENTROPIC, FCFS, HRRN, LPM, awake, counters, require_acted, started
from scheduling_load.workloads import (
    CLIENTS,
    FLOOD,
    MIXED,
    TIGHT,
    TIGHT_EARLY,
    TIGHTS,
    TRACE,
    Maker,
    tight_pool_tokens,
)
from sgl_entropic.models import resolve_model_path
from sgl_entropic.testing.servers import Server

# Those that are compared; the claims need them.
COMPARED = {
    MIXED[0]: (FCFS, HRRN, ENTROPIC),
    MIXED[1]: (FCFS, LPM, HRRN, ENTROPIC),
    FLOOD: (LPM, ENTROPIC),
    CLIENTS: (FCFS, ENTROPIC),
    TRACE: (HRRN, ENTROPIC),
    TIGHT: (FCFS, ENTROPIC),
    TIGHT_EARLY: (FCFS, ENTROPIC),
}
WARM = -1
CAPACITY = "capacity"


@dataclass(slots=True)
class Findings:
    """What a run has found so far.

    Attributes:
        samples: one for each round, load and arm.
        capacity: of each kind of load, requests and output tokens per second.
        totals: counters at the end, by group of servers and arm.
    """

    samples: list[measures.Sample] = field(default_factory=list)
    capacity: dict[str, dict[str, float]] = field(default_factory=dict)
    totals: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)


class Run:
    """One run.

    Attributes:
        findings: of the run so far.
    """

    def __init__(self, options: argparse.Namespace, folder: Path, facts: dict[str, Any]) -> None:
        self._options, self._folder, self._facts = options, folder, facts
        model = Path(resolve_model_path(None))
        require_digits(model)
        self._end_token_id = int(json.loads((model / "config.json").read_text())["eos_token_id"])
        self._prompts = WordPrompts.of_model(model)
        self._trace = self._read_trace()
        roomy = [name for name in options.workloads if name not in TIGHTS]
        scarce = [name for name in options.workloads if name in TIGHTS]
        self._groups = [group for group in (roomy, scarce) if group]
        steps = [(load, arm) for group in self._groups for load in group for arm in self._arms([load])]
        self._progress = Progress(steps * options.rounds)
        self.findings = Findings()

    def _read_trace(self) -> list[dict[str, object]]:
        options = self._options
        if TRACE not in options.workloads:
            return []
        # A round has its own lines, and so has the measurement of capacity, the last ones.
        return mooncake.read(
            options.trace, options.trace_requests * options.rounds + options.capacity_requests
        )

    def _arms(self, loads: Sequence[str]) -> list[str]:
        if self._options.all_arms:
            return list(ARMS)
        return [arm for arm in ARMS if any(arm in COMPARED[load] for load in loads)]

    def all(self) -> None:
        """Every load.

        Raises:
            LoadError: an answer is not what was asked for.
            ArmError: a policy did not act as its server's flags say.
        """
        for group in self._groups:
            flags = self._flags(tight=group[0] in TIGHTS)
            arms = self._arms(group)
            # Capacity is that of fcfs.
            names = list(dict.fromkeys([*([] if group[0] in TIGHTS else [FCFS]), *arms]))
            entropic = shlex.split(self._options.entropic_flags)
            self._progress.say(f"starting {', '.join(names)} for {', '.join(group)}")
            with started(names, self._folder / group[0], flags, entropic) as servers:
                self._group(group, servers)

    def _flags(self, *, tight: bool) -> list[str]:
        options = self._options
        flags = [
            "--max-running-requests",
            str(options.tight_running if tight else options.max_running_requests),
            "--random-seed",
            str(options.seed),
        ]
        if tight:
            pool = tight_pool_tokens(options.tight_running, options.tight_share)
            flags += ["--max-total-tokens", str(pool), *shlex.split(options.tight_flags)]
        return [*flags, *options.flags]

    def _group(self, group: list[str], servers: dict[str, Server]) -> None:
        for server in servers.values():
            with awake(server):
                ask_all(server.url, self._warm(group), "warm", self._options.max_running_requests)
        for load in dict.fromkeys(kind_of(load) for load in group if load not in (*TIGHTS, CLIENTS)):
            self._measure_capacity(load, servers[FCFS])
        if CLIENTS in group and kind_of(MIXED[0]) not in self.findings.capacity:
            self._measure_capacity(kind_of(MIXED[0]), servers[FCFS])
        for number in range(self._options.rounds):
            for turn, load in enumerate(group):
                names = self._arms([load])
                turned = (number + turn) % len(names)
                for arm in names[turned:] + names[:turned]:
                    self._one(number, load, arm, servers[arm])
        self.findings.totals[group[0]] = totals = {}
        for name, server in servers.items():
            with awake(server):
                totals[name] = counters(server)
        self._keep()
        require_acted(totals)

    def _warm(self, group: list[str]) -> list[Ask]:
        maker, count = self._maker("warm", WARM), self._options.warm_requests
        if group[0] in TIGHTS:
            return maker.tight(count, self._end_token_id, early=TIGHT_EARLY in group)
        asks = maker.mixed(count, 1.0)
        # One of a client, so that a server that refuses those is found out at once.
        return [*asks, *(maker.clients(1.0, 1.0)[-1:] if CLIENTS in group else [])]

    def _maker(self, name: str, number: int) -> Maker:
        return Maker(self._prompts, (self._options.seed, number, name))

    def _asks(self, load: str, number: int, per_s: float | None = None) -> list[Ask]:
        """The requests of a load in a round; ``per_s`` is given while capacity is measured."""
        options, found = self._options, self.findings.capacity
        maker, count = self._maker(load, number), options.capacity_requests
        if load == CLIENTS:
            seconds = options.clients_seconds
            return maker.clients(
                seconds, options.clients_load * seconds * found[kind_of(MIXED[0])]["output_tokens_per_s"]
            )
        if load in TIGHTS:
            return maker.tight(options.tight_requests, self._end_token_id, early=load == TIGHT_EARLY)
        if load == TRACE:
            begin = max(number, 0) * options.trace_requests
            rows = (
                self._trace[begin : begin + options.trace_requests] if per_s is None else self._trace[-count:]
            )
            most = options.trace_most_tokens
            rate = per_s or options.trace_load * found[TRACE]["requests_per_s"]
            scale = mooncake.Scale(options.trace_scale_length, rate, most, most // 4)
            return maker.trace(rows, scale, limit=most // 2)
        make = maker.flood if load == FLOOD else maker.mixed
        if per_s is None:
            factor, seconds = options.flood_load, options.flood_seconds
            if load != FLOOD:
                factor, seconds = float(load.rpartition("_")[2]), options.seconds
            per_s = factor * found[kind_of(load)]["requests_per_s"]
            count = max(1, round(per_s * seconds))
        return make(count, per_s)

    def _measure_capacity(self, load: str, server: Server) -> None:
        asks = self._asks(load, WARM, 1.0)
        with awake(server):
            answers = ask_all(server.url, asks, f"{CAPACITY}/{load}", self._options.max_running_requests)
        self.findings.capacity[load] = found = capacity_of(answers)
        self._progress.say(f"capacity, {load}: {found}")

    def _one(self, number: int, load: str, arm: str, server: Server) -> None:
        asks = self._asks(load, number)
        clients = self._options.tight_clients if load in TIGHTS else None
        with awake(server):
            before = counters(server)
            answers = ask_all(server.url, asks, f"{number}/{load}", clients)
            after = counters(server)
        rose = {name: after[name] - before[name] for name in after}
        # Where service is compared, it is over a time that all arms have.
        window_s = self._options.clients_seconds if load == CLIENTS else None
        sample = {
            "round": number,
            "workload": load,
            "arm": arm,
            **measures.sample_of(answers, rose, window_s),
        }
        self.findings.samples.append(sample)
        self._keep()
        figures = measures.figures_of([sample])
        shown = ", ".join(
            f"{name} {figures[name]:.2f}" for name in ("latency_mean_s", "ttft_p99_s", "tokens_per_s")
        )
        self._progress.done((load, arm), f"round {number + 1}, {load}, {arm}: {len(asks)} requests, {shown}")

    def _keep(self) -> None:
        found = self.findings
        content = {
            **self._facts,
            "capacity": found.capacity,
            "counters": found.totals,
            "samples": found.samples,
        }
        (self._folder / "scheduling.partial.json").write_text(json.dumps(content, indent=1) + "\n")


def kind_of(load: str) -> str:
    """What capacity is measured of: both mixed loads are one."""
    return "mixed" if load in MIXED else load


def capacity_of(answers: Sequence[Answer]) -> dict[str, float]:
    """Requests and tokens per second while all clients were busy, that is until the last request was sent.

    Requests are counted by their tokens, as those under way at the end of that time are served in part.
    """
    begin_s, end_s = min(a.asked_s for a in answers), max(a.asked_s for a in answers)
    tokens_per_s = sum(a.tokens_until(end_s) for a in answers) / (end_s - begin_s)
    mean_tokens = sum(a.ask.output_tokens for a in answers) / len(answers)
    return {
        "requests_per_s": round(tokens_per_s / mean_tokens, 4),
        "output_tokens_per_s": round(tokens_per_s, 4),
        "measured_s": round(end_s - begin_s, 4),
    }
