"""Policies to compare with: SGLang's own, oracles that know every length, and fair queueing."""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Sequence

from scheduling_parts.engine import Engine
from scheduling_parts.job import Job

# SGLang matches prefixes only while at most so many wait; in-batch sharing is looked for from so many tokens on.
MOST_MATCHED = 128
SHARED_TOKENS = 32


class Fcfs:
    """First come, first served; a retracted request goes to the end of the queue, as in SGLang."""

    replan_steps = 0

    def order(self, engine: Engine) -> list[Job]:
        """As it stands."""
        return engine.waiting

    def hold(self, engine: Engine) -> set[Job]:  # noqa: ARG002 -- of the protocol
        """Nobody."""
        return set()

    def most_at_once(self, engine: Engine) -> int:
        """As many as may run."""
        return engine.machine.most_running

    def keep(self, engine: Engine) -> list[Job]:
        """Most answer tokens first; of equals the shortest prompt."""
        return sorted(engine.running, key=lambda job: (-job.generated, job.prompt))

    def reserve(self, engine: Engine) -> float:
        """``new_token_ratio`` of what may still be generated; all of it where the length is fixed."""
        clip = engine.machine.clip_tokens
        return sum(
            min(job.most_new - job.generated, clip) * (1.0 if job.ignores_eos else engine.ratio)
            for job in engine.running
        )

    def answer(self, engine: Engine, batch: Sequence[Job], job: Job, most_new: int) -> float:  # noqa: ARG002
        """All of it."""
        return float(most_new)

    def started(self, engine: Engine, jobs: Sequence[Job]) -> None:
        """Nothing to learn."""

    def prefilled(self, engine: Engine, jobs: Sequence[tuple[Job, int]], ms: float) -> None:
        """Nothing to learn."""

    def decoded(self, engine: Engine, rows: int, context: int, ms: float) -> None:
        """Nothing to learn."""

    def left(self, engine: Engine, job: Job) -> None:
        """Nothing to learn."""


def _match(engine: Engine) -> set[Job]:
    """Refresh what the waiting find cached; those that had better wait for another of the queue to fill the cache."""
    later, prefixes = set(), set()
    for job in engine.waiting:
        blocks, _ = engine.cache.match(job.ids)
        job.cached = job.held_prefix(blocks)
        if job.cached <= SHARED_TOKENS:
            shared = _shared_beginning(job)
            if shared is None or shared not in prefixes:
                prefixes.add(shared)
            else:
                later.add(job)
    return later


def _shared_beginning(job: Job) -> int | None:
    """The block that says that the first ``SHARED_TOKENS`` tokens are shared."""
    total = 0
    for one, size in zip(job.ids[: job.shared], job.sizes, strict=False):
        total += size
        if total >= SHARED_TOKENS:
            return one
    return None


class Lpm(Fcfs):
    """Longest prefix match; SGLang falls back to the queue's order above ``MOST_MATCHED`` waiting."""

    def order(self, engine: Engine) -> list[Job]:
        """Most cached tokens first."""
        if len(engine.waiting) > MOST_MATCHED:
            return engine.waiting
        later = _match(engine)
        return sorted(engine.waiting, key=lambda job: float("inf") if job in later else -job.cached)


class Hrrn(Fcfs):
    """Highest response ratio next, ageing in prefilled tokens; falls back as ``Lpm`` does."""

    def order(self, engine: Engine) -> list[Job]:
        """Largest wait over uncached tokens first."""
        if len(engine.waiting) > MOST_MATCHED:
            return engine.waiting
        later, clock = _match(engine), engine.totals.prefilled_tokens

        def key(job: Job) -> tuple[float, int]:
            if job in later:
                return float("inf"), job.index
            uncached = max(0, job.prompt - job.cached)
            if not uncached:
                return -float("inf"), job.index
            return -max(0, clock - job.queued_prefill) / uncached, job.index

        return sorted(engine.waiting, key=key)


class Sjf(Fcfs):
    """Shortest job first by an oracle of lengths."""

    def order(self, engine: Engine) -> list[Job]:
        """Fewest ms to compute first."""
        costs = engine.machine.costs
        for job in engine.waiting:
            job.cached = job.held_prefix(engine.cache.match(job.ids)[0])

        def ms(job: Job) -> float:
            rest = job.remaining * (costs.decode_row_ms + costs.decode_context_ms * job.context)
            return costs.prefill_ms(job.context - job.cached, job.context) + rest

        return sorted(engine.waiting, key=ms)


class Srpt(Sjf):
    """Shortest remaining first by an oracle, which also holds back long answers where that ends more of them sooner."""

    replan_steps = 8
    _sizes = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)

    def hold(self, engine: Engine) -> set[Job]:
        """All but the number of shortest that makes the sum of the predicted ends least."""
        jobs = sorted(engine.running, key=lambda job: job.remaining)
        lengths = [job.remaining for job in jobs]
        costs, waiting = engine.machine.costs, len(engine.waiting)
        row_ms = costs.decode_row_ms + costs.decode_context_ms * sum(job.context for job in jobs) / len(jobs)
        best, best_sum = len(jobs), ends_sum(lengths, len(jobs), costs.decode_fixed_ms, row_ms, waiting)
        for size in self._sizes:
            if size < len(jobs):
                total = ends_sum(lengths, size, costs.decode_fixed_ms, row_ms, waiting)
                if total < 0.95 * best_sum or (best < len(jobs) and total < best_sum):
                    best, best_sum = size, total
        return set(jobs[best:])

    def keep(self, engine: Engine) -> list[Job]:
        """Shortest remaining first."""
        return sorted(engine.running, key=lambda job: job.remaining)


def ends_sum(lengths: Sequence[int], size: int, fixed_ms: float, row_ms: float, waiting: int) -> float:
    """Sum of the ends, in ms, if the ``size`` first of ``lengths`` (ascending) run and the next follow as they end.

    Those that wait in the queue end after all of them; each counts the end of the last.
    """
    ends: list[float] = []
    for at, length in enumerate(lengths):
        # in order of length each of the places is freed by the one `size` before it
        ends.append((ends[at - size] if at >= size else 0) + length)
    total = now_ms = 0.0
    before, left = 0.0, len(lengths)
    for mark in sorted(ends):
        now_ms += (mark - before) * (fixed_ms + row_ms * min(size, left))
        before = mark
        total += now_ms
        left -= 1
    return total + waiting * now_ms


class Vtc(Fcfs):
    """Virtual token counter (Sheng et al., OSDI 2024): the client that got least is served first.

    A prompt token counts 1, a generated one 2; a client that comes back is lifted to the least of those that wait.
    """

    def __init__(self) -> None:
        self._counters: dict[int, float] = defaultdict(float)
        self._known: set[int] = set()

    def order(self, engine: Engine) -> list[Job]:
        """By client's counter, then by arrival; what is started first counts for the next."""
        queues: dict[int, deque[Job]] = defaultdict(deque)
        for job in sorted(engine.waiting, key=lambda one: one.index):
            queues[job.client].append(job)
        back = queues.keys() - self._known
        if self._known and back:
            least = min(self._counters[client] for client in self._known)
            for client in back:
                self._counters[client] = max(self._counters[client], least)
        self._known = set(queues) | {job.client for job in engine.running}
        heap = [(self._counters[client], client) for client in queues]
        heapq.heapify(heap)
        result = []
        while heap:
            counter, client = heapq.heappop(heap)
            job = queues[client].popleft()
            result.append(job)
            if queues[client]:
                heapq.heappush(heap, (counter + job.context, client))
        return result

    def prefilled(self, engine: Engine, jobs: Sequence[tuple[Job, int]], ms: float) -> None:  # noqa: ARG002
        """Charge the prompts."""
        for job, tokens in jobs:
            self._counters[job.client] += tokens

    def left(self, engine: Engine, job: Job) -> None:  # noqa: ARG002
        """Charge the answer."""
        self._counters[job.client] += 2.0 * job.generated
