"""No starvation: adversarial arrivals, starts, retractions and aborts against the real policy."""

import dataclasses

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sgl_entropic.scheduling import (
    CostModel,
    EntropicPolicy,
    RequestFacts,
    SchedulingSettings,
    ServerFacts,
)

MAX_WAIT_TOKENS = 900
MAX_OVERTAKEN_TOKENS = 400
POOL_TOKENS = 4000
MOST_RUNNING = 4
MAX_HELD_STEPS = 5


class Server(RuleBasedStateMachine):
    """A server whose arrivals and lengths an adversary chooses. It starts requests in the order it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = EntropicPolicy(
            SchedulingSettings(
                max_wait_tokens=MAX_WAIT_TOKENS,
                max_overtaken_tokens=MAX_OVERTAKEN_TOKENS,
                max_held_steps=MAX_HELD_STEPS,
            ),
            CostModel(frozen=True, decode=(0.1, 1.0, 0.0)),
        )
        self.waiting: list[RequestFacts] = []
        self.running: list[RequestFacts] = []
        self.arrivals = self.clock = self.steps = 0
        self.overtaken: dict[str, float] = {}

    @property
    def facts(self) -> ServerFacts:
        used = sum(request.context_tokens for request in self.running)
        return ServerFacts(self.clock, self.steps, POOL_TOKENS, POOL_TOKENS - used, MOST_RUNNING)

    @rule(
        prompts=st.lists(st.integers(1, 200), min_size=1, max_size=6),
        most=st.integers(1, 60),
        kind=st.sampled_from(["known", "unknown"]),
        client=st.sampled_from([None, "a", "b"]),
        priority=st.sampled_from([0, 0, 0, 1]),
    )
    def arrive(self, prompts: list[int], most: int, kind: str, client: str | None, priority: int) -> None:
        for prompt in prompts:
            self.waiting.append(
                RequestFacts(
                    f"r{self.arrivals}",
                    self.arrivals,
                    prompt,
                    most,
                    ignores_eos=kind == "known",
                    client=client,
                    priority=priority,
                    arrived_at_tokens=self.clock,
                    waits_since_tokens=self.clock,
                )
            )
            self.arrivals += 1

    @precondition(lambda self: self.waiting and len(self.running) < MOST_RUNNING)
    @rule(admitted=st.integers(1, MOST_RUNNING))
    def start(self, admitted: int) -> None:
        order = self.policy.order(self.waiting, self.facts)
        assert sorted(order) == list(range(len(self.waiting)))
        self.check_due_first(order)
        facts = self.facts
        for index in order[: min(admitted, MOST_RUNNING - len(self.running))]:
            request = self.waiting[index]
            work = self.policy._cache.work_tokens(request.key) if len(self.waiting) > 1 else 1.0
            left = [other for other in self.waiting if other.key not in {r.key for r in self.running}]
            left.remove(request)
            self.policy.observe_started(request, left, facts)
            for other in left:
                if other.arrival < request.arrival and other.priority >= request.priority:
                    self.overtaken[other.key] = self.overtaken.get(other.key, 0.0) + (work or 1.0)
            self.clock += request.uncached_tokens
            self.running.append(dataclasses.replace(request, cached_tokens=0, held_steps=0))
        self.waiting = [other for other in self.waiting if other.key not in {r.key for r in self.running}]

    def check_due_first(self, order: list[int]) -> None:
        queue = [self.waiting[index] for index in order]
        for place, request in enumerate(queue):
            waited = self.clock - request.waits_since_tokens
            if waited >= MAX_WAIT_TOKENS or self.overtaken.get(request.key, 0.0) >= MAX_OVERTAKEN_TOKENS:
                ahead = queue[:place]
                assert all(
                    other.priority > request.priority or other.arrival < request.arrival for other in ahead
                )

    @precondition(lambda self: self.running)
    @rule(ending=st.sets(st.integers(0, MOST_RUNNING - 1), max_size=2), steps=st.integers(1, 12))
    def decode(self, ending: set[int], steps: int) -> None:
        for _ in range(steps):
            held = self.policy.hold(self.running, len(self.waiting), self.facts)
            assert not self.running or len(held) < len(self.running)
            for index in held:
                request = self.running[index]
                assert request.held_steps < MAX_HELD_STEPS
                assert self.clock - request.arrived_at_tokens < MAX_WAIT_TOKENS
            self.step(held)
        ended = [request for index, request in enumerate(self.running) if index in ending]
        self.end([request for request in ended if not request.ignores_eos], hit_limit=False)

    def step(self, held: frozenset[int]) -> None:
        self.steps += 1
        self.clock += len(self.running) - len(held)
        self.running = [
            dataclasses.replace(request, held_steps=request.held_steps + 1)
            if index in held
            else dataclasses.replace(request, held_steps=0, generated_tokens=request.generated_tokens + 1)
            for index, request in enumerate(self.running)
        ]
        self.end([request for request in self.running if request.most_remaining_tokens == 0], hit_limit=True)

    def end(self, ended: list[RequestFacts], *, hit_limit: bool) -> None:
        for request in ended:
            self.policy.observe_finished(request, hit_limit=hit_limit)
            self.overtaken.pop(request.key, None)
            self.running.remove(request)

    @precondition(lambda self: len(self.running) > 1)
    @rule()
    def retract(self) -> None:
        order = self.policy.retraction_order(self.running, self.facts)
        assert sorted(order) == list(range(len(self.running)))
        victim = self.running.pop(order[-1])
        self.waiting.append(dataclasses.replace(victim, waits_since_tokens=self.clock, held_steps=0))

    @precondition(lambda self: self.waiting)
    @rule(place=st.integers(0, 30))
    def abort(self, place: int) -> None:
        request = self.waiting.pop(place % len(self.waiting))
        self.policy.observe_aborted(request)
        self.overtaken.pop(request.key, None)

    @rule(place=st.integers(0, 30))
    def explain(self, place: int) -> None:
        everyone = self.waiting + self.running
        if everyone:
            request = everyone[place % len(everyone)]
            shown = self.policy.explain(request, self.waiting, self.running, self.facts)
            assert shown["key"] == request.key

    @invariant()
    def admission_is_within_what_can_be_generated(self) -> None:
        most = sum(request.most_remaining_tokens for request in self.running)
        assert 0 <= self.policy.admission_tokens(self.running, self.facts) <= most

    @invariant()
    def none_is_overtaken_beyond_its_bound(self) -> None:
        assert max(self.overtaken.values(), default=0.0) <= MAX_OVERTAKEN_TOKENS
        for request in self.waiting:
            assert (
                abs(self.policy.overtaking.tokens(request.key) - self.overtaken.get(request.key, 0.0)) < 1e-6
            )

    @invariant()
    def nothing_is_kept_of_requests_that_are_gone(self) -> None:
        assert len(self.policy.overtaking) <= len(self.waiting) + len(self.running)
        assert len(self.policy._cache) <= len(self.waiting)

    def teardown(self) -> None:
        for request in self.waiting + self.running:
            self.policy.observe_aborted(request)
        assert len(self.policy.overtaking) == len(self.policy._cache) == 0


Server.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestStarvation = Server.TestCase


def test_a_flood_of_short_requests_cannot_hold_up_a_long_one() -> None:
    """The proof's bound, with the flood that shortest-first would serve for ever."""
    policy = EntropicPolicy(SchedulingSettings(max_wait_tokens=MAX_WAIT_TOKENS, max_overtaken_tokens=10**6))
    long = RequestFacts("long", 0, 1000, 500, ignores_eos=True)
    clock, arrivals = 0, 1
    waiting = [long]
    while True:
        while len(waiting) < 8:
            waiting.append(
                RequestFacts(f"s{arrivals}", arrivals, 5, 5, ignores_eos=True, waits_since_tokens=clock)
            )
            arrivals += 1
        server = ServerFacts(clock, 0, 10_000, 10_000, 1)
        request = waiting.pop(policy.order(waiting, server)[0])
        policy.observe_started(request, waiting, server)
        if request is long:
            break
        clock += 10
        policy.observe_finished(dataclasses.replace(request, generated_tokens=5), hit_limit=True)
    assert clock <= MAX_WAIT_TOKENS + 10
    assert clock > 100, "it was overtaken at all"
