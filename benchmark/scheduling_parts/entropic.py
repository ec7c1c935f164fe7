"""The server's own policy in the simulated engine: facts in, indices out, nothing decided here.

What SGLang's scheduler process tells it, it is told: the cached prefix of what waits, starts, ends, times. Lengths stay
hidden unless requests ignore the end of the text. Entropy flows weigh only where they come with the requests,
each the same from a request's second token on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from heapq import nlargest

from scheduling_parts.baselines import Fcfs
from scheduling_parts.engine import Engine
from scheduling_parts.job import Job
from sgl_entropic.scheduling import MOST_PLAYED, EntropicPolicy, RequestFacts, SchedulingSettings, ServerFacts

# One object for each job that runs, brought up to date in place: making a frozen one of 16 fields costs more than most
# decisions, and of those that run the policy keeps none. Those of the queue it keeps: one that changed is made anew.
_set_generated, _set_cached, _set_queued, _set_held, _set_flow = (
    RequestFacts.__dict__[name].__set__
    for name in ("generated_tokens", "cached_tokens", "waits_since_tokens", "held_steps", "flow_nats")
)

# Times of every pass are learnt at first, later of every eighth: the fit has converged, and it costs simulating time.
LEARNT_ALL, LEARNT_EVERY = 200, 8


class Entropic(Fcfs):
    """Adapter from engine to ``EntropicPolicy``.

    Args:
        settings: of the policy.
        admits: whether its forecast of memory replaces ``new_token_ratio``.
    """

    def __init__(self, settings: SchedulingSettings, *, admits: bool = True) -> None:
        self.policy = EntropicPolicy(settings)
        self.replan_steps = settings.replan_steps if settings.hold else 0
        self._admits, self._foresees = admits, False
        self._passes = self._steps = 0

    def order(self, engine: Engine) -> list[Job]:
        """As the policy orders."""
        waiting = engine.waiting
        match = engine.cache.match
        for job in waiting:
            job.cached = job.held_prefix(match(job.ids)[0])
        order = self.policy.order([_waiting_facts(job) for job in waiting], _server_facts(engine))
        return [waiting[index] for index in order]

    def hold(self, engine: Engine) -> set[Job]:
        """Whom the policy holds."""
        running = engine.running
        if len(running) < 2:
            return set()
        # what of them is cached is of no effect here
        facts = [_facts(job, 0) for job in running]
        held = self.policy.hold(facts, len(engine.waiting), _server_facts(engine))
        return {running[index] for index in held}

    def most_at_once(self, engine: Engine) -> int:
        """As the policy paces."""
        running = [_facts(job, 0) for job in engine.running]
        first = [_waiting_facts(job) for job in engine.waiting[:MOST_PLAYED]]
        return self.policy.most_at_once(running, first, len(engine.waiting), _server_facts(engine))

    def keep(self, engine: Engine) -> list[Job]:
        """As the policy would retract."""
        facts = [_running_facts(job, engine) for job in engine.running]
        return [engine.running[at] for at in self.policy.retraction_order(facts, _server_facts(engine))]

    def reserve(self, engine: Engine) -> float:
        """What the policy foresees, if it is asked."""
        self._foresees = False
        if not self._admits:
            return super().reserve(engine)
        most = sum([job.most_new - job.generated for job in engine.running])
        if engine.cache.available_tokens - most > _most_needed(engine):
            # No future needs more, and even so all that may start fits: nothing to foresee.
            return float(most)
        self._foresees = True
        return float(self._peak(engine, ()))

    def answer(self, engine: Engine, batch: Sequence[Job], job: Job, most_new: int) -> float:
        """Its limit, or what it adds to the peak of all that run and of ``batch``, as the server charges it."""
        if not self._foresees:
            return super().answer(engine, batch, job, most_new)
        adds = self._peak(engine, (*batch, job)) - self._peak(engine, batch)
        return float(min(max(adds, min(most_new, 1)), most_new))

    def _peak(self, engine: Engine, new: Sequence[Job]) -> int:
        facts = [_running_facts(job, engine) for job in engine.running]
        facts += [_waiting_facts(job) for job in new]
        return self.policy.admission_tokens(facts, _server_facts(engine)) if facts else 0

    def started(self, engine: Engine, jobs: Sequence[Job]) -> None:
        """Say what starts, and before whom."""
        waiting, server = [_waiting_facts(job) for job in engine.waiting], _server_facts(engine)
        for job in jobs:
            self.policy.observe_started(_waiting_facts(job), waiting, server)

    def prefilled(self, engine: Engine, jobs: Sequence[tuple[Job, int]], ms: float) -> None:  # noqa: ARG002
        """Learn the time of a pass."""
        if _learns(self._passes) and len(jobs) == 1:
            job, tokens = jobs[0]
            self.policy.observe_prefill(tokens, job.context - job.missing, ms)
        self._passes += 1

    def decoded(self, engine: Engine, rows: int, context: int, ms: float) -> None:  # noqa: ARG002
        """Learn the time of a step."""
        if _learns(self._steps):
            self.policy.observe_decode(rows, context, ms)
        self._steps += 1

    def left(self, engine: Engine, job: Job) -> None:  # noqa: ARG002
        """Learn a length."""
        self.policy.observe_finished(_facts(job, 0), hit_limit=job.generated >= job.most_new)


def _learns(count: int) -> bool:
    return count < LEARNT_ALL or count % LEARNT_EVERY == 0


def _most_needed(engine: Engine) -> int:
    """KV slots that admission charges at most: for all of the waiting that may still run, and a chunk."""
    needs = [job.prompt + max(job.most_new, job.generated) + 1 for job in engine.waiting]
    places = engine.machine.most_running - len(engine.running)
    if len(needs) > places:
        needs = nlargest(places, needs)
    return sum(needs) + engine.machine.clip_tokens


def _facts(job: Job, cached: int) -> RequestFacts:
    facts = job.memo
    if isinstance(facts, RequestFacts):
        _set_generated(facts, job.generated)
        _set_cached(facts, cached)
        _set_queued(facts, job.queued_clock)
        _set_held(facts, job.held_steps)
        if job.flow_nats is not None and job.generated > 1:
            _set_flow(facts, job.flow_nats)
        return facts
    job.memo = facts = RequestFacts(
        key=str(job.index),
        arrival=job.index,
        prompt_tokens=job.prompt,
        max_new_tokens=job.most_new,
        generated_tokens=job.generated,
        cached_tokens=cached,
        ignores_eos=job.ignores_eos,
        client=None if job.client < 0 else str(job.client),
        route=str(job.route),
        arrived_at_tokens=job.arrived_clock,
        waits_since_tokens=job.queued_clock,
        held_steps=job.held_steps,
    )
    return facts


def _waiting_facts(job: Job) -> RequestFacts:
    known = job.memo
    if isinstance(known, RequestFacts) and (
        known.cached_tokens != job.cached
        or known.generated_tokens != job.generated
        or known.waits_since_tokens != job.queued_clock
    ):
        job.memo = replace(known)
    return _facts(job, job.cached)


def _running_facts(job: Job, engine: Engine) -> RequestFacts:
    """Facts of a running job: cached is what would outlive its retraction, as others read it too."""
    others = engine.cache.read_by_others(job.locked) if job.shared else 0
    return _facts(job, job.held_prefix(others) if others else 0)


def _server_facts(engine: Engine) -> ServerFacts:
    return ServerFacts(
        token_clock=engine.clock,
        decode_steps=engine.totals.decode_steps,
        pool_tokens=engine.machine.pool_tokens,
        free_tokens=engine.cache.available_tokens,
        most_running=engine.machine.most_running,
    )
