"""Pace: the play against a server in small steps, when fewer at a time pay in a simulation token by token, and bounds."""

from __future__ import annotations

import dataclasses
from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_entropic.scheduling import (
    MOST_PLAYED,
    CostModel,
    EntropicPolicy,
    RequestFacts,
    SchedulingSettings,
    ServerFacts,
)
from sgl_entropic.scheduling.completion import StepCost, served_ms

MOST = 8
DEAR_PREFILL = {"prefill": (5.0, 1.0, 0.0), "decode": (5.0, 1.4, 0.0)}
FREE_PREFILL = {"prefill": (0.0, 1e-6, 0.0), "decode": (5.0, 0.01, 0.0)}


def server(step: int = 0, clock: int = 0) -> ServerFacts:
    return ServerFacts(clock, step, 100_000, 50_000, MOST)


def policy_of(costs: dict[str, tuple[float, float, float]], **changes: float) -> EntropicPolicy:
    return EntropicPolicy(SchedulingSettings(**changes), CostModel(frozen=True, **costs))


def known(prompts: list[int], answers: list[int], **changes: int) -> list[RequestFacts]:
    return [
        RequestFacts(f"{prompt}-{index}", index, prompt, answer, ignores_eos=True, **changes)
        for index, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
    ]


def token_by_token(
    running: list[int], starts: list[tuple[float, int]], at_once: int, cost: StepCost, pass_ms: float
) -> tuple[float, float]:
    """Sum of completion times and the last one, one decode step after the other."""
    clock_ms, total_ms, rows, waiting = 0.0, 0.0, list(running), deque(starts)
    while rows or waiting:
        if waiting and len(rows) < at_once:
            clock_ms += pass_ms
            while waiting and len(rows) < at_once:
                prefill_ms, tokens = waiting.popleft()
                clock_ms += prefill_ms
                rows.append(tokens)
        clock_ms += cost.step_ms(len(rows))
        rows = [left - 1 for left in rows]
        total_ms += clock_ms * rows.count(0)
        rows = [left for left in rows if left]
    return total_ms, clock_ms


@given(
    st.lists(st.integers(1, 30), max_size=6),
    st.lists(st.tuples(st.floats(0, 100), st.integers(1, 30)), max_size=8),
    st.integers(1, 9),
)
def test_the_play_is_a_server_step_by_step(
    running: list[int], starts: list[tuple[float, int]], at_once: int
) -> None:
    cost = StepCost(5.0, 1.5)
    found = served_ms(running, starts, at_once, cost, 3.0)
    assert found == pytest.approx(token_by_token(running, starts, at_once, cost, 3.0))


def mean_latency_ms(
    policy: EntropicPolicy, requests: list[RequestFacts], costs: dict[str, tuple[float, float, float]]
) -> float:
    """All ask at once; the policy says how many run, nobody decodes during a prefill."""
    (fixed, token, _), (step_fixed, row, _) = costs["prefill"], costs["decode"]
    waiting, running, ends = deque(requests), [], []
    clock_ms, step, tokens = 0.0, 0, 0
    while waiting or running:
        most = policy.most_at_once(running, list(waiting)[:MOST_PLAYED], len(waiting), server(step, tokens))
        if waiting and len(running) < most:
            clock_ms += fixed
            while waiting and len(running) < most:
                clock_ms += token * waiting[0].uncached_tokens
                tokens += waiting[0].uncached_tokens
                running.append(waiting.popleft())
                policy.observe_started(running[-1], waiting, server(step, tokens))
            continue
        policy.hold(running, len(waiting), server(step, tokens))
        clock_ms += step_fixed + row * len(running)
        step += 1
        tokens += len(running)
        running = [dataclasses.replace(one, generated_tokens=one.generated_tokens + 1) for one in running]
        ends += [clock_ms] * sum(one.most_remaining_tokens == 0 for one in running)
        running = [one for one in running if one.most_remaining_tokens]
    return float(np.mean(ends))


def test_long_prompts_with_short_answers_end_earlier_a_few_at_a_time() -> None:
    random = np.random.default_rng(0)
    requests = known(random.integers(300, 900, 24).tolist(), random.integers(5, 40, 24).tolist())
    policy = policy_of(DEAR_PREFILL, hold=False)
    for _ in range(20):
        policy.tail_wait.observe(40_000)
    paced = mean_latency_ms(policy, requests, DEAR_PREFILL)
    stock = mean_latency_ms(policy_of(DEAR_PREFILL, hold=False, pace=False), requests, DEAR_PREFILL)
    assert paced < 0.85 * stock


def test_every_place_is_filled_where_prefills_cost_nothing() -> None:
    policy = policy_of(FREE_PREFILL)
    running, waiting = known([500] * 3, [20] * 3), known([600] * 12, [20] * 12)
    assert policy.most_at_once(running, waiting, 12, server()) == MOST
    assert policy.pacing.plan is not None
    assert policy.pacing.plan.most_at_once is None


def test_off_nothing_runs_or_nobody_waits_there_is_no_plan() -> None:
    running, waiting = known([500] * 3, [20] * 3), known([600] * 12, [20] * 12)
    for policy, runs, first in (
        (policy_of(DEAR_PREFILL, pace=False), running, waiting),
        (policy_of(DEAR_PREFILL), [], waiting),
        (policy_of(DEAR_PREFILL), running, []),
    ):
        assert policy.most_at_once(runs, first, len(first), server()) == MOST
        assert policy.pacing.plan is None


def paced(policy: EntropicPolicy, first: list[RequestFacts], clock: int = 0) -> int:
    return policy.most_at_once(known([500] * 3, [6] * 3), first, len(first), server(0, clock))


def test_who_is_due_or_put_first_by_the_user_waits_for_no_plan() -> None:
    waiting = known([600] * 12, [20] * 12)
    assert paced(policy_of(DEAR_PREFILL), waiting) < MOST
    assert paced(policy_of(DEAR_PREFILL, max_wait_tokens=100), waiting, clock=100) == MOST
    assert paced(policy_of(DEAR_PREFILL), [dataclasses.replace(waiting[0], priority=1)]) == MOST
    overtaken = policy_of(DEAR_PREFILL, max_overtaken_tokens=500)
    overtaken.observe_started(known([600] * 13, [20] * 13)[12], waiting, server())
    assert paced(overtaken, waiting) == MOST


def test_a_plan_holds_for_some_steps() -> None:
    policy = policy_of(DEAR_PREFILL)
    running, waiting = known([500] * 3, [6] * 3), known([600] * 12, [20] * 12)
    policy.most_at_once(running, waiting, 12, server(step=100))
    for step, made in ((100, 100), (107, 100), (108, 108), (3, 3)):
        policy.most_at_once(running, waiting, 12, server(step=step))
        assert policy.pacing.plan is not None
        assert policy.pacing.plan.decode_step == made


def test_runners_that_are_always_about_to_end_keep_nobody_out_for_long() -> None:
    """Only short answers were seen, and what runs is long: each plan promises ends that do not come."""
    policy = policy_of(DEAR_PREFILL, max_held_steps=64)
    for index in range(80):
        policy.belief.observe_finished(RequestFacts(f"s{index}", index, 60, 32), 6, hit_limit=False)
    running = [RequestFacts(f"r{index}", index, 60, 4096, generated_tokens=5) for index in range(4)]
    waiting = [RequestFacts("w", 9, 600, 32)]
    kept_out = 0
    for step in range(400):
        most = policy.most_at_once(running, waiting, 1, server(step, 4 * step))
        if most > len(running):
            break
        kept_out += 1
        running = [dataclasses.replace(one, generated_tokens=one.generated_tokens + 1) for one in running]
    assert 8 <= kept_out <= 64 + 8


def test_one_that_is_due_behind_an_older_one_waits_for_no_plan() -> None:
    waiting = known([600] * 12, [20] * 12)
    waiting[0] = dataclasses.replace(waiting[0], waits_since_tokens=300)
    assert paced(policy_of(DEAR_PREFILL, max_wait_tokens=100), waiting, clock=350) == MOST


def test_one_that_has_waited_long_for_this_traffic_waits_for_no_plan() -> None:
    policy = policy_of(DEAR_PREFILL)
    for _ in range(400):
        policy.tail_wait.observe(600)
    waiting = known([600] * 12, [20] * 12)
    assert paced(policy, waiting, clock=150) < MOST
    # The learnt tail lies about the one wait that was seen.
    assert paced(policy, waiting, clock=600) == MOST
    waiting[1:] = [dataclasses.replace(one, waits_since_tokens=600) for one in waiting[1:]]
    assert paced(policy, waiting, clock=600) == MOST


lengths = st.tuples(st.integers(1, 3000), st.integers(0, 500))


@given(
    st.lists(lengths, min_size=1, max_size=MOST),
    st.lists(lengths, min_size=1, max_size=MOST_PLAYED),
    st.integers(0, 1000),
    st.tuples(st.floats(0, 50), st.floats(0, 5), st.floats(0, 1e-3)),
    st.sampled_from(["known", "hidden"]),
)
def test_at_least_one_and_at_most_all(
    running: list[tuple[int, int]],
    waiting: list[tuple[int, int]],
    behind: int,
    prefill: tuple[float, float, float],
    kind: str,
) -> None:
    policy = policy_of({"prefill": prefill, "decode": (5.0, 1.4, 0.001)}, hold_gain=0.0)
    runs, first = (
        [
            dataclasses.replace(one, ignores_eos=kind == "known")
            for one in known(*map(list, zip(*group, strict=True)))
        ]
        for group in (running, waiting)
    )
    most = policy.most_at_once(runs, first, len(first) + behind, server())
    assert 1 <= most <= MOST
    assert policy.pacing.plan is not None
    assert 0.0 <= policy.pacing.plan.gain < 1.0
