"""The policy's seat in the scheduler process: it keeps the token clock, learns from every step, and asks the policy."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from heapq import nlargest
from typing import TYPE_CHECKING, Any

from sgl_entropic.runtime.scheduling.notes import Notes, attach, facts_of, facts_of_waiting, notes_of
from sgl_entropic.scheduling import MOST_PLAYED, EntropicPolicy, RequestFacts, ServerFacts
from sgl_entropic.trace.counters import Counters

if TYPE_CHECKING:
    from sgl_entropic.runtime.metrics import Metrics
    from sgl_entropic.scheduling.start import StartPlan

# A pause longer than this is no part of the step before it: a debugger, a suspended machine.
_LONGEST_STEP_S = 60.0
# Of each list; every explanation looks at the whole of it.
_MOST_EXPLAINED = 16
# Slots that allocation may round up to for a request: the largest page that SGLang's backends use.
_PAGE = 128
# With more waiting than this a forecast costs no more than adding up what all of them may need.
_MOST_ADDED_UP = 128


@dataclass(slots=True)
class _Launch:
    """A step under way: what was launched, and when."""

    at_s: float
    prefill_tokens: int
    prefill_context: float
    rows: int
    context_tokens: int
    mixed: bool


@dataclass(slots=True)
class Seat:
    """State of one scheduler process.

    Attributes:
        policy: ``None`` leaves every decision to SGLang; the counting goes on.
        counters: of this process.
        allocator: SGLang's of KV slots.
        tree_cache: SGLang's prefix cache.
        most_running: most requests that run at a time.
        priority_sign: 1 where larger user priorities go first, -1 where smaller do, 0 where there are none.
        chooses_order: whether the policy orders the waiting queue.
        chooses_holds: whether the policy may leave running requests out of a step.
        chooses_retractions: whether the policy picks who gives up its KV.
        chooses_admission: whether the policy reserves memory for running requests.
        chooses_pace: whether the policy may keep places free while those that run get on.
        foresees_memory: whether the next admission asks for a forecast of memory: the last look found too little of it.
        token_clock: prompt tokens computed and tokens decoded.
        decode_steps: decode steps.
        metrics: Prometheus metrics, or ``None`` when the server exports none.
    """

    policy: EntropicPolicy | None
    counters: Counters
    allocator: Any
    tree_cache: Any
    most_running: int
    priority_sign: int = 0
    chooses_order: bool = False
    chooses_holds: bool = False
    chooses_retractions: bool = False
    chooses_admission: bool = False
    chooses_pace: bool = False
    foresees_memory: bool = False
    token_clock: int = 0
    decode_steps: int = 0
    metrics: Metrics | None = None
    _arrivals: int = 0
    _launch: _Launch | None = None
    _deferred: frozenset[str] = frozenset()
    _most_at_once: int | None = None

    # ------------------------------------------------------------------------------------------- life of a request

    def queued(self, req: Any, *, retracted: bool) -> None:
        """``req`` has joined the waiting queue."""
        notes = notes_of(req)
        if notes is None:
            priority = self.priority_sign * (req.priority or 0)
            notes = Notes(self._arrivals, priority, self.token_clock, self.token_clock)
            self._arrivals += 1
            attach(req, notes)
        elif retracted or notes.admitted:
            # SGLang says so of requests that it retracts for memory; those that it preempts or pauses come back the same way.
            notes.waits_since_tokens = self.token_clock
            notes.held_steps = 0
            notes.admitted = False
            notes.retractions += 1
            self.counters.retracted_requests += 1

    def started(self, admitted: Sequence[Any], waiting: Sequence[Any]) -> None:
        """``admitted`` go into a prefill; ``waiting`` stay in the queue."""
        # Chunks after the first, and rows that only decode along, were admitted before.
        new = [req for req in admitted if (notes := notes_of(req)) is not None and not notes.admitted]
        for req in new:
            self._admit(req, self._noted(req))
        if self.policy is not None and self.chooses_order and new:
            passed, server = self.facts_of_waiting(waiting), self.server()
            for req in new:
                notes = self._noted(req)
                facts = facts_of(req, notes, running=False)
                notes.score, notes.score_traced = asdict(self.policy.score(facts, server)), False
                self.counters.overtaken_requests += sum(other.arrival < facts.arrival for other in passed)
                self.policy.observe_started(facts, passed, server)

    def _admit(self, req: Any, notes: Notes) -> None:
        notes.admitted = True
        if notes.retractions:
            uncached = len(req.origin_input_ids) + len(req.output_ids) - req.prefix_len
            notes.recomputed_tokens += uncached
            self.counters.recomputed_tokens += uncached
        elif not notes.started:
            notes.started = True
            notes.wait_tokens = self.token_clock - notes.arrived_at_tokens

    def ended(self, reqs: Sequence[Any]) -> None:
        """Look through the requests of a step for those that have just ended."""
        for req in reqs:
            notes = notes_of(req)
            if notes is None or notes.finished or not req.finished():
                continue
            notes.finished = True
            if self.metrics is not None:
                self.metrics.observe_wait(notes.wait_tokens)
                self.metrics.publish(self.counters)
            if self.policy is None:
                continue
            facts = facts_of(req, notes, running=True)
            reason = req.finished_reason.to_json()["type"]
            if reason == "abort":
                self.policy.observe_aborted(facts)
            else:
                self.policy.observe_finished(facts, hit_limit=reason == "length")

    def withdrawn(self, req: Any) -> None:
        """``req`` was aborted before it ran, or between two runs: that tells nothing about its length."""
        notes = notes_of(req)
        if notes is not None and not notes.finished:
            notes.finished = True
            if self.policy is not None:
                self.policy.forget(req.rid)

    def woke(self, reqs: Iterable[Any]) -> None:
        """The server had nothing to do; ``reqs`` are all that it has now.

        SGLang aborts a request that fits nowhere while it retracts, and tells nobody.
        """
        if self.policy is not None:
            self.policy.retain({req.rid for req in reqs})

    # ----------------------------------------------------------------------------------------------- life of a step

    def launched(self, batch: Any, now_s: float, *, after_idle: bool) -> None:
        """A step is about to be launched: the one before has taken until now."""
        before, self._launch = self._launch, None
        if before is not None and not after_idle and self.policy is not None:
            self._learn(before, now_s - before.at_s)
        mode = batch.forward_mode
        if mode.is_extend():
            new, past = batch.extend_lens, batch.prefix_lens
            tokens = sum(new)
            weighted = sum(n * (p + n / 2) for n, p in zip(new, past, strict=True))
            self._launch = _Launch(now_s, tokens, weighted / max(tokens, 1), len(new), 0, mode.is_mixed())
            self.token_clock += tokens
        elif mode.is_decode():
            rows, context = len(batch.reqs), _context_tokens(batch.reqs)
            self._launch = _Launch(now_s, 0, 0.0, rows, context, mixed=False)
            self.token_clock += rows
            self.decode_steps += 1
            if self.policy is not None and rows:
                self.policy.observe_rows(rows, context, self.token_clock, self.decode_steps)

    def _learn(self, step: _Launch, seconds: float) -> None:
        assert self.policy is not None
        if step.mixed or not 0 < seconds < _LONGEST_STEP_S:
            return
        if step.prefill_tokens:
            self.policy.observe_prefill(step.prefill_tokens, round(step.prefill_context), 1e3 * seconds)
        else:
            self.policy.observe_decode(step.rows, step.context_tokens, 1e3 * seconds)

    # ---------------------------------------------------------------------------------------------------- decisions

    def server(self) -> ServerFacts:
        """The server as the policy sees it."""
        free = self.allocator.available_size() + self.tree_cache.evictable_size()
        return ServerFacts(self.token_clock, self.decode_steps, self.allocator.size, free, self.most_running)

    def facts_of_waiting(self, reqs: Sequence[Any]) -> list[RequestFacts]:
        """Facts of requests of the waiting queue."""
        deferred = self._deferred
        return [facts_of_waiting(req, self._noted(req), deferred=req.rid in deferred) for req in reqs]

    def facts_of_running(self, reqs: Sequence[Any]) -> list[RequestFacts]:
        """Facts of requests that hold KV."""
        return [facts_of(req, self._noted(req), running=True) for req in reqs]

    def _noted(self, req: Any) -> Notes:
        notes = notes_of(req)
        if notes is None:
            self.queued(req, retracted=False)
            notes = notes_of(req)
            assert notes is not None
        return notes

    def order(self, queue: list[Any], deferred: Collection[str] = ()) -> None:
        """Sort the waiting queue in place; ``deferred`` are ids of requests that gain by going after another."""
        assert self.policy is not None
        self._deferred = frozenset(deferred)
        if len(queue) > 1:
            places = self.policy.order(self.facts_of_waiting(queue), self.server())
            queue[:] = [queue[place] for place in places]
            self.counters.ordered_queues += 1

    def pace(self, running: Sequence[Any], queue: Sequence[Any]) -> None:
        """Decide how many may run after this pass; ``queue`` is sorted."""
        if self.policy is None or not self.chooses_pace:
            return
        first = self.facts_of_waiting(queue[:MOST_PLAYED])
        self._most_at_once = self.policy.most_at_once(
            self.facts_of_running(running), first, len(queue), self.server()
        )

    def look_for_memory(self, running: Sequence[Any], queue: Sequence[Any]) -> None:
        """Find out whether memory may run short: where all that may start fits with every limit, no forecast changes that."""
        self.foresees_memory = self.chooses_admission and (
            len(queue) > _MOST_ADDED_UP
            or self.allocator.available_size() + self.tree_cache.evictable_size()
            <= _most_needed(running, queue, self.most_running - len(running))
        )

    def starts_nobody(self, rows: int) -> bool:
        """Whether the plan that holds starts nobody beside ``rows`` that run, in whatever order the queue is."""
        return (
            self.policy is not None
            and self.chooses_pace
            # Whom the user puts first is found by sorting.
            and self.priority_sign == 0
            and rows > 0
            and self._most_at_once is not None
            and rows >= self._most_at_once
            and not self.policy.pacing.is_due(self.decode_steps)
        )

    def may_start(self, rows: int) -> bool:
        """Whether one more may start beside ``rows`` that run or are about to."""
        most = self._most_at_once
        if not self.chooses_pace or most is None or rows < most or rows == 0:
            return True
        self.counters.paced_starts += rows < self.most_running
        return False

    def holds_nobody(self) -> bool:
        """Whether nobody is held in this step whatever is looked at. Python between two steps is time that all lose."""
        return self.policy is not None and self.policy.rests(self.decode_steps)

    def held(self, reqs: Sequence[Any], waiting: int) -> frozenset[int]:
        """Rows of the running batch to leave out of this step."""
        if self.policy is None or not self.chooses_holds:
            return frozenset()
        before = self.policy.holding.plan
        rows = self.policy.hold(self.facts_of_running(reqs), waiting, self.server())
        plan = self.policy.holding.plan
        if plan is not None and plan is not before:
            self.counters.tier_grouped_rows += plan.grouped
        for row, req in enumerate(reqs):
            notes = self._noted(req)
            notes.held_steps = notes.held_steps + 1 if row in rows else 0
            notes.holds += row in rows
        self.counters.held_rows += len(rows)
        return rows

    def retraction_order(self, reqs: Sequence[Any]) -> list[int]:
        """Indices from most to least worth keeping."""
        assert self.policy is not None
        return self.policy.retraction_order(self.facts_of_running(reqs), self.server())

    def reserved_tokens(self, running: Sequence[Any], new: Sequence[Any]) -> int:
        """KV that these requests are expected to need at a time, beyond what they hold once ``new`` are prefilled."""
        assert self.policy is not None
        facts = self.facts_of_running(running) + self.facts_of_waiting(new)
        return self.policy.admission_tokens(facts, self.server()) if facts else 0

    # --------------------------------------------------------------------------------------------------- explaining

    def state(self, queue: Sequence[Any], running: Sequence[Any]) -> dict[str, Any]:
        """For the internal state: what was learnt, and why the first that wait, by rank, and the first that run stand there."""
        policy = self.policy
        if policy is None:
            return {"enabled": False, "token_clock": self.token_clock, "decode_steps": self.decode_steps}
        server = self.server()
        waits, runs = self.facts_of_waiting(queue), self.facts_of_running(running)
        return {
            "enabled": True,
            "token_clock": self.token_clock,
            "decode_steps": self.decode_steps,
            "cost_ms": {
                "decode_step": policy.cost.decode_fixed_ms,
                "decode_row": policy.cost.decode_row_ms,
                "decode_context_token": policy.cost.decode_context_token_ms,
                "prefill_token": policy.cost.prefill_marginal_ms(1, 0),
            },
            "pace": _shown(policy.pacing.plan)
            if waits and not policy.pacing.is_due(self.decode_steps)
            else None,
            "waiting_count": len(waits),
            "running_count": len(runs),
            "waiting": policy.explain_waiting(waits, server, _MOST_EXPLAINED),
            "running": [policy.explain(facts, waits, runs, server) for facts in runs[:_MOST_EXPLAINED]],
        }


def _shown(plan: StartPlan | None) -> dict[str, Any] | None:
    return None if plan is None else asdict(plan)


def _context_tokens(reqs: Sequence[Any]) -> int:
    # Lists know their lengths; a sum of a tensor takes longer than all of them.
    return sum([len(req.origin_input_ids) + len(req.output_ids) for req in reqs])


def _most_needed(running: Sequence[Any], queue: Sequence[Any], places: int) -> int:
    """KV slots that those that run and as many of the queue as there are places may need at most, a page each to spare."""
    grows: list[int] = [max(0, req.sampling_params.max_new_tokens - len(req.output_ids)) for req in running]
    needs: list[int] = [
        len(req.origin_input_ids) + req.sampling_params.max_new_tokens + _PAGE for req in queue
    ]
    return sum(grows) + _PAGE * len(grows) + sum(nlargest(places, needs) if len(needs) > places else needs)


_installed: Seat | None = None


def install(here: Seat | None) -> None:
    """Make ``here`` the seat of this process; ``None`` takes it away."""
    global _installed  # noqa: PLW0603 -- one scheduler a process; SGLang's hooks carry no state of their own
    _installed = here


def seat() -> Seat | None:
    """The process's seat; ``None`` in processes without a scheduler."""
    return _installed
