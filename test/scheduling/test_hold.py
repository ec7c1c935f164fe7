"""Holding: when it pays in a simulation token by token, and its bounds."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl_entropic.scheduling import (
    CostModel,
    EntropicPolicy,
    RequestFacts,
    SchedulingSettings,
    ServerFacts,
    hold,
)
from sgl_entropic.scheduling.completion import StepCost, completion_ms, most_saved_share

ROWS_COST = (0.5, 2.0, 0.0)
FIXED_COSTS = (50.0, 0.5, 0.0)
NOTHING_HELD: frozenset[int] = frozenset()


def server(step: int = 0, clock: int = 0, free: int = 50_000) -> ServerFacts:
    return ServerFacts(clock, step, 100_000, free, 64)


def policy_of(decode: tuple[float, float, float], **changes: float) -> EntropicPolicy:
    cost = CostModel(frozen=True, decode=decode)
    return EntropicPolicy(SchedulingSettings(**changes), cost)


def known(lengths: list[int]) -> list[RequestFacts]:
    return [
        RequestFacts(str(index), index, 50, length, ignores_eos=True) for index, length in enumerate(lengths)
    ]


def decoded_mean_ms(
    policy: EntropicPolicy,
    requests: list[RequestFacts],
    lengths: list[int],
    decode: tuple[float, float, float],
    seen: Callable[[list[RequestFacts], frozenset[int]], None] = lambda running, held: None,
) -> float:
    """Mean completion time of a batch that decodes token by token under the policy's holds."""
    running, clock_ms, step, ends = list(requests), 0.0, 0, []
    length = {request.key: tokens for request, tokens in zip(requests, lengths, strict=True)}
    while running:
        held = policy.hold(running, 0, server(step, step))
        seen(running, held)
        clock_ms += decode[0] + decode[1] * (len(running) - len(held))
        stepped = [
            dataclasses.replace(request, held_steps=request.held_steps + 1)
            if index in held
            else dataclasses.replace(request, held_steps=0, generated_tokens=request.generated_tokens + 1)
            for index, request in enumerate(running)
        ]
        running = [request for request in stepped if request.generated_tokens < length[request.key]]
        ends += [clock_ms] * (len(stepped) - len(running))
        step += 1
    return float(np.mean(ends))


def test_known_lengths_end_earlier_where_rows_dominate() -> None:
    lengths = np.random.default_rng(0).integers(10, 200, 24).tolist()
    held = decoded_mean_ms(policy_of(ROWS_COST), known(lengths), lengths, ROWS_COST)
    stock = decoded_mean_ms(policy_of(ROWS_COST, hold=False), known(lengths), lengths, ROWS_COST)
    assert held < 0.85 * stock


def test_nothing_is_held_where_steps_cost_the_same_at_any_batch() -> None:
    assert policy_of(FIXED_COSTS).hold(known([10, 500, 20, 400] * 4), 0, server()) == NOTHING_HELD


def test_nothing_is_held_before_costs_are_known() -> None:
    assert EntropicPolicy().hold(known([10, 500]), 0, server()) == NOTHING_HELD


def test_memoryless_lengths_gain_nothing_and_nothing_is_held() -> None:
    policy = policy_of((4.0, 1.0, 0.0))
    for length in np.random.default_rng(1).geometric(1 / 100, 1000).tolist():
        policy.belief.observe_finished(RequestFacts("f", 0, 50, 4096), length, hit_limit=False)
    running = [RequestFacts(str(index), index, 50, 4096, generated_tokens=index) for index in range(16)]
    assert policy.hold(running, 0, server()) == NOTHING_HELD


def test_a_long_queue_pays_for_lost_throughput() -> None:
    lengths = [60, 70, 80, 90] * 4
    gains = []
    for waiting in (0, 16, 200):
        policy = policy_of((0.5, 1.0, 0.0), hold_gain=0.0)
        policy.hold(known(lengths), waiting, server())
        assert policy.holding.plan is not None
        gains.append(policy.holding.plan.gain)
    assert gains[0] > gains[1] > gains[2]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=12), st.integers(1, 9), st.integers(20, 2000))
def test_bounds(lengths: list[int], max_held_steps: int, max_wait_tokens: int) -> None:
    policy = policy_of(
        ROWS_COST, max_held_steps=max_held_steps, max_wait_tokens=max_wait_tokens, replan_steps=4
    )
    step = 0

    def check(running: list[RequestFacts], held: frozenset[int]) -> None:
        nonlocal step
        assert held < frozenset(range(len(running)))
        assert all(running[index].held_steps < max_held_steps for index in held)
        assert not held or step < max_wait_tokens
        step += 1

    decoded_mean_ms(policy, known(lengths), lengths, ROWS_COST, check)


def test_equal_requests_do_not_change_places() -> None:
    policy = policy_of(ROWS_COST, max_held_steps=10**6)
    interrupted = 0

    def count(running: list[RequestFacts], held: frozenset[int]) -> None:
        nonlocal interrupted
        interrupted += sum(
            running[index].held_steps == 0 and running[index].generated_tokens > 0 for index in held
        )

    lengths = [100] * 16
    decoded_mean_ms(policy, known(lengths), lengths, ROWS_COST, count)
    # Only where the number at once has changed.
    assert interrupted <= 4


def test_nothing_is_held_under_memory_pressure() -> None:
    policy = policy_of(ROWS_COST)
    running = known([10, 20, 300, 400] * 4)
    assert policy.hold(running, 0, server(0)) != NOTHING_HELD
    assert policy.hold(running, 0, server(1, free=100)) == NOTHING_HELD


def test_a_new_request_is_planned_for_at_once() -> None:
    policy = policy_of(ROWS_COST)
    running = known([100, 200, 300, 400] * 4)
    held = policy.hold(running, 0, server(0))
    short = RequestFacts("short", 99, 50, 1, ignores_eos=True)
    assert held
    assert len(running) not in policy.hold([*running, short], 0, server(1))


def test_a_batch_that_does_not_carry_the_arriving_work_is_not_run() -> None:
    lengths = [20, 200, 20, 200, 20, 200, 20, 200]
    idle, busy = policy_of((1.0, 2.0, 0.0)), policy_of((1.0, 2.0, 0.0))
    for step in range(300):
        busy.demand.observe_steps(8 * step, step, 8, 400)
        if step % 10 == 0:
            busy.observe_started(RequestFacts("f", step, 1, 80, ignores_eos=True), [], server())
    assert busy.demand.load(17.0 / 8.0) == pytest.approx(1.0, rel=0.05)
    assert idle.hold(known(lengths), 0, server()) != NOTHING_HELD
    assert busy.hold(known(lengths), 0, server()) == NOTHING_HELD


@given(
    st.lists(st.integers(0, 300), min_size=2, max_size=20).filter(any),
    st.integers(1, 19),
    st.floats(0.0, 20.0),
    st.floats(0.01, 5.0),
)
def test_no_batch_saves_more_than_its_bound(
    lengths: list[int], at_once: int, fixed_ms: float, row_ms: float
) -> None:
    cost, count = StepCost(fixed_ms, row_ms), len(lengths)
    at_once = min(at_once, count - 1)
    all_ms, some_ms = (
        completion_ms(lengths, size, cost, running=count, weight=0.0) for size in (count, at_once)
    )
    assert 1.0 - some_ms / all_ms <= most_saved_share(count, at_once, cost) + 1e-9


def test_the_bound_is_reached_by_equal_lengths_one_after_the_other() -> None:
    cost = StepCost(0.0, 1.0)
    all_ms, one_ms = (completion_ms([7] * 4, size, cost, running=4, weight=0.0) for size in (4, 1))
    assert 1.0 - one_ms / all_ms == pytest.approx(most_saved_share(4, 1, cost))


request_shapes = st.tuples(st.integers(1, 400), st.integers(0, 300), st.booleans(), st.integers(0, 3))


@settings(deadline=None)
@given(
    st.lists(request_shapes, min_size=2, max_size=24),
    st.sampled_from([0, 0, 3, 40]),
    st.floats(0.0, 8.0),
    st.floats(0.1, 3.0),
    st.integers(0, 30),
    st.sampled_from([0.0, 0.02, 0.1, 0.3]),
)
def test_batches_given_up_without_a_play_would_not_have_been_run(
    shapes: list[tuple[int, int, bool, int]],
    waiting: int,
    fixed_ms: float,
    row_ms: float,
    started: int,
    hold_gain: float,
) -> None:
    running = [
        RequestFacts(
            str(at), at, 50, tokens + done, generated_tokens=done, ignores_eos=known, held_steps=held
        )
        for at, (tokens, done, known, held) in enumerate(shapes)
    ]

    def plan() -> tuple[int, float, frozenset[int]]:
        policy = policy_of((fixed_ms, row_ms, 0.001), hold_gain=hold_gain)
        for step in range(40):
            policy.demand.observe_steps(64 * step, 8 * step, 8, 800)
        for at in range(started):
            policy.observe_started(RequestFacts(f"s{at}", at, 1, 60, ignores_eos=True), [], server())
        held = policy.hold(running, waiting, server())
        assert policy.holding.plan is not None
        return policy.holding.plan.most_at_once, policy.holding.plan.gain, held

    with pytest.MonkeyPatch.context() as patch:
        # All that carry the demand are played.
        patch.setattr(hold, "ROUNDING", math.inf)
        full = plan()
    assert plan() == full


def tiered(lengths: list[int], tiers: list[int]) -> list[RequestFacts]:
    return [dataclasses.replace(one, tier=tier) for one, tier in zip(known(lengths), tiers, strict=True)]


def running_of(policy: EntropicPolicy, requests: list[RequestFacts]) -> set[int]:
    held = policy.hold(requests, 0, server())
    assert held
    return set(range(len(requests))) - held


def test_text_that_is_open_or_not_known_is_no_group() -> None:
    # Two run at a time. Open text is the commonest, and one that is longer does not go before a decided one.
    lengths = [10, 12, 13, *range(300, 780, 40)]
    for tiers in ([0, 2, 0, *[0, 1] * 6], [0] * 15):
        assert running_of(policy_of(ROWS_COST, tier_margin=0.5), tiered(lengths, tiers)) == {0, 1}


def test_where_any_gain_is_enough_a_plan_that_holds_nobody_is_no_error() -> None:
    # Of lengths nothing is known: no order of them gains.
    running = [RequestFacts(str(index), index, 50, 400, tier=index % 3) for index in range(8)]
    policy = EntropicPolicy(SchedulingSettings(tier_margin=0.3, hold_gain=0.0))
    assert policy.hold(running, 0, server()) == NOTHING_HELD
    assert policy.holding.plan is not None


def test_a_reduced_batch_is_of_one_tier_where_that_costs_little() -> None:
    # Two run at a time. The third is 8 % longer than the second, and of the tier of the first.
    requests = tiered([10, 12, 13, *range(300, 780, 40)], [2, 0, 2, *[0, 2] * 6])
    for margin, expected, grouped in ((0.0, {0, 1}, 0), (0.05, {0, 1}, 0), (0.2, {0, 2}, 1)):
        policy = policy_of(ROWS_COST, tier_margin=margin)
        assert running_of(policy, requests) == expected
        assert policy.holding.plan is not None
        assert policy.holding.plan.grouped == grouped


@given(
    st.lists(st.tuples(st.integers(1, 600), st.integers(0, 2)), min_size=4, max_size=16),
    st.floats(0.01, 0.9),
)
def test_no_answer_goes_before_one_that_is_shorter_by_more_than_the_margin(
    shapes: list[tuple[int, int]], margin: float
) -> None:
    requests = tiered(*map(list, zip(*shapes, strict=True)))
    policy = policy_of(ROWS_COST, tier_margin=margin)
    held = policy.hold(requests, 0, server())
    left = [one.most_remaining_tokens for one in requests]
    running = [tokens for index, tokens in enumerate(left) if index not in held]
    if held:
        assert (1.0 - margin) * max(running) <= min(left[index] for index in held) + 1e-9
    same = policy_of(ROWS_COST).hold(tiered([tokens for tokens, _ in shapes], [1] * len(shapes)), 0, server())
    assert len(same) >= len(held)


def test_while_a_plan_that_holds_nobody_rests_there_is_nothing_to_ask() -> None:
    policy = policy_of(FIXED_COSTS)
    running = known([10, 500, 20, 400] * 4)
    assert not policy.rests(0)
    policy.hold(running, 0, server())
    rested = [policy.rests(step) for step in range(40)]
    assert rested == [True] * 32 + [False] * 8
    holding = policy_of(ROWS_COST)
    assert holding.hold(running, 0, server())
    assert not holding.rests(1)
    assert policy_of(FIXED_COSTS, hold=False).rests(0)
