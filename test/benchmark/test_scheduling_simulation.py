"""The simulated engine keeps its books, agrees with queueing theory, and runs the server's own policy."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmark"))

from scheduling_parts import baselines, compare, measures, predict, router, scenarios, workloads
from scheduling_parts.arms import ARMS, make_policy
from scheduling_parts.cache import PrefixCache
from scheduling_parts.engine import Engine
from scheduling_parts.fleet import Fleet, run_fleet
from scheduling_parts.machine import Costs, Machine
from scheduling_parts.requests import LENGTHS, Requests

TIGHT = Machine(pool_tokens=3_000, most_running=16, chunk_tokens=256, first_ratio=0.1)


def served(
    requests: Requests, machine: Machine, arm: str = "fcfs"
) -> tuple[Engine, list[tuple[float, str, int]]]:
    log: list[tuple[float, str, int]] = []
    engine = Engine(machine, make_policy(arm), requests, log=log)
    engine.run()
    return engine, log


def made(
    rng: np.random.Generator, count: int, prompt: int, output: np.ndarray, mean_gap_ms: float
) -> Requests:
    arrival = np.cumsum(rng.exponential(mean_gap_ms, count))
    zeros, none = np.zeros(count, np.int64), np.zeros(count + 1, np.int64)
    columns = (np.full(count, prompt), output, output, zeros, zeros.astype(bool), zeros)
    return Requests(arrival, *columns, none, np.zeros(0, np.int64), 32)


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("lengths", LENGTHS)
def test_every_request_is_answered_once_and_the_books_balance(arm: str, lengths: str) -> None:
    requests = workloads.mixed(3, 150).at_rate(9.0).with_lengths(lengths)
    engine, log = served(requests, TIGHT, arm)
    finished = [index for _, what, index in log if what == "finish"]
    assert sorted(finished) == list(range(150))
    assert all(job.generated == job.output for job in engine.done)
    assert engine.totals.decoded_tokens == requests.output.sum()
    assert (
        engine.totals.prefilled_tokens + engine.totals.cached_tokens
        == requests.prompt.sum() + _contexts_computed_again(engine, requests)
    )
    assert engine.totals.most_used_tokens <= TIGHT.pool_tokens
    assert engine.cache.locked_tokens == 0
    assert engine.cache.evictable_tokens <= TIGHT.pool_tokens
    assert not engine.waiting
    assert not engine.running
    starts = [index for _, what, index in log if what == "start"]
    assert len(starts) == 150 + engine.totals.retractions
    assert [time for time, _, _ in log] == sorted(time for time, _, _ in log)


def _contexts_computed_again(engine: Engine, requests: Requests) -> int:
    """Every start computes or finds a whole context; the first is the prompt alone."""
    return sum(job.contexts_again for job in engine.done)


def test_a_small_pool_retracts_and_a_large_one_does_not() -> None:
    requests = workloads.mixed(3, 150).at_rate(9.0).with_lengths("capped")
    assert served(requests, TIGHT)[0].totals.retractions > 0
    assert served(requests, TIGHT)[0].totals.recomputed_tokens > 0
    assert served(requests, replace(TIGHT, pool_tokens=1 << 30))[0].totals.retractions == 0


def test_deterministic_service_waits_as_the_formula_of_pollaczek_and_khinchine_says() -> None:
    # one at a time: 10 ms of prefill, then 9 steps of 10 ms
    costs = Costs(0.0, 1.0, 0.0, 10.0, 0.0, 0.0)
    machine = Machine(costs=costs, most_running=1)
    requests = made(np.random.default_rng(5), 40_000, 10, np.full(40_000, 10), 100 / 0.6)
    engine, _ = served(requests, machine)
    wait = np.mean([job.longest_wait_ms for job in engine.done])
    assert wait == pytest.approx(0.6 * 100 / (2 * (1 - 0.6)), rel=0.05)


def test_geometric_service_waits_as_theory_says() -> None:
    # M/G/1 with geometric lengths: E[W] = lambda E[S^2] / (2 (1 - rho)); a step costs 10 ms, a prefill 10 ms
    rng = np.random.default_rng(6)
    output = rng.geometric(0.1, 60_000)
    machine = Machine(costs=Costs(0.0, 10.0, 0.0, 10.0, 0.0, 0.0), most_running=1)
    requests = made(rng, 60_000, 1, output, 100 / 0.5)
    engine, _ = served(requests, machine)
    service = output * 10.0
    expected = (service**2).mean() / 200 / (2 * (1 - service.mean() / 200))
    assert np.mean([job.longest_wait_ms for job in engine.done]) == pytest.approx(expected, rel=0.06)


def test_many_steps_at_once_are_the_same_as_one_by_one() -> None:
    costs = Costs(3.0, 0.7, 0.001, 5.0, 1.4, 0.01)
    by_one = sum(costs.step_ms(7, 900 + 7 * step) for step in range(37))
    assert costs.steps_ms(37, 7, 900) == pytest.approx(by_one)
    assert costs.steps_within(by_one, 7, 900) == 37
    assert costs.steps_within(by_one + 0.1, 7, 900) == 38
    assert costs.steps_within(-1.0, 7, 900) == 1


def test_an_engine_by_hand() -> None:
    # Two arrive together. One pass of 5 + 10 + 20 ms; then steps of 5 + 2 x 1 ms, then of 5 + 1.
    costs = Costs(5.0, 1.0, 0.0, 5.0, 1.0, 0.0)
    requests = workloads.listed([(0.0, 10, 3, -1), (0.0, 20, 4, -1)])
    engine, _ = served(requests, Machine(costs=costs))
    first, second = sorted(engine.done, key=lambda job: job.index)
    assert (first.first_ms, first.done_ms) == (35.0, 35.0 + 14.0)
    assert (second.first_ms, second.done_ms) == (35.0, 35.0 + 14.0 + 6.0)


def test_a_long_prompt_is_cut_into_chunks() -> None:
    costs = Costs(5.0, 1.0, 0.0, 5.0, 1.0, 0.0)
    requests = workloads.listed([(0.0, 250, 1, -1), (0.0, 30, 1, -1)])
    engine, _ = served(requests, Machine(costs=costs, chunk_tokens=100))
    by_index = sorted(engine.done, key=lambda job: job.index)
    assert [job.done_ms for job in by_index] == [105.0 * 2 + 85.0] * 2


def test_first_come_is_first_started() -> None:
    requests = workloads.mixed(4, 300).at_rate(5.0)
    _, log = served(requests, Machine(most_running=8))
    starts = [index for _, what, index in log if what == "start"]
    assert starts == sorted(starts)


@pytest.mark.parametrize("machine", [Machine(most_running=8), Machine(pool_tokens=5_000, chunk_tokens=200)])
def test_a_neutral_policy_does_what_first_come_first_served_does(machine: Machine) -> None:
    requests = workloads.mixed(4, 200).at_rate(5.0)
    assert served(requests, machine, "entropic_neutral")[1] == served(requests, machine)[1]


def test_least_recently_used_blocks_go_first_and_the_deepest_of_a_chain() -> None:
    cache = PrefixCache(100)
    for ids, sizes in (((1, 2), (30, 20)), ((1, 3), (30, 10))):
        found, tokens = cache.match(ids)
        cache.lock(ids[:found])
        cache.take(sum(sizes) - tokens)
        cache.publish(ids[found:], sizes[found:])
        cache.unlock(ids)
    assert (cache.locked_tokens, cache.evictable_tokens) == (0, 60)
    cache.take(45)
    # 5 too many: block 2 is the least recent, and 1 was read after it
    assert [cache.match((1, 2)), cache.match((1, 3))] == [(1, 30), (2, 40)]
    cache.take(30)
    assert [cache.match((1,)), cache.match((1, 3))] == [(0, 0), (0, 0)]
    with pytest.raises(RuntimeError, match="the pool has 100"):
        cache.take(30)


def test_a_block_computed_twice_is_kept_once() -> None:
    cache = PrefixCache(100)
    cache.take(60)
    cache.publish((1,), (30,))
    cache.publish((1,), (30,))
    assert cache.locked_tokens == 30
    cache.unlock((1,))
    assert cache.available_tokens == 70
    cache.unlock((1,))
    assert cache.available_tokens == 100


def starts(rows: list[tuple[float, int, int, int]], arm: str) -> list[int]:
    log = served(workloads.listed(rows), Machine(most_running=1), arm)[1]
    return [index for _, what, index in log if what == "start"]


def test_the_longest_prefix_goes_first() -> None:
    # 0 fills the cache; 1 cannot use it, 2 can
    rows = [(0.0, 100, 50, 0), (0.1, 400, 1, -1), (0.2, 100, 1, 0), (0.3, 90, 1, -1)]
    assert starts(rows, "fcfs") == [0, 1, 2, 3]
    assert starts(rows, "lpm") == [0, 2, 1, 3]


def test_the_highest_response_ratio_goes_first() -> None:
    # after 1: 2 has waited 200 of 150 tokens, 3 200 of 50, 4 none; after 3: 2 250 of 150, 4 50 of 40
    rows = [(0.0, 100, 1, -1), (0.01, 200, 1, -1), (0.02, 150, 1, -1), (0.03, 50, 1, -1), (0.15, 40, 1, -1)]
    assert starts(rows, "hrrn") == [0, 1, 3, 2, 4]


def test_an_oracle_of_lengths_lowers_the_mean_and_fair_queueing_helps_light_clients() -> None:
    machine = Machine(most_running=8)
    requests = workloads.mixed(5, 300).at_rate(3.5)

    def mean(arm: str) -> float:
        return float(
            np.mean([job.done_ms - job.arrival_ms for job in served(requests, machine, arm)[0].done])
        )

    assert mean("sjf") < 0.8 * mean("fcfs")
    requests = workloads.clients(5, 300).at_rate(3.5)

    def light(arm: str) -> float:
        engine = served(requests, machine, arm)[0]
        table = measures.rows(engine)
        return measures.summary(table, [engine.totals], requests.prompt + requests.output, requests.client)[
            "light_latency_mean_ms"
        ]

    assert light("vtc") < 0.7 * light("fcfs")


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=9).map(sorted),
    st.integers(1, 4),
    st.integers(0, 3),
)
def test_the_sum_of_ends_is_that_of_the_steps_one_by_one(lengths: list[int], size: int, waiting: int) -> None:
    left, now, total = list(lengths), 0.0, 0.0
    while left:
        rows = min(size, len(left))
        now += 5.0 + 1.4 * rows
        left = [length - (at < rows) for at, length in enumerate(left)]
        total += now * left.count(0)
        left = [length for length in left if length]
    expected = total + waiting * now
    assert baselines.ends_sum(lengths, size, 5.0, 1.4, waiting) == pytest.approx(expected)


def test_jain_is_one_when_equal_and_a_part_when_one_gets_all() -> None:
    assert measures.jain([3, 3, 3]) == pytest.approx(1.0)
    assert measures.jain([1, 0, 0, 0]) == pytest.approx(0.25)


@pytest.mark.parametrize("name", router.ROUTERS)
def test_a_fleet_answers_all_whatever_the_processes(name: str) -> None:
    requests = workloads.mixed(6, 400).at_rate(9.0)
    machine = Machine(most_running=8)
    one, two = (
        run_fleet(Fleet("fcfs", name, 4, machine, processes=processes), requests) for processes in (1, 2)
    )
    assert one["requests"] == 400
    assert {key: value for key, value in one.items() if key != "simulated_per_s"} == {
        key: value for key, value in two.items() if key != "simulated_per_s"
    }


def test_a_cache_aware_router_finds_more_in_the_caches_and_a_balancing_one_waits_less() -> None:
    requests = workloads.mixed(7, 1_500, shared=1.0, groups=40).at_rate(18.0)
    machine = Machine(most_running=8, pool_tokens=4_000)
    found = {name: run_fleet(Fleet("fcfs", name, 8, machine, 1), requests) for name in router.ROUTERS}
    assert found["cache_aware"]["cached_share"] > 1.2 * found["random"]["cached_share"]
    assert found["shortest_queue"]["latency_mean_ms"] < found["random"]["latency_mean_ms"]
    with pytest.raises(ValueError, match="no router is called best"):
        router.route("best", requests, 2, machine, 1)


def test_a_trace_is_read_scaled_and_shares_what_it_shared(tmp_path: Path) -> None:
    lines = [
        {"timestamp": 0, "input_length": 1_000, "output_length": 40, "hash_ids": [0, 1]},
        {"timestamp": 500, "input_length": 1_300, "output_length": 60, "hash_ids": [0, 1, 2]},
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    requests = workloads.trace(path, 2, 0.5, (600, 100))
    assert requests.prompt.tolist() == [500, 600]
    assert requests.output.tolist() == [20, 30]
    assert [requests.blocks(0), requests.blocks(1)] == [(0, 1), (0, 1, 2)]
    assert requests.block_tokens == 256


def test_a_prediction_states_its_error(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    content = {
        "requests": [[0.0, 10, 3, -1], [0.0, 20, 4, -1]],
        "costs": {"prefill_fixed_ms": 5.0, "decode_row_ms": 1.0, "decode_context_ms": 0.0},
        "machine": {"most_running": 8},
        "measured_latency_mean_ms": 50.0,
    }
    path.write_text(json.dumps(content))
    figures = predict.predict(path, "fcfs")
    assert figures["latency_mean_ms"] == pytest.approx(52.0)
    assert figures["sim_error"] == pytest.approx(0.04)
    path.write_text(json.dumps(content | {"costs": {"speed": 1}}))
    with pytest.raises(ValueError, match="known are prefill_fixed_ms"):
        predict.predict(path, "fcfs")


def test_a_comparison_makes_claims_and_a_tight_pool_is_tight() -> None:
    scenario = next(s for s in scenarios.catalogue(None, 1.0, (1, 1)) if s.name == "tight")
    plan = compare.Plan(("fcfs", "entropic"), Machine(), 2, 80, "half")
    samples = compare.run(plan, [scenario], 1, quiet=True)
    names = {claim.name for claim in compare.claims_of(samples, [scenario], 1)}
    assert "sim_tight_tps_vs_fcfs" in names
    assert all(sample["pool_tokens"] < Machine().pool_tokens for sample in samples)
    assert "entropic" in compare.table(samples, "tight")


def test_what_could_never_run_is_refused() -> None:
    with pytest.raises(ValueError, match="the pool has 50"):
        Engine(Machine(pool_tokens=50), baselines.Fcfs(), workloads.listed([(0.0, 60, 3, -1)]))
