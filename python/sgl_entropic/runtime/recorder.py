"""Gives the readings of each step to requests, trace, live stream and metrics, in the scheduler process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sgl_entropic.gravity.settings import Tier
from sgl_entropic.runtime.attention.request import Read
from sgl_entropic.runtime.request_state import RequestState, state_of
from sgl_entropic.runtime.scheduling.notes import untraced_score
from sgl_entropic.signals import TokenReading
from sgl_entropic.trace.counters import Counters
from sgl_entropic.trace.record import RowRecord, StepKind, StepRecord

if TYPE_CHECKING:
    from sgl_entropic.runtime.metrics import Metrics
    from sgl_entropic.trace.worker import Worker


@dataclass(slots=True)
class Recorder:
    """The host end of the telemetry.

    Attributes:
        counters: what was measured.
        outlets: bounded, non-blocking consumers of step records (JSONL file, live stream).
        metrics: Prometheus metrics, or ``None`` when the server exports none.
        fleet_share: tells the fleet's gravity, where it is asked.
    """

    counters: Counters
    outlets: tuple[Worker, ...] = ()
    metrics: Metrics | None = None
    fleet_share: Callable[[], float] | None = None
    steps: int = 0

    def record_prompt(self, req: Any, prompt: list[list[float | None]]) -> None:
        """Keep the prompt readings ``[2, n]`` of ``req`` for its response."""
        state_of(req).prompt = prompt
        if self.metrics is not None:
            self.metrics.publish(self.counters)

    def record_step(self, batch: Any, commits: Sequence[Any], readings: Sequence[TokenReading]) -> None:
        """Record one step: ``readings[i]`` belongs to ``batch.reqs[i]`` if ``commits[i]`` says that its token counts."""
        self.steps += 1
        rows = []
        for req, commit, reading in zip(batch.reqs, commits, readings, strict=False):
            # Nothing was committed for a chunk that is not the last, an overrun step or a retracted row.
            if commit is None or req.beam_group is not None:
                continue
            state = state_of(req)
            state.add(commit.output_index, reading)
            if state.pruning is not None:
                self._count_read(state.pruning.read_at(commit.output_index))
            if state.narrative is not None:
                self._count_tier(state.narrative.tier)
            rows.append((req, commit.output_index, commit.token_ids[-1], reading))
        self.counters.measured_tokens += len(rows)
        self.counters.invalid_rows += sum(reading.entropy_nats is None for *_, reading in rows)
        if self.metrics is not None:
            self.metrics.observe([reading for *_, reading in rows])
            self.metrics.publish(self.counters)
            if self.fleet_share is not None:
                self.metrics.set_fleet_gravity(self.fleet_share())
        if self.outlets and rows:
            self._publish(batch, rows)

    def _count_tier(self, tier: Tier) -> None:
        self.counters.strong_tokens += tier == "strong"
        self.counters.medium_tokens += tier == "medium"
        self.counters.weak_tokens += tier == "weak"

    def _count_read(self, read: Read | None) -> None:
        if read is None:
            return
        self.counters.context_tokens += read.context_tokens
        self.counters.read_tokens += round(read.tokens)
        self.counters.scored_blocks += read.blocks_scored
        self.counters.choosing_bytes += read.choosing_bytes
        self.counters.pruned_rows += read.tokens < read.context_tokens

    def _publish(self, batch: Any, rows: list[tuple[Any, int, int, TokenReading]]) -> None:
        mode = batch.forward_mode
        kind: StepKind = "mixed" if mode.is_mixed() else "extend" if mode.is_extend() else "decode"
        record = StepRecord(
            step=self.steps,
            time_ns=time.time_ns(),
            kind=kind,
            rows=tuple(_row(req, index, token, reading) for req, index, token, reading in rows),
        )
        for outlet in self.outlets:
            outlet.offer(record)


def _row(req: Any, index: int, token: int, reading: TokenReading) -> RowRecord:
    state = state_of(req)
    steered = state.steered_at(index)
    narrative = None if state.narrative is None else state.narrative.at(index)
    return RowRecord(
        rid=req.rid,
        output_index=index,
        token_id=token,
        entropy_nats=reading.entropy_nats,
        varentropy=reading.varentropy,
        surprisal_nats=reading.surprisal_nats,
        sampled_entropy_nats=reading.sampled_entropy_nats,
        target_entropy_nats=None if state.control is None else state.target_nats,
        temperature=steered.temperature,
        saturated=steered.saturated,
        min_p=steered.min_p,
        cut_entropy_nats=steered.cut_entropy_nats,
        scheduling=untraced_score(req),
        keep_ratio=_keep_ratio(state, index),
        gravity=None if narrative is None else narrative.gravity,
        energy=None if narrative is None else narrative.energy,
        free_energy=None if narrative is None else narrative.free_energy,
        tier=None if narrative is None else narrative.tier,
    )


def _keep_ratio(state: RequestState, output_index: int) -> float | None:
    read = None if state.pruning is None else state.pruning.read_at(output_index)
    return None if read is None else round(read.ratio, 6)
