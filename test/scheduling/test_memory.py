"""The peak of KV need against a simulation token by token."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sgl_entropic.scheduling import CostModel, EntropicPolicy, RequestFacts, ServerFacts
from sgl_entropic.scheduling.memory import peak_growth_tokens, victim_value
from sgl_entropic.scheduling.traffic import Columns

SERVER = ServerFacts(token_clock=0, decode_steps=0, pool_tokens=10_000, free_tokens=5_000, most_running=8)


def simulated_peak(remaining: list[int], private: list[int]) -> int:
    held = dict(enumerate(private))
    start = sum(private)
    peak = start
    for step in range(1, max(remaining, default=0) + 1):
        held = {index: tokens + 1 for index, tokens in held.items() if remaining[index] >= step}
        peak = max(peak, sum(held.values()))
    return peak - start


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 60)), min_size=1, max_size=8))
def test_the_peak_is_that_of_a_simulation(requests: list[tuple[int, int]]) -> None:
    remaining = np.array([[float(left) for left, _ in requests]])
    private = np.array([float(tokens) for _, tokens in requests])
    assert peak_growth_tokens(remaining, private).tolist() == [
        simulated_peak(*map(list, zip(*requests, strict=True)))
    ]


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 60)), max_size=8))
def test_known_lengths_are_admitted_for_exactly(requests: list[tuple[int, int]]) -> None:
    running = [
        RequestFacts(str(index), index, tokens, left, ignores_eos=True)
        for index, (left, tokens) in enumerate(requests)
    ]
    peak = simulated_peak([left for left, _ in requests], [tokens for _, tokens in requests])
    assert EntropicPolicy().admission_tokens(running, SERVER) == peak


def test_unknown_lengths_are_given_a_margin_below_their_limits() -> None:
    policy = EntropicPolicy()
    for length in np.random.default_rng(0).geometric(1 / 100, 500).tolist():
        policy.belief.observe_finished(RequestFacts("f", 0, 50, 4096), length, hit_limit=False)
    running = [RequestFacts(str(index), index, 50, 4096) for index in range(16)]
    rng = np.random.default_rng(1)
    peaks = [simulated_peak(rng.geometric(1 / 100, 16).tolist(), [50] * 16) for _ in range(200)]
    kept = policy.admission_tokens(running, SERVER)
    assert np.mean(peaks) < kept < 16 * 4096
    assert np.mean(np.array(peaks) <= kept) > 0.7


def test_victims_free_much_for_long_and_are_cheap_to_recompute() -> None:
    cost = CostModel(frozen=True)
    policy = EntropicPolicy(cost=cost)
    long = RequestFacts("long", 0, 100, 500, 10, ignores_eos=True)
    nearly_done = RequestFacts("nearly done", 1, 100, 500, 490, ignores_eos=True)
    shared = RequestFacts("shared", 2, 100, 500, 10, cached_tokens=109, ignores_eos=True)
    running = [long, nearly_done, shared]
    columns = Columns.of(running, policy.belief.groups)
    value = victim_value(columns, policy.belief.expected_many(columns), cost)
    assert value[0] > value[1]
    assert value[0] > value[2]
    order = policy.retraction_order(running, SERVER)
    assert running[order[-1]] is long
    assert sorted(order) == [0, 1, 2]


def test_the_users_priority_and_then_the_oldest_are_kept() -> None:
    policy = EntropicPolicy()
    server = ServerFacts(policy.settings.max_wait_tokens + 10, 0, 10_000, 0, 8)
    running = [
        RequestFacts("young", 4, 10, 50, arrived_at_tokens=1000),
        RequestFacts("old", 1, 500, 4096, arrived_at_tokens=5),
        RequestFacts("oldest", 0, 900, 4096, arrived_at_tokens=0),
        RequestFacts("important", 5, 900, 4096, priority=1, arrived_at_tokens=1000),
    ]
    assert [running[index].key for index in policy.retraction_order(running, server)] == [
        "important",
        "oldest",
        "old",
        "young",
    ]
