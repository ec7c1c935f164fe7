"""One engine in virtual time: prefill first, as SGLang forms its batches; many decode steps at once where nothing changes.

After ``Scheduler.get_next_batch_to_run``, ``PrefillAdder``, ``ScheduleBatch.retract_decode`` and ``NewTokenRatioTracker`` of
SGLang 0.5.23, with pages of one token: a request that arrives during a pass is seen when the pass ends.
``Machine.overlaps`` says whether its overlap schedule is simulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from scheduling_parts.cache import PrefixCache
from scheduling_parts.job import Job
from scheduling_parts.machine import Machine
from scheduling_parts.requests import Ints, Requests


class Policy(Protocol):
    """What an engine asks. A policy may look at the whole engine; only oracles look at lengths."""

    #: decode steps after which it is asked again whom to hold; 0 if it never holds
    replan_steps: int

    def order(self, engine: Engine) -> list[Job]:
        """The waiting queue, first to start first."""
        ...

    def hold(self, engine: Engine) -> set[Job]:
        """Running jobs to leave out of the next decode steps."""
        ...

    def most_at_once(self, engine: Engine) -> int:
        """Requests that may run after this pass, once the queue is ordered."""
        ...

    def keep(self, engine: Engine) -> list[Job]:
        """Running jobs, most worth keeping first."""
        ...

    def reserve(self, engine: Engine) -> float:
        """KV slots that admission leaves free for what runs."""
        ...

    def answer(self, engine: Engine, batch: Sequence[Job], job: Job, most_new: int) -> float:
        """KV slots that admission charges for the answer of a job that may generate ``most_new`` more, beside ``batch``."""
        ...

    def started(self, engine: Engine, jobs: Sequence[Job]) -> None:
        """Jobs are about to be prefilled; what still waits is in the engine."""
        ...

    def prefilled(self, engine: Engine, jobs: Sequence[tuple[Job, int]], ms: float) -> None:
        """A prefill pass has ended: the jobs in it with the tokens computed for each."""
        ...

    def decoded(self, engine: Engine, rows: int, context: int, ms: float) -> None:
        """A decode step has ended."""
        ...

    def left(self, engine: Engine, job: Job) -> None:
        """A job has finished."""
        ...


@dataclass(slots=True)
class Totals:
    """Counts of an engine."""

    prefilled_tokens: int = 0
    decoded_tokens: int = 0
    cached_tokens: int = 0
    recomputed_tokens: int = 0
    retractions: int = 0
    held_rows: int = 0
    decode_steps: int = 0
    most_used_tokens: int = 0
    busy_ms: float = 0.0


@dataclass(slots=True)
class Engine:
    """One simulated engine.

    Args:
        machine: costs and limits.
        policy: what decides.
        requests: of which it serves ``mine``, in order of arrival.
        mine: places in ``requests``; ``None`` for all.
        counts_overtaking: whether to keep ``Job.overtaken``; costs time where queues are long.
        log: if a list, every start, retraction and finish is appended as (ms, what, index).
    """

    machine: Machine
    policy: Policy
    requests: Requests
    mine: Ints | None = None
    counts_overtaking: bool = True
    log: list[tuple[float, str, int]] | None = None
    now_ms: float = 0.0
    waiting: list[Job] = field(default_factory=list)
    running: list[Job] = field(default_factory=list)
    done: list[Job] = field(default_factory=list)
    totals: Totals = field(default_factory=Totals)
    chunked: Job | None = None
    ratio: float = 0.0
    cache: PrefixCache = field(init=False)
    _mine: Sequence[int] = field(init=False)
    _full: bool = False
    _next: int = 0
    _held: set[Job] = field(default_factory=set)
    _stale: bool = True
    _plan_left: int = 0
    _late: int = field(init=False)
    _unseen: list[Job] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Start empty, and refuse what could never run."""
        self.cache = PrefixCache(self.machine.pool_tokens)
        self.ratio = self.machine.first_ratio
        self._late = 1 if self.machine.overlaps else 0
        self._mine = range(len(self.requests)) if self.mine is None else self.mine.tolist()
        most = max((int(self.requests.prompt[i] + self.requests.most_new[i]) for i in self._mine), default=0)
        if most + 1 + self._late >= self.machine.pool_tokens:
            raise ValueError(f"a request may need {most} KV slots, the pool has {self.machine.pool_tokens}")

    @property
    def clock(self) -> int:
        """Prompt tokens computed and tokens decoded so far."""
        return self.totals.prefilled_tokens + self.totals.decoded_tokens

    def run(self) -> list[Job]:
        """Serve all; the jobs in the order they finished."""
        while True:
            if not self.waiting and not self.running and self.chunked is None:
                if self._next >= len(self._mine):
                    return self.done
                self.now_ms = max(self.now_ms, self._arrival(self._next))
            self._absorb(self.now_ms, self.now_ms, 0, 0.0)
            if not self.running:
                self._full = False
            if (self.chunked is not None or (self.waiting and not self._full)) and self._prefill():
                continue
            if self.running:
                self._decode()
            elif self.waiting:
                raise RuntimeError(f"nothing runs, and request {self.waiting[0].index} cannot start")

    def _arrival(self, at: int) -> float:
        return float(self.requests.arrival_ms[self._mine[at]])

    def _absorb(self, until_ms: float, from_ms: float, tokens: int, ms: float) -> None:
        """Queue what arrives by ``until_ms``, in a stretch of ``ms`` from ``from_ms`` in which ``tokens`` are decoded."""
        while self._next < len(self._mine) and (at_ms := self._arrival(self._next)) <= until_ms:
            job = Job(self.requests, self._mine[self._next])
            part = (at_ms - from_ms) / ms if ms > 0 else 0.0
            job.queued_clock = job.arrived_clock = self.clock + max(0, int(part * tokens))
            job.queued_prefill = self.totals.prefilled_tokens
            self.waiting.append(job)
            self._next += 1

    # ------------------------------------------------------------------------------------------------ prefill

    def _prefill(self) -> bool:
        """A prefill pass; ``False`` if none can start."""
        machine, cache = self.machine, self.cache
        chunk_left, input_left = machine.chunk_tokens, machine.most_prefill_tokens
        batch: list[tuple[Job, int]] = []
        if self.chunked is not None:
            take = min(self.chunked.missing, chunk_left)
            self._compute(self.chunked, take)
            batch.append((self.chunked, take))
            chunk_left -= take
            input_left -= take
        room, most_at_once = self._asked(batch)
        started = []
        for job in self.waiting if room >= 0 or not self.running else ():
            if chunk_left <= 0 or input_left <= 0 or self._full:
                break
            if len(self.running) + len(batch) >= machine.most_running:
                self._full = True
                break
            if len(self.running) + len(batch) >= most_at_once:
                break
            blocks, _ = cache.match(job.ids)
            cached, before = job.held_prefix(blocks), cache.available_tokens
            cache.lock(job.ids[:blocks])
            locked = before - cache.available_tokens
            uncached = job.context - cached
            most_new = min(max(job.most_new - job.generated, 0), machine.clip_tokens)
            answer = self.policy.answer(self, [one for one, _ in batch], job, most_new)
            if uncached + answer + 1 + locked >= room:
                cache.unlock(job.ids[:blocks])
                self._full = bool(batch or self.running)
                break
            take = min(uncached, chunk_left)
            self._start(job, job.ids[:blocks], cached, uncached)
            self._compute(job, take)
            started.append(job)
            batch.append((job, take))
            room -= take + locked + 1 + (answer if take == uncached else 0)
            chunk_left -= take
            input_left -= take
        if not batch and most_at_once <= len(self.running):
            return False
        if not batch:
            # an order was asked for and nothing fits
            self._full = bool(self.running)
            return False
        self._finish_prefill(batch, started)
        return True

    def _asked(self, batch: list[tuple[Job, int]]) -> tuple[float, int]:
        """Room for what starts beside ``batch`` and how many may run, as the policy says of its queue; no room if none may."""
        machine = self.machine
        if not self.waiting or self._full or len(self.running) + len(batch) >= machine.most_running:
            return -1.0, machine.most_running
        self.waiting = self.policy.order(self)
        most_at_once = self.policy.most_at_once(self)
        room = self.cache.available_tokens - self.policy.reserve(self)
        if batch and not batch[0][0].missing:
            room -= min(batch[0][0].most_new - batch[0][0].generated, machine.clip_tokens)
        return room, most_at_once

    def _start(self, job: Job, locked: tuple[int, ...], cached: int, uncached: int) -> None:
        job.locked, job.cached, job.uncached, job.missing = locked, cached, uncached, uncached
        job.longest_wait_ms = max(job.longest_wait_ms, self.now_ms - job.queued_ms)
        job.longest_wait_tokens = max(job.longest_wait_tokens, self.clock - job.queued_clock)
        self.totals.cached_tokens += cached
        if job.retractions:
            job.recomputed += uncached
            job.contexts_again += job.context
            self.totals.recomputed_tokens += uncached
        if self.log is not None:
            self.log.append((self.now_ms, "start", job.index))

    def _compute(self, job: Job, tokens: int) -> None:
        self.cache.take(tokens)
        job.private += tokens
        job.missing -= tokens

    def _finish_prefill(self, batch: list[tuple[Job, int]], started: list[Job]) -> None:
        costs, self.chunked = self.machine.costs, None
        if started:
            chosen = set(started)
            self.waiting = [job for job in self.waiting if job not in chosen]
            self.policy.started(self, started)
            if self.counts_overtaking:
                self._count_overtaking(started)
        ms = costs.prefill_fixed_ms
        for job, tokens in batch:
            ms += costs.prefill_ms(tokens, job.context - job.missing)
            self.totals.prefilled_tokens += tokens
        self.now_ms += ms
        self.totals.busy_ms += ms
        self._see(self.now_ms)
        self.policy.prefilled(self, batch, ms)
        for job, _ in batch:
            if job.missing:
                self.chunked = job
            else:
                self._begin_answer(job)
        self._note_use()
        self._stale = True

    def _begin_answer(self, job: Job) -> None:
        fresh = slice(len(job.locked), len(job.ids))
        self.cache.publish(job.ids[fresh], job.sizes[fresh])
        job.private -= sum(job.sizes[fresh])
        job.locked = job.ids
        job.generated += 1
        self.totals.decoded_tokens += 1
        if job.generated == 1:
            self._unseen.append(job)
            if not self._late:
                self._see(self.now_ms)
        if job.generated >= job.output + self._late:
            self._finish(job)
        else:
            self.running.append(job)

    def _see(self, at_ms: float) -> None:
        """Note when the first tokens that were computed are seen."""
        for job in self._unseen:
            job.first_ms = at_ms
        self._unseen.clear()

    def _count_overtaking(self, started: list[Job]) -> None:
        last = max(job.index for job in started)
        for job in self.waiting:
            if job.index < last:
                job.overtaken += sum(one.uncached + one.remaining for one in started if one.index > job.index)

    # ------------------------------------------------------------------------------------------------- decode

    def _decode(self) -> None:
        """Decode until something changes."""
        costs, steps_cap = self.machine.costs, 1 << 60
        if self.policy.replan_steps:
            if self._stale or self._plan_left <= 0:
                self._held = self.policy.hold(self)
                self._plan_left, self._stale = self.policy.replan_steps, False
            steps_cap = self._plan_left
        active = [job for job in self.running if job not in self._held] if self._held else self.running
        if self.cache.available_tokens < len(active):
            self._retract()
            active, steps_cap = self.running, 1
        rows = len(active)
        context = sum([job.prompt + job.generated for job in active])
        late = self._late
        left = [job.output + late - job.generated for job in active]
        if self.waiting and not self._full and self.policy.replan_steps:
            steps_cap = min(steps_cap, self.policy.replan_steps)
        steps = min(steps_cap, self.cache.available_tokens // rows, *left)
        if not self._full and self._next < len(self._mine):
            steps = min(steps, costs.steps_within(self._arrival(self._next) - self.now_ms, rows, context))
        ms = costs.steps_ms(steps, rows, context)
        self._absorb(self.now_ms + ms, self.now_ms, steps * rows, ms)
        if self._unseen:
            self._see(self.now_ms + costs.step_ms(rows, context))
        self._plan_left -= steps
        self._advance(active, steps, ms)
        self.policy.decoded(self, rows, context + rows * (steps // 2), ms / steps)
        if min(left) <= steps:
            ended = [job for job in active if job.generated >= job.output + late]
            gone = set(ended)
            self.running = [job for job in self.running if job not in gone]
            for job in ended:
                self._finish(job)

    def _advance(self, active: list[Job], steps: int, ms: float) -> None:
        rows, totals = len(active), self.totals
        self.now_ms += ms
        totals.busy_ms += ms
        totals.decode_steps += steps
        totals.decoded_tokens += steps * rows
        self.cache.take(steps * rows)
        self._note_use()
        self.ratio = max(
            self.machine.least_ratio,
            self.ratio
            - steps * (self.machine.first_ratio - self.machine.least_ratio) / self.machine.decay_steps,
        )
        for job in active:
            job.generated += steps
            job.private += steps
            job.held_steps = 0
        if rows < len(self.running):
            totals.held_rows += steps * (len(self.running) - rows)
            for job in self._held:
                job.held_steps += steps

    def _finish(self, job: Job) -> None:
        job.done_ms = self.now_ms
        self._release(job)
        # what the step too many has computed is dropped
        job.generated = job.output
        self.done.append(job)
        self._held.discard(job)
        self._full = False
        # a held one may take the place; with none held the plan stands until it is due
        self._stale = self._stale or bool(self._held)
        self.policy.left(self, job)
        if self.log is not None:
            self.log.append((self.now_ms, "finish", job.index))

    def _release(self, job: Job) -> None:
        self.cache.give(job.private)
        self.cache.unlock(job.locked)
        job.private, job.locked = 0, ()

    def _retract(self) -> None:
        """Send running jobs back to the queue until a decode step fits."""
        kept = self.policy.keep(self)
        self._held = set()
        while True:
            if len(kept) == 1:
                break
            job = kept.pop()
            self._release(job)
            job.retractions += 1
            job.held_steps = 0
            job.queued_ms, job.queued_clock = self.now_ms, self.clock
            job.queued_prefill = self.totals.prefilled_tokens
            self.totals.retractions += 1
            self.waiting.append(job)
            if self.log is not None:
                self.log.append((self.now_ms, "retract", job.index))
            if self.cache.available_tokens >= len(kept):
                break
        if self.cache.available_tokens < len(kept):
            raise RuntimeError("the last running request does not fit into the pool")
        left = set(kept)
        self.running = [job for job in self.running if job in left]
        decoded = sum(job.generated for job in kept) + self.machine.retract_steps * len(kept)
        self.ratio = min(1.0, decoded / (sum(job.most_new for job in kept) + 1))
        self._full, self._stale = False, True

    def _note_use(self) -> None:
        used = self.cache.locked_tokens
        self.totals.most_used_tokens = max(self.totals.most_used_tokens, used)
