"""The order within budgets: against its definition, request by request."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sgl_entropic.scheduling import RequestFacts
from sgl_entropic.scheduling.clients import HORIZON_TOKENS, MOST_CLIENTS, ClientCounters
from sgl_entropic.scheduling.fairness import Overtaking, bounded_order
from sgl_entropic.scheduling.waits import TailWait

Queue = list[tuple[int, float, float, float]]
QUEUES = st.lists(
    st.tuples(st.integers(0, 2), st.floats(0.0, 10.0), st.integers(1, 50), st.integers(-10, 200)),
    min_size=1,
    max_size=12,
)


def ordered(queue: Queue, arrival: list[int]) -> list[int]:
    columns = np.array(queue, dtype=np.float64).reshape(-1, 4)
    return bounded_order(
        columns[:, 0], np.array(arrival, float), columns[:, 1], columns[:, 2], columns[:, 3]
    ).tolist()


@given(QUEUES, st.randoms())
def test_no_request_is_overtaken_beyond_its_budget(queue: Queue, random) -> None:
    arrival = list(range(len(queue)))
    random.shuffle(arrival)
    order = ordered(queue, arrival)
    assert sorted(order) == arrival_sorted(queue)
    assert [queue[i][0] for i in order] == sorted((priority for priority, *_ in queue), reverse=True)
    for place, index in enumerate(order):
        priority, _, _, budget = queue[index]
        ahead = sum(
            queue[other][2]
            for other in order[:place]
            if arrival[other] > arrival[index] and queue[other][0] == priority
        )
        assert ahead <= max(0.0, budget)


def arrival_sorted(queue: Queue) -> list[int]:
    return list(range(len(queue)))


@given(QUEUES, st.randoms())
def test_wide_budgets_leave_the_order_of_scores(queue: Queue, random) -> None:
    arrival = list(range(len(queue)))
    random.shuffle(arrival)
    free = [(priority, score, work, 1e9) for priority, score, work, _ in queue]
    by_score = sorted(arrival_sorted(queue), key=lambda i: (-queue[i][0], -queue[i][1], arrival[i]))
    assert ordered(free, arrival) == by_score


def test_due_requests_go_first_in_order_of_arrival() -> None:
    queue = [(0, 9.0, 5, 100.0), (0, 1.0, 5, 0.0), (0, 2.0, 5, 0.0), (0, 5.0, 5, 100.0)]
    assert ordered(queue, [3, 1, 0, 2]) == [2, 1, 0, 3]


def test_what_is_older_than_a_due_request_is_as_due() -> None:
    queue = [(0, 0.1, 5, 100.0), (0, 1.0, 5, 0.0), (0, 9.0, 5, 100.0)]
    assert ordered(queue, [0, 1, 2]) == [0, 1, 2]


def test_overtaking_counts_later_arrivals_of_no_greater_priority() -> None:
    overtaking = Overtaking()
    old, young, low = (
        RequestFacts("old", 0, 10, 10),
        RequestFacts("young", 5, 10, 10),
        RequestFacts("low", 1, 10, 10, priority=-1),
    )
    overtaking.observe_started(RequestFacts("starter", 3, 10, 10), [old, young, low], 20.0)
    assert [overtaking.tokens(key) for key in ("old", "young", "low")] == [20.0, 0.0, 0.0]
    overtaking.forget("old")
    overtaking.forget("never seen")
    assert len(overtaking) == 0


def test_the_tail_wait_is_the_quantile() -> None:
    rng, tail = np.random.default_rng(0), TailWait(0.95)
    estimates = []
    for wait in rng.exponential(5000.0, 20_000):
        tail.observe(float(wait))
        estimates.append(tail.tokens)
    assert np.median(estimates[5000:]) == np.float64(np.median(estimates[5000:]))
    assert 0.8 < np.median(estimates[5000:]) / (5000.0 * np.log(20.0)) < 1.25


def test_clients_are_neutral_until_two_wait() -> None:
    counters = ClientCounters()
    counters.charge("a", 1e6)
    counters.charge(None, 1e6)
    assert counters.factors([None, None]).tolist() == [1.0, 1.0]
    assert counters.factors(["a", None, "a"]).tolist() == [1.0, 1.0, 1.0]


def test_the_client_served_less_gains_within_bounds() -> None:
    counters = ClientCounters()
    counters.factors(["heavy", "light"])
    counters.charge("heavy", 100 * HORIZON_TOKENS)
    heavy, unknown, light = counters.factors(["heavy", None, "light"]).tolist()
    assert (heavy, unknown, light) == (0.5, 1.0, 2.0)


def test_idling_saves_up_nothing() -> None:
    counters = ClientCounters()
    counters.factors(["a", "b", "idle"])
    for _ in range(10):
        counters.charge("a", 50_000.0)
        counters.charge("b", 50_000.0)
        counters.factors(["a", "b"])
    factors = counters.factors(["a", "b", "idle"])
    assert factors.tolist() == [1.0, 1.0, 1.0]


def test_invented_clients_take_no_more_memory() -> None:
    counters = ClientCounters()
    for number in range(MOST_CLIENTS + 10):
        counters.charge(f"client {number}", float(number + 1))
    assert len(counters._served) <= MOST_CLIENTS
