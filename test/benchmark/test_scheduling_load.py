"""The load of the scheduling benchmark: what is asked, what counts as an answer, fairness, and the claims' arithmetic."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmark"))

import scheduling
from scheduling_load import claims, client, inprocess, measures, runner, servers, workloads
from scheduling_load.asks import HEAVY, Ask, Lengths, limit_of, poisson
from scheduling_load.workloads import Maker
from twin_parts import mooncake


class Words:
    """Prompts of which one word is one token."""

    def text(self, tokens: int, *key: object) -> str:
        return "".join(f" {'.'.join(map(str, key))}-{at}" for at in range(tokens))

    def count(self, text: str) -> int:
        return len(text.split())


def maker(*key: object) -> Maker:
    return Maker(Words(), key or (1, 0, "load"))


# ------------------------------------------------------------------------------------------------------ what is asked


def test_arrivals_have_the_rate_and_the_scatter_of_a_poisson_process() -> None:
    times = poisson(np.random.default_rng(1), 20_000, 4.0)
    gaps = np.diff(times)
    assert times[0] >= 0.0
    assert times[-1] <= 20_000 / 4.0
    assert (gaps >= 0.0).all()
    assert gaps.mean() == pytest.approx(0.25, rel=0.01)
    # Exponential gaps scatter as much as they are long on average.
    assert gaps.std() == pytest.approx(0.25, rel=0.05)


@given(median=st.floats(1, 500), sigma=st.floats(0, 2), least=st.integers(2, 50), more=st.integers(0, 500))
def test_lengths_stay_within_their_limits(median: float, sigma: float, least: int, more: int) -> None:
    drawn = Lengths(median, sigma, least, least + more).draw(np.random.default_rng(0), 50)
    assert drawn.min() >= least
    assert drawn.max() <= least + more


def test_the_median_length_is_the_one_named() -> None:
    assert np.median(Lengths(64, 1.0, 1, 10**6).draw(np.random.default_rng(1), 40_000)) == pytest.approx(
        64, rel=0.03
    )


@given(st.integers(1, 4096))
def test_a_limit_is_the_power_of_two_that_leaves_room_for_twice_the_answer(length: int) -> None:
    limit = limit_of(length)
    assert 2 * length <= limit < 4 * length
    assert limit & (limit - 1) == 0
    assert length < limit_of(length, 1.0) <= 2 * length


@pytest.mark.parametrize(
    "build",
    [
        lambda one: one.mixed(60, 2.0),
        lambda one: one.flood(60, 2.0),
        lambda one: one.clients(10.0, 2000.0),
        lambda one: one.tight(40, 2),
    ],
)
def test_a_load_is_the_same_for_every_arm_and_another_in_every_round(build) -> None:
    assert build(maker(1, 0, "x")) == build(maker(1, 0, "x"))
    assert build(maker(1, 0, "x")) != build(maker(1, 1, "x"))
    assert build(maker(1, 0, "x")) != build(maker(2, 0, "x"))
    for ask in build(maker()):
        assert Words().count(ask.prompt) == ask.prompt_tokens
        assert ask.most_new == (limit_of(ask.output_tokens) if ask.hidden else ask.output_tokens)


def test_a_mixed_load_shares_prefixes_and_hides_half_of_its_lengths() -> None:
    asks = maker().mixed(1000, 5.0)
    shared = [ask for ask in asks if ask.kind.startswith("shared")]
    assert len(shared) / len(asks) == pytest.approx(0.3, abs=0.05)
    assert {ask.kind for ask in shared} == {f"shared_{i}" for i in range(workloads.PREFIXES)}
    heads = {" ".join(ask.prompt.split()[: workloads.PREFIX_TOKENS]) for ask in shared}
    assert len(heads) == workloads.PREFIXES
    assert sum(ask.hidden for ask in asks) / len(asks) == pytest.approx(0.5, abs=0.05)
    assert asks[-1].at_s == pytest.approx(200.0, rel=0.05)
    assert [ask.at_s for ask in asks] == sorted(ask.at_s for ask in asks)


def test_a_flood_has_cold_requests_all_along_that_share_nothing() -> None:
    asks = maker().flood(100, 10.0)
    cold = [ask for ask in asks if ask.kind == "cold"]
    hot = [ask for ask in asks if ask.kind == "hot"]
    assert (len(cold), len(hot)) == (10, 90)
    assert len({" ".join(ask.prompt.split()[: workloads.PREFIX_TOKENS]) for ask in hot}) == 1
    assert not {ask.prompt.split()[0] for ask in cold} & {ask.prompt.split()[0] for ask in hot}
    assert np.allclose(np.diff([ask.at_s for ask in cold]), 1.0)


def test_the_heavy_client_asks_at_once_and_the_light_ones_early_enough_to_be_served() -> None:
    asks = maker().clients(15.0, 6000.0)
    heavy = [ask for ask in asks if ask.kind == HEAVY]
    light = [ask for ask in asks if ask.kind != HEAVY]
    assert {ask.at_s for ask in heavy} == {0.0}
    assert sum(ask.output_tokens for ask in heavy) == pytest.approx(6000, rel=0.25)
    assert {ask.kind for ask in light} == {"light_0", "light_1", "light_2"}
    assert max(ask.at_s for ask in light) <= 15.0 - workloads.LIGHT_EVERY_S


def test_a_replay_tells_the_server_one_limit_and_keeps_shared_blocks() -> None:
    rows = [
        {"timestamp": at, "input_length": 1024, "output_length": 10, "hash_ids": [0, at + 1]}
        for at in range(0, 3000, 1000)
    ]
    asks = maker().trace(rows, mooncake.Scale(0.05, 2.0, 512, 128), limit=256)
    assert [ask.at_s for ask in asks] == [0.0, 0.5, 1.0]
    assert {(ask.most_new, ask.hidden, ask.output_tokens) for ask in asks} == {(256, True, 2)}
    first, second = (ask.prompt.split() for ask in asks[:2])
    assert first[:26] == second[:26]
    assert first[26:] != second[26:]


def test_a_tight_pool_is_a_share_of_the_need_and_holds_any_one_request() -> None:
    whole = workloads.tight_pool_tokens(100, 1.0)
    assert workloads.tight_pool_tokens(100, 0.4) == pytest.approx(0.4 * whole, abs=1)
    assert workloads.tight_pool_tokens(1, 0.1) > workloads.TIGHT_PROMPTS.most + workloads.TIGHT_ANSWERS.most


# ------------------------------------------------------------------------------------------------ what is an answer

ASK = Ask(0.0, " a b", 2, 4, 8, hidden=True, kind="cold")


def event(text: str, tokens: int, reason: str | None = None, rid: str = "r") -> bytes:
    info: dict[str, Any] = {"id": rid, "completion_tokens": tokens, "prompt_tokens": 2, "cached_tokens": 1}
    info["finish_reason"] = reason and {"type": reason}
    if reason:
        info["entropic"] = {"summary": {"tau_nats": 1.5}}
    return b"data: " + json.dumps({"text": text, "meta_info": info}).encode()


DONE = b"data: [DONE]"
GOOD = [event("1", 1), event("23", 3), event("", 4, "stop"), DONE]


def read(lines: list[bytes], ask: Ask = ASK) -> client.Answer:
    return client._read(
        ask, "r", 0.5, [(float(i + 1), line) for i, line in enumerate(lines)], 9.0, is_open=True
    )


def test_an_answer_tells_when_its_tokens_came() -> None:
    answer = read(GOOD)
    assert (answer.ttft_s, answer.latency_s, answer.tau_nats, answer.cached_tokens) == (1.0, 9.0, 1.5, 1)
    assert [answer.tokens_until(at) for at in (0.5, 1.0, 2.5, 3.0)] == [0, 1, 3, 4]


@pytest.mark.parametrize(
    "lines",
    [
        [],
        GOOD[:-1],
        [*GOOD[:2], DONE],
        [event("1", 1), event("23", 3), event("", 3, "stop"), DONE],
        [event("1", 1), event("2x", 3), event("", 4, "stop"), DONE],
        [event("1", 1), event("23", 3, rid="other"), event("", 4, "stop"), DONE],
        [event("1", 1), event("23", 3, "stop"), event("", 4, "stop"), DONE],
        [event("1", 3), event("23", 1), event("", 4, "stop"), DONE],
        [event("1", 1), event("23", 3), event("", 4, "length"), DONE],
        [event("1", 1), event("23", 3), event("", 4, "abort"), DONE],
        [b'data: {"error": {"message": "no"}}', DONE],
        [b"data: {", DONE],
    ],
)
def test_what_is_not_one_whole_answer_is_an_error(lines: list[bytes]) -> None:
    with pytest.raises(client.LoadError):
        read(lines)


def test_the_three_kinds_of_request_say_how_they_end() -> None:
    hidden, exact = (replace(ASK, hidden=flag).body("r", 1.0)["sampling_params"] for flag in (True, False))
    assert (hidden["regex"], "ignore_eos" in hidden) == ("[0-9]{3}", False)
    assert (exact["ignore_eos"], "regex" in exact) == (True, False)
    unsaid = replace(ASK, hidden=False, never_token_id=2).body("r", 1.0)["sampling_params"]
    assert unsaid["logit_bias"] == {"2": -100.0}
    assert not {"ignore_eos", "regex"} & set(unsaid)


def test_requests_of_a_client_name_it() -> None:
    light = replace(ASK, kind="light_2").body("r", 1.0)["sampling_params"]
    assert light["custom_params"] == {"entropic": {"client_id": "light_2"}}
    assert "custom_params" not in ASK.body("r", 1.0)["sampling_params"]


# ------------------------------------------------------------------------------------------------ figures and claims


def test_jain_is_one_for_equals_and_falls_to_one_over_n() -> None:
    assert measures.jain([3.0, 3.0, 3.0]) == pytest.approx(1.0)
    assert measures.jain([0.0, 0.0, 5.0, 0.0]) == pytest.approx(0.25)
    assert measures.jain([1.0, 2.0]) == pytest.approx(0.9)
    for none in ([], [0.0, 0.0]):
        with pytest.raises(ValueError, match="not all 0"):
            measures.jain(none)


@given(st.lists(st.floats(0.01, 1e6), min_size=1, max_size=9), st.floats(0.1, 10))
def test_jain_lies_between_its_bounds_and_knows_no_unit(shares: list[float], factor: float) -> None:
    index = measures.jain(shares)
    assert 1 / len(shares) - 1e-9 <= index <= 1 + 1e-9
    assert index == pytest.approx(measures.jain([factor * share for share in shares]))


def answer(kind: str, latency_s: float, tokens: int = 4, asked_s: float = 0.0) -> client.Answer:
    ask = replace(ASK, kind=kind, output_tokens=tokens, most_new=limit_of(tokens), at_s=asked_s)
    times = tuple(asked_s + latency_s * (i + 1) / tokens for i in range(tokens))
    return client.Answer(ask, asked_s, times, tuple(range(1, tokens + 1)), asked_s + latency_s, 0, 0, 2.0)


COUNTS = dict.fromkeys(servers.COUNTED, 0)


def sample(load: str, arm: str, number: int, answers: list[client.Answer], **counts: int) -> measures.Sample:
    made = measures.sample_of(answers, {**COUNTS, **counts}, 4.0)
    return json.loads(json.dumps({"round": number, "workload": load, "arm": arm, **made}))


def test_service_is_the_share_of_what_a_client_asked_for() -> None:
    answers = [answer("heavy", 8.0, 8), answer("light_0", 2.0), answer("light_0", 4.0)]
    assert measures.satisfied(answers, 4.0) == {"heavy": 0.5, "light_0": 1.0}
    assert measures.satisfied(answers, 2.0) == {"heavy": 0.25, "light_0": 0.75}
    assert measures.speeds(answers) == {"heavy": 1.0, "light_0": pytest.approx(8 / 6)}


def test_figures_of_a_load() -> None:
    one = sample(
        "flood", "lpm", 0, [answer("hot", 1.0), answer("cold", 4.0), answer("cold", 8.0)], recomputed_tokens=7
    )
    figures = measures.figures_of([one, one])
    assert figures["latency_mean_s"] == pytest.approx(13 / 3)
    assert figures["tokens_per_s"] == pytest.approx(24 / 16)
    assert figures["window_tokens_per_s"] == pytest.approx((4 + 4 + 2) / 4)
    assert figures["tau_nats_per_s"] == pytest.approx(6 / 8)
    assert figures["window_tau_nats_per_s"] == pytest.approx(4 / 4)
    assert (figures["cold_longest_ttft_s"], figures["recomputed_tokens"]) == (2.0, 14.0)
    assert "jain_speed" not in figures


def test_a_load_asked_at_once_has_figures_too() -> None:
    made = measures.sample_of([answer("own", 2.0), answer("own", 4.0)], COUNTS)
    figures = measures.figures_of([made])
    assert (figures["window_tokens_per_s"], figures["tokens_per_s"]) == (0.0, 2.0)


def test_capacity_is_what_busy_clients_got() -> None:
    answers = [answer("own", 1.0), answer("own", 1.0, asked_s=1.0), answer("own", 4.0, asked_s=2.0)]
    found = runner.capacity_of(answers)
    assert (found["output_tokens_per_s"], found["requests_per_s"], found["measured_s"]) == (4.0, 1.0, 2.0)


def mixed_samples(
    ours: list[float], others: list[float], loads: tuple[str, ...] = workloads.MIXED
) -> list[Any]:
    return [
        sample(load, arm, number, [answer("own", seconds)])
        for load in loads
        for arm, values in (("entropic", ours), ("fcfs", others))
        for number, seconds in enumerate(values)
    ]


def test_a_claim_is_a_ratio_of_the_same_rounds() -> None:
    # Rounds differ tenfold, the arms by a half in each of them.
    made, beside, missing = claims.claims_of(mixed_samples([1.0, 10.0, 3.0], [2.0, 20.0, 6.0]), seed=1)
    (one,) = made
    assert (one.name, one.bar, one.ok, missing) == ("sched_mean_vs_fcfs", "<= 0.80", True, [])
    assert [one.value, one.low, one.high] == pytest.approx([0.5, 0.5, 0.5])
    assert beside["sched_mean_vs_fcfs"]["mixed_0.8"] == pytest.approx([0.5, 0.5, 0.5])


def test_two_loads_are_joined_by_their_geometric_mean() -> None:
    samples = mixed_samples([1.0], [4.0], workloads.MIXED[:1]) + mixed_samples(
        [1.0], [1.0], workloads.MIXED[1:]
    )
    (one,), beside, _ = claims.claims_of(samples, seed=1)
    assert one.value == pytest.approx(math.sqrt(0.25))
    assert beside["sched_mean_vs_fcfs"]["mixed_1.2"][0] == pytest.approx(1.0)


def test_one_load_of_two_makes_no_claim_and_a_missing_round_is_an_error() -> None:
    assert claims.claims_of(mixed_samples([1.0], [1.0], workloads.MIXED[:1]), seed=1)[0] == []
    made, _, missing = claims.claims_of(mixed_samples([1.0, 1.0], [1.0]), seed=1)
    assert made == []
    assert "rounds of entropic and fcfs" in missing[0]


def test_recomputed_tokens_are_compared_only_where_there_are_any() -> None:
    def samples(counts: dict[str, list[int]]) -> list[Any]:
        return [
            sample("tight", arm, number, [answer("tight", 1.0)], recomputed_tokens=value)
            for arm, values in counts.items()
            for number, value in enumerate(values)
        ]

    made, _, _ = claims.claims_of(samples({"entropic": [10, 20], "fcfs": [100, 0]}), seed=1)
    recomputed = {one.name: one for one in made}["sched_tight_recompute_vs_fcfs"]
    assert (recomputed.value, recomputed.ok) == (pytest.approx(0.3), True)
    made, _, missing = claims.claims_of(samples({"entropic": [10, 20], "fcfs": [0, 0]}), seed=1)
    assert [one.name for one in made] == ["sched_tight_tps_vs_fcfs"]
    assert "nothing to divide by" in missing[0]


def test_the_policy_must_have_acted_in_its_arm_and_nowhere_else() -> None:
    acted = {**COUNTS, servers.ACTED: 3}
    servers.require_acted({"fcfs": COUNTS, "entropic": acted})
    for wrong in ({"fcfs": COUNTS, "entropic": COUNTS}, {"fcfs": acted, "entropic": acted}):
        with pytest.raises(servers.ArmError):
            servers.require_acted(wrong)


def test_the_table_shows_every_load_and_arm() -> None:
    content = claims.tables(mixed_samples([1.0, 2.0], [2.0, 4.0]))
    lines = claims.table(content).splitlines()
    assert [line.split()[:3] for line in lines[1:3]] == [
        ["mixed_0.8", "entropic", "1.50"],
        ["mixed_0.8", "fcfs", "3.00"],
    ]


def test_a_belief_that_has_seen_lengths_by_kind_foresees_them() -> None:
    # Short prompts have short answers, long prompts long ones; one after another, so that each is learnt in time.
    answers = []
    for at in range(200):
        one = answer("own", 0.5, 8 if at % 2 else 128, asked_s=float(at))
        tokens = 4 if at % 2 else 100
        answers.append(replace(one, ask=replace(one.ask, prompt_tokens=tokens, most_new=512)))
    found = inprocess.foreseen([{**measures.sample_of(answers, COUNTS)}])
    assert found["0"] > 0.7
    assert set(found) == {"0", "0.25", "0.5"}


def test_a_pass_is_timed_over_a_full_queue() -> None:
    taken = inprocess.rank_ms(1, passes=3)
    assert len(taken) == 3
    assert min(taken) > 0.0


# --------------------------------------------------------------------------------------------------- command line


@pytest.mark.parametrize(
    "arguments",
    [
        ["--workloads", "trace"],
        ["--rounds", "0"],
        ["--flood-load", "0"],
        ["--tight-requests", "16"],
        ["--capacity-requests", "20", "--max-running-requests", "16"],
    ],
)
def test_contradictions_are_refused(arguments: list[str], capsys) -> None:
    with pytest.raises(SystemExit):
        scheduling.checked(scheduling.parser(), arguments)
    assert "error:" in capsys.readouterr().err


def test_without_a_trace_all_other_loads_run() -> None:
    options = scheduling.checked(scheduling.parser(), [])
    assert set(options.workloads) == set(workloads.NAMES) - {workloads.TRACE}
    assert options.tight_clients == 24
