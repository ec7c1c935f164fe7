"""The policy as a whole: optimal where optimality is known, neutral where asked, and unchanged by explaining."""

import itertools
import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl_entropic.errors import ConfigError
from sgl_entropic.scheduling import (
    CostModel,
    EntropicPolicy,
    RequestFacts,
    SchedulingSettings,
    ServerFacts,
)

SERVER = ServerFacts(
    token_clock=5000, decode_steps=0, pool_tokens=100_000, free_tokens=50_000, most_running=1
)
REQUESTS = st.builds(
    lambda prompt, most, generated, cached, priority, queued, known: (
        prompt, most, generated, cached, priority, queued, known,
    ),
    st.integers(1, 3000), st.integers(1, 500), st.integers(0, 20), st.integers(0, 3000), st.just(0),
    st.integers(0, 5000), st.booleans(),
)  # fmt: skip


def queue_of(rows: list[tuple[int, ...]]) -> list[RequestFacts]:
    return [
        RequestFacts(
            str(index), index, prompt, most, generated, min(cached, prompt + generated),
            ignores_eos=bool(known), priority=priority, waits_since_tokens=queued, arrived_at_tokens=queued,
        )
        for index, (prompt, most, generated, cached, priority, queued, known) in enumerate(rows)
    ]  # fmt: skip


def mean_end_ms(order: tuple[int, ...] | list[int], costs: list[float]) -> float:
    return sum(itertools.accumulate(costs[index] for index in order)) / len(costs)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 2000), st.integers(1, 300)), min_size=2, max_size=6))
def test_one_server_without_ageing_has_the_least_mean_latency_of_all_orders(
    requests: list[tuple[int, int]],
) -> None:
    cost = CostModel(frozen=True)
    policy = EntropicPolicy(SchedulingSettings(ageing=0.0, beta=0.0, gamma=0.0, hold=False), cost)
    waiting = queue_of([(prompt, most, 0, 0, 0, 5000, 1) for prompt, most in requests])
    costs = [
        cost.prefill_marginal_ms(float(prompt), float(prompt))
        + most * cost.decode_fixed_ms
        + most * (cost.decode_row_ms + cost.decode_context_token_ms * (prompt + most / 2.0))
        for prompt, most in requests
    ]
    best = min(mean_end_ms(order, costs) for order in itertools.permutations(range(len(costs))))
    assert mean_end_ms(policy.order(waiting, SERVER), costs) == pytest.approx(best)


@given(st.lists(REQUESTS, max_size=10), st.randoms())
def test_neutral_settings_are_first_come_first_served(rows: list[tuple[int, ...]], random) -> None:
    policy = EntropicPolicy(SchedulingSettings.neutral())
    waiting = queue_of(rows)
    random.shuffle(waiting)
    for request in waiting[:3]:
        policy.observe_started(request, waiting, SERVER)
    order = policy.order(waiting, SERVER)
    assert [waiting[index].arrival for index in order] == sorted(request.arrival for request in waiting)
    assert policy.hold(waiting, 3, SERVER) == frozenset()


@given(st.lists(REQUESTS, max_size=10))
def test_decisions_are_permutations_and_the_same_for_every_rank(rows: list[tuple[int, ...]]) -> None:
    waiting = queue_of(rows)
    orders = [EntropicPolicy().order(waiting, SERVER) for _ in range(2)]
    kept = [EntropicPolicy().retraction_order(waiting, SERVER) for _ in range(2)]
    assert orders[0] == orders[1]
    assert kept[0] == kept[1]
    assert sorted(orders[0]) == sorted(kept[0]) == list(range(len(waiting)))


def test_the_users_priority_comes_first() -> None:
    rows = [(10, 10, 0, 0, 0, 0, 1), (3000, 500, 0, 0, 2, 0, 1), (2000, 400, 0, 0, 1, 0, 1)]
    server = ServerFacts(10**9, 0, 100_000, 0, 8)
    assert EntropicPolicy().order(queue_of(rows), server) == [1, 2, 0]


def test_a_cached_prefix_a_higher_flow_and_a_longer_wait_each_help() -> None:
    policy = EntropicPolicy()
    base = {"prompt_tokens": 500, "max_new_tokens": 100, "waits_since_tokens": 4000}
    plain = policy.score(RequestFacts("a", 0, **base), SERVER).value
    better = (
        RequestFacts("cached", 0, cached_tokens=400, **base),
        RequestFacts("flow", 0, flow_nats=3.0, **(base | {"generated_tokens": 50, "max_new_tokens": 150})),
        RequestFacts("old", 0, **(base | {"waits_since_tokens": 0})),
        RequestFacts("short", 0, **(base | {"max_new_tokens": 10})),
    )
    assert [request.key for request in better if policy.score(request, SERVER).value <= plain] == []


def test_explaining_changes_no_decision() -> None:
    policies = EntropicPolicy(), EntropicPolicy()
    rows = [(100 * (i % 7 + 1), 50 * (i % 5 + 1), 0, 0, 0, 10 * i, i % 2) for i in range(30)]
    waiting = queue_of(rows)
    running = [RequestFacts(f"r{i}", 100 + i, 50, 100, 5) for i in range(4)]
    orders: list[list[list[int]]] = [[], []]
    for clock in range(5000, 9000, 500):
        server = ServerFacts(clock, clock, 100_000, 50_000, 4)
        for policy, taken in zip(policies, orders, strict=True):
            if policy is policies[0]:
                for request in (waiting[3], waiting[20], running[1]):
                    json.dumps(policy.explain(request, waiting, running, server))
            taken.append(policy.order(waiting, server))
            policy.observe_finished(RequestFacts(f"f{clock}", clock, 64, 500, 40), hit_limit=False)
            policy.observe_started(waiting[taken[-1][0]], waiting, server)
    assert orders[0] == orders[1]


def test_explain_says_where_a_request_stands_and_why() -> None:
    policy = EntropicPolicy(SchedulingSettings(max_wait_tokens=4000))
    waiting = queue_of([(2000, 400, 0, 0, 0, 500, 1), (10, 10, 0, 0, 0, 4500, 1)])
    old, young = (policy.explain(request, waiting, [], SERVER) for request in waiting)
    assert (old["rank"], old["due"], old["due_by"], old["due_within_tokens"]) == (
        0,
        True,
        ["max_wait_tokens"],
        0,
    )
    assert (young["rank"], young["due"], young["due_within_tokens"]) == (1, False, 3500)
    assert young["value"] > old["value"]
    assert {"compute_ms", "memory_ms", "latency_ms", "flow_nats", "remaining_tokens"} <= young.keys()
    running = [RequestFacts("r", 3, 50, 100, 5), RequestFacts("s", 4, 50, 400, 5)]
    shown = policy.explain(running[0], waiting, running, SERVER)
    assert (shown["state"], shown["retraction_rank"]) == ("running", 0)


def test_a_thousand_waiting_are_ranked_quickly() -> None:
    policy = EntropicPolicy()
    waiting = queue_of([(10 + 7 * (i % 200), 50 + i % 300, 0, 0, 0, i, i % 2) for i in range(1000)])
    took_ms = []
    for _ in range(15):
        start = time.perf_counter()
        policy.order(waiting, SERVER)
        took_ms.append((time.perf_counter() - start) * 1e3)
    # 1 ms is the aim, and the benchmark's to judge; here a bound that a busy machine keeps.
    assert min(took_ms) < 3.0


def test_nothing_is_kept_of_requests_that_are_gone() -> None:
    policy = EntropicPolicy()
    waiting = queue_of([(100, 50, 0, 0, 0, 0, 1)] * 20)
    policy.order(waiting, SERVER)
    policy.observe_started(waiting[19], waiting[:19], SERVER)
    for request in waiting[:10]:
        policy.observe_aborted(request)
    for request in waiting[10:]:
        policy.observe_finished(request, hit_limit=True)
    assert (len(policy.overtaking), len(policy._cache)) == (0, 0)


def test_a_caller_that_forgets_to_report_ends_does_not_make_the_cache_grow() -> None:
    policy = EntropicPolicy()
    for batch in range(12):
        policy.order([RequestFacts(f"{batch} {i}", i, 10, 10) for i in range(1000)], SERVER)
    assert len(policy._cache) < 10_000


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alpha": -1.0}, r"scheduling.alpha is -1.0: it has to be finite and at least 0"),
        ({"ageing": float("nan")}, r"scheduling.ageing is nan"),
        ({"max_held_steps": 0}, r"scheduling.max_held_steps is 0: it has to be at least 1"),
        ({"wait_quantile": 1.0}, r"scheduling.wait_quantile is 1.0: it has to be below 1"),
    ],
)
def test_settings_that_mean_nothing_are_refused(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SchedulingSettings(**changes)
