"""The rounds: which server is started, what it is asked in which order, and what is kept of it."""

from __future__ import annotations

import argparse
import json
import shlex
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from twin_parts.progress import Progress

from eviction_load import measures, servers, traces
from eviction_load.client import ask_sessions
from eviction_load.sessions import (
    CHAT,
    TRACE,
    Chat,
    Piece,
    Session,
    Structured,
    Turn,
    output_tokens,
    stretched,
)
from eviction_load.simulation import UNLIMITED, Simulated, simulate
from eviction_load.tokens import WordIds
from sgl_entropic.models import resolve_model_path
from sgl_entropic.testing.servers import Server

_PACE_AT_ONCE, _PACE_PROMPT, _PACE_ANSWER = 4, 512, 96


@dataclass(frozen=True, slots=True)
class Pace:
    """What a server does per second: prompt tokens that no cache has, tokens of answers at a few clients."""

    prompt_tokens_per_s: float
    output_tokens_per_s: float

    def work_s(self, prompt_tokens: float, answer_tokens: float) -> float:
        """Time for both, one after the other."""
        return prompt_tokens / self.prompt_tokens_per_s + answer_tokens / self.output_tokens_per_s


ASSUMED = Pace(1500.0, 250.0)
"""Where no server has been measured: of the order of two cores."""


@dataclass(slots=True)
class Findings:
    """What a run has found so far.

    Attributes:
        pace: measured on a stock server.
        samples: one for each round, load and arm.
        simulated: what the replay says, by load, one for each round.
        cores: class of the tree core of each arm.
    """

    pace: Pace | None = None
    samples: list[measures.Sample] = field(default_factory=list)
    simulated: dict[str, list[Simulated]] = field(default_factory=dict)
    cores: dict[str, str] = field(default_factory=dict)


class Loads:
    """The loads of a run.

    Args:
        options: of the command line.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._trace = traces.read(options.trace) if TRACE in options.workloads else []

    def key(self, load: str, number: int) -> tuple[object, ...]:
        """Of a load in a round."""
        return self._options.seed, number, load

    def unscaled(self, load: str, number: int) -> list[Session]:
        """In a span of 1."""
        options, key = self._options, self.key(load, number)
        if load == CHAT:
            return Chat(options.chat_sessions, options.chat_continuing, think=options.chat_think).draw(key)
        if load == TRACE:
            return traces.draw(
                self._trace,
                key,
                requests=options.trace_requests,
                length=options.trace_scale_length,
                most_tokens=options.trace_most_tokens,
            )
        return Structured(options.structured_requests, options.structured_systems).draw(key)

    def of(self, load: str, number: int, pace: Pace) -> tuple[list[Session], float]:
        """In seconds, and how many: so many that LRU's work is ``--load`` of them."""
        drawn = self.unscaled(load, number)
        found = self.simulated(drawn, policies=("lru",))
        work_s = pace.work_s(found.computed_tokens["lru"], output_tokens(drawn))
        seconds = work_s / self._options.load
        return stretched(drawn, seconds), seconds

    def simulated(self, sessions: list[Session], **more: Any) -> Simulated:
        """Without a server."""
        options = self._options
        return simulate(sessions, options.pool_tokens, warm=options.warm, seed=options.seed, **more)


class Run:
    """One run on servers.

    Attributes:
        findings: of the run so far.
    """

    def __init__(self, options: argparse.Namespace, folder: Path, facts: dict[str, Any]) -> None:
        self._options, self._folder, self._facts = options, folder, facts
        self._model = Path(resolve_model_path(None))
        self._loads = Loads(options)
        self._progress = Progress(
            [(load, arm) for load in options.workloads for arm in options.arms] * options.rounds
        )
        self.findings = Findings(pace=Pace(*options.pace) if options.pace else None)

    def all(self) -> None:
        """Every round.

        Raises:
            LoadError: an answer is not what was asked for.
            ArmError: a server is not what its flags say.
        """
        arms = self._options.arms
        for number in range(self._options.rounds):
            turned = number % len(arms)
            for arm in arms[turned:] + arms[:turned]:
                self._server(number, arm)

    def _server(self, number: int, arm: str) -> None:
        """All loads of a round at a fresh server; each finds an empty cache."""
        options, loads = self._options, self._options.workloads
        own = shlex.split(options.entropic_flags) if arm in servers.OURS else []
        flags = [
            *("--max-total-tokens", str(options.pool_tokens)),
            *("--max-running-requests", str(options.max_running_requests)),
            *("--random-seed", str(options.seed)),
        ]
        log = self._folder / f"{number}_{arm}.log"
        with servers.server_of(arm, log, *flags, *own, *options.flags) as server:
            self.findings.cores[arm] = servers.require_core(arm, log.read_text(errors="replace"))
            # Everything once before anything is timed; and the pace, of which all rounds and arms get their times.
            self._measure_pace(server, "warm")
            if self.findings.pace is None:
                self.findings.pace = self._measure_pace(server, "pace", 5)
                self._progress.say(f"pace: {self.findings.pace}")
            before = servers.counters(server)
            turned = number % len(loads)
            for load in loads[turned:] + loads[:turned]:
                servers.flush(server)
                self._one(number, load, arm, server)
            after = servers.counters(server)
            servers.require_acted(arm, {name: after[name] - before.get(name, 0) for name in after})

    def _measure_pace(self, server: Server, name: str, times: int = 1) -> Pace:
        """The median of ``times``."""

        def tokens_per_s(what: str, prompt: int, answer: int) -> float:
            keys = [f"{what}/{at}" for at in range(_PACE_AT_ONCE)]
            sessions = [Session(key, name, (Turn(0.0, (Piece(key, prompt),), answer),)) for key in keys]
            found = []
            for again in range(times):
                servers.flush(server)
                run = f"{name}/{again}"
                ids = WordIds(self._model, (self._options.seed, run))
                answers = ask_sessions(server.url, sessions, ids, run)
                found.append(_PACE_AT_ONCE * max(prompt, answer) / max(one.end_s for one in answers))
            return round(median(found), 1)

        return Pace(tokens_per_s("prompt", _PACE_PROMPT, 1), tokens_per_s("answer", 16, _PACE_ANSWER))

    def _one(self, number: int, load: str, arm: str, server: Server) -> None:
        assert self.findings.pace is not None
        sessions, seconds = self._loads.of(load, number, self.findings.pace)
        known = self.findings.simulated.setdefault(load, [])
        if len(known) <= number:
            known.append(self._loads.simulated(sessions))
        # No server works while texts are made: their time is not the load's.
        ids = WordIds(self._model, self._loads.key(load, number))
        before = servers.counters(server)
        begin = time.monotonic()
        answers = ask_sessions(server.url, sessions, ids, f"{number}/{load}")
        after = servers.counters(server)
        sample = {
            "round": number,
            "workload": load,
            "arm": arm,
            "span_s": round(seconds, 2),
            **measures.sample_of(
                answers,
                {name: after[name] - before.get(name, 0) for name in after},
                self._options.warm * seconds,
                known[number].first_tokens,
            ),
        }
        self.findings.samples.append(sample)
        self._keep()
        figures = measures.figures_of([sample])
        shown = ", ".join(
            f"{name} {figures[name]:.4g}" for name in ("hit_share", "ttft_p90_s", "tokens_per_s")
        )
        self._progress.done(
            (load, arm),
            f"round {number + 1}, {load}, {arm}: {len(answers)} requests in {time.monotonic() - begin:.0f} s, {shown}",
        )

    def _keep(self) -> None:
        content = {**self._facts, **content_of(self.findings), "samples": self.findings.samples}
        (self._folder / "eviction_server.partial.json").write_text(json.dumps(content, indent=1) + "\n")


def content_of(findings: Findings) -> dict[str, Any]:
    """What was found beside the samples, as JSON."""
    return {
        "pace": findings.pace and asdict(findings.pace),
        "tree_cores": findings.cores,
        "simulated": {load: [asdict(one) for one in each] for load, each in findings.simulated.items()},
    }


def simulated_table(found: dict[str, list[Simulated]]) -> dict[str, Simulated]:
    """The mean over rounds."""
    result = {}
    for load, each in found.items():
        count = len(each)
        names = [*each[0].hit_share]
        result[load] = Simulated(
            round(sum(one.prompt_tokens for one in each) / count),
            {name: sum(one.hit_share[name] for one in each) / count for name in names},
            {name: round(sum(one.computed_tokens[name] for one in each) / count) for name in names},
            round(sum(one.first_tokens for one in each) / count),
            sum(one.live_over_pool for one in each) / count,
            sum(one.distinct_over_pool for one in each) / count,
        )
    assert all(UNLIMITED in one.hit_share for one in result.values())
    return result
