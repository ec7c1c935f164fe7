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

from scheduling_parts import (
    baselines,
    compare,
    fleet,
    measured,
    measures,
    predict,
    router,
    scenarios,
    workloads,
)
from scheduling_parts.arms import ARMS, make_policy
from scheduling_parts.cache import PrefixCache
from scheduling_parts.engine import Engine
from scheduling_parts.entropic import Entropic
from scheduling_parts.fleet import Fleet, run_fleet
from scheduling_parts.machine import Costs, Machine
from scheduling_parts.requests import LENGTHS, Requests

from sgl_entropic.scheduling import SchedulingSettings

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
    times = ("simulated_per_s", "wall_s")
    assert {key: value for key, value in one.items() if key not in times} == {
        key: value for key, value in two.items() if key not in times
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


def test_copies_of_a_trace_share_texts_within_a_copy_only(tmp_path: Path) -> None:
    lines = [
        {"timestamp": 100 * at, "input_length": 1_000, "output_length": 40, "hash_ids": [0, at + 1]}
        for at in range(10)
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    requests = workloads.many_traces(path, 35, 1.0, (2_000, 100), seed=3)
    assert len(requests) == 35
    assert (np.diff(requests.arrival_ms) >= 0).all()
    assert 0 <= requests.arrival_ms.min() <= requests.arrival_ms.max() <= 35_000
    firsts = [requests.blocks(at)[0] for at in range(35)]
    assert sorted(firsts.count(one) for one in set(firsts)) == [5, 10, 10, 10]
    assert len({requests.blocks(at) for at in range(35)}) == 35


def test_a_fleet_is_asked_as_much_as_its_load_says_and_states_ratios() -> None:
    many = Fleet("fcfs", "cache_aware", 3, Machine(most_running=8), processes=1)
    requests, where, _ = fleet.routed(many, workloads.mixed(8, 600), 1.0)
    served = {
        arm: fleet.serve(replace(many, arm=arm), requests, where) for arm in ("fcfs", "hrrn", "entropic")
    }
    span_s = (requests.arrival_ms[-1] - requests.arrival_ms[0]) / 1000
    assert served["fcfs"].figures["requests_per_s"] == pytest.approx(600 / span_s, rel=0.15)
    assert all(one.ends[-1] == len(one.latency_ms) == 600 for one in served.values())
    claims = {one.name: one for one in fleet.claims_of(served, 1)}
    means = [served[arm].figures["latency_mean_ms"] for arm in ("entropic", "hrrn")]
    ratio = claims["sim_fleet_mean_vs_hrrn"]
    assert ratio.value == pytest.approx(means[0] / means[1])
    assert ratio.low <= ratio.value <= ratio.high
    assert {"sim_fleet_p99_vs_hrrn", "sim_fleet_wall_s"} <= claims.keys()


def test_an_overlapping_schedule_shows_tokens_a_pass_late_and_runs_a_step_too_many() -> None:
    costs = Costs(5.0, 1.0, 0.0, 5.0, 1.0, 0.0)
    requests = workloads.listed([(0.0, 10, 3, -1), (0.0, 20, 4, -1)])
    engine, _ = served(requests, Machine(costs=costs, overlaps=True))
    first, second = sorted(engine.done, key=lambda job: job.index)
    # One pass of 35 ms, then three steps of two rows and one of one; the last of each is the one too many.
    assert (first.first_ms, first.done_ms) == (35.0 + 7.0, 35.0 + 3 * 7.0)
    assert (second.first_ms, second.done_ms) == (35.0 + 7.0, 35.0 + 3 * 7.0 + 6.0)
    assert [first.generated, second.generated] == [3, 4]
    assert engine.cache.locked_tokens == 0


def sampled(
    requests: Requests, machine: Machine, arm: str, load: str, overhead_ms: float
) -> dict[str, object]:
    """What ``scheduling.py`` would have written if the real server were the simulated one."""
    engine, _ = served(requests, machine, arm)
    jobs = sorted(engine.done, key=lambda job: job.index)
    return {
        "workload": load,
        "arm": arm,
        "round": 0,
        "asked_s": [job.arrival_ms / 1000 for job in jobs],
        "ttft_s": [(job.first_ms - job.arrival_ms + overhead_ms) / 1000 for job in jobs],
        "latency_s": [(job.done_ms - job.arrival_ms + overhead_ms) / 1000 for job in jobs],
        "prompt_tokens": requests.prompt.tolist(),
        "cached_tokens": [job.prompt - job.uncached for job in jobs],
        "output_tokens": requests.output.tolist(),
        "most_new": requests.most_new.tolist(),
        "hidden": (~requests.ignores_eos).astype(int).tolist(),
        "kind": [f"shared_{job.ids[0] // 4096}" if job.shared else "own" for job in jobs],
        "tau_nats": (0.5 * (requests.output - 1)).tolist(),
    }


def test_a_run_of_the_simulator_is_foreseen_by_the_simulator(tmp_path: Path) -> None:
    costs = Costs(0.0, 0.6, 0.0, 6.0, 1.3, 0.001)
    machine = Machine(costs=costs, most_running=8, chunk_tokens=4_096, overlaps=True)
    samples = [
        sampled(workloads.mixed(seed, 120).at_rate(rate), machine, arm, load, 20.0)
        for seed, load, rate in ((1, "mixed_0.8", 3.0), (2, "mixed_1.2", 4.5))
        for arm in predict.ARMS
    ]
    path = tmp_path / "scheduling.json"
    content = {"samples": samples, "settings": {"max_running_requests": 8}, "commit": "c", "date": "d"}
    path.write_text(json.dumps(content))
    found = predict.predict(path, replace(machine, costs=Costs()))
    read, overhead_ms = Costs(**found["costs"]["costs"]), found["costs"]["overhead_ms"]
    # The fixed part and that of rows are hard to tell apart where batches resemble one another; their sum is
    # not.
    assert read.step_ms(6, 900) == pytest.approx(costs.step_ms(6, 900), rel=0.05)
    assert read.prefill_token_ms == pytest.approx(0.6, rel=0.1)
    assert overhead_ms == pytest.approx(20.0, abs=4.0)
    claims = {one.name: one.value for one in predict.claims_of(found, 1)}
    assert claims["sim_error"] < 0.05
    assert claims["sim_ratio_error"] < 0.05
    assert "entropic / hrrn" in predict.table(found)
    json.dumps(found)


def test_a_slow_sample_is_known_by_its_decoding() -> None:
    machine = Machine(costs=Costs(0.0, 0.6, 0.0, 6.0, 1.3, 0.001), most_running=8, overlaps=True)
    requests = workloads.mixed(1, 120).at_rate(3.0)
    fast = sampled(requests, machine, "fcfs", "mixed_0.8", 20.0)
    slow = sampled(requests, replace(machine, costs=machine.costs.slower(1.3)), "fcfs", "mixed_0.8", 20.0)
    fitted = measured.fit([fast], 8)
    assert measured.slowness(fast, fitted, 8) == pytest.approx(1.0, abs=0.03)
    assert measured.slowness(slow, fitted, 8) == pytest.approx(1.3, abs=0.05)


def test_a_file_without_the_arms_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "scheduling.json"
    path.write_text(json.dumps({"samples": [], "settings": {"max_running_requests": 8}}))
    with pytest.raises(ValueError, match=r"no samples of \[\('mixed_0.8', 'entropic'\)"):
        predict.predict(path, Machine())
    with pytest.raises(ValueError, match="costs cannot be read from 0 requests"):
        measured.fit([], 8)


def test_what_is_foreseen_is_left_out_only_where_all_fits_anyway() -> None:
    class Asked(Entropic):
        def reserve(self, engine: Engine) -> float:
            self._foresees = True
            return float(self._peak(engine, ()))

    requests = workloads.mixed(4, 200).at_rate(6.0)
    for pool_tokens in (3_000, 6_000, 20_000):
        machine = Machine(most_running=8, pool_tokens=pool_tokens, chunk_tokens=200)
        logs: list[list[tuple[float, str, int]]] = [[], []]
        for kind, log in zip((Asked, Entropic), logs, strict=True):
            Engine(machine, kind(SchedulingSettings()), requests, log=log).run()
        assert logs[0] == logs[1]


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
