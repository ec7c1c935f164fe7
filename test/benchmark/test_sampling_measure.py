"""Measures of steered sampling against truths worked out by hand; an arm that is missing or fails is an error."""

from __future__ import annotations

import ctypes
import json
import math
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmark"))

import sampling_control
from sampling_parts import cost, measures, mirostat, mirostat_worker, report, schemas
from sampling_parts.arms import Variant, constant_of, end_ids, read_prompts
from sampling_parts.client import Answer, AnswerError, answer_of, body_of
from sampling_parts.matching import MatchError, Range, match_temperature
from sampling_parts.measures import MeasureError

PointerType = ctypes.POINTER(ctypes.c_float)

# ---------------------------------------------------------------------------------------------------- of one answer


def test_distance_mean_and_swing_leave_out_the_first_tokens() -> None:
    values = [9.0, 9.0, 1.0, 3.0, 1.0, 3.0]
    # About the target 1: distances 0, 2, 0, 2, so the root of 2. About the mean 2: all 1.
    assert measures.rms_from(values, 1.0, skip=2) == pytest.approx(math.sqrt(2.0))
    assert measures.mean(values, skip=2) == 2.0
    assert measures.oscillation(values, skip=2) == 1.0


@given(st.lists(st.floats(0, 10), min_size=1, max_size=50), st.floats(0, 10))
def test_squared_distance_is_bias_squared_and_variance(values: list[float], target: float) -> None:
    bias = measures.mean(values, 0) - target
    swing = measures.oscillation(values, 0)
    assert measures.rms_from(values, target, 0) == pytest.approx(math.hypot(bias, swing), abs=1e-9)


@pytest.mark.parametrize("values", [[], [1.0, 2.0], [1.0, 2.0, math.nan]])
def test_what_holds_no_value_has_no_measure(values: list[float]) -> None:
    with pytest.raises(MeasureError):
        measures.rms_from(values, 1.0, skip=2)


@pytest.mark.parametrize(
    ("entropies", "tokens"),
    [
        ([1.0] * 6, 4),  # at once: the first mean of four is after four tokens
        # Means of four: 2.5, 2, 1.5, 1, 1. The band is 0.8 to 1.2, so the fourth mean, after seven tokens.
        ([3.0, 3.0, 3.0, 1.0, 1.0, 1.0, 1.0, 1.0], 7),
        # 1, then 1.5, 1.5, 1.5, 1.5, then 1: it left the band again, so what was before does not count.
        ([1.0, 1.0, 1.0, 1.0, 3.0, 1.0, 1.0, 1.0, 1.0], 9),
        ([1.0] * 7 + [3.0], None),  # the last mean is 1.5
    ],
)
def test_settling_is_the_last_time_it_comes_into_the_band(entropies: list[float], tokens: int | None) -> None:
    assert measures.settling_tokens(entropies, 1.0, window=4, band=0.2) == tokens


def test_too_few_tokens_cannot_settle() -> None:
    with pytest.raises(MeasureError):
        measures.settling_tokens([1.0] * 3, 1.0, window=4)


def test_share_of_flags() -> None:
    assert measures.share([True, False, False, True]) == 0.5
    with pytest.raises(MeasureError):
        measures.share([])


def test_repeated_and_distinct_n_grams() -> None:
    # Bigrams 12, 23, 31, 12, 23: three different ones of five.
    assert measures.distinct([1, 2, 3, 1, 2, 3], 2) == 3 / 5
    assert measures.repetition([1, 2, 3, 1, 2, 3], 2) == pytest.approx(2 / 5)
    # 4-grams of "abababab": abab, baba, abab, baba, abab.
    assert measures.repetition([1, 2] * 4, 4) == pytest.approx(3 / 5)
    assert measures.repetition(range(9), 4) == 0.0
    assert measures.repetition([1, 2, 3], 4) is None


@pytest.mark.parametrize(
    ("ids", "cycle"),
    [
        ([5] * 8, True),  # period 1
        ([9, 9, *[1, 2, 3] * 3], True),  # the last 8: period 3, cut anywhere
        ([1, 2, 3, 4, 1, 2, 3, 4], True),  # the longest period
        ([1, 2, 3, 4, 5, 1, 2, 3], False),  # period 5 is too long
        ([1, 1, 1, 1, 1, 1, 1, 2], False),  # left it with the last token
        ([5] * 8 + [1, 2, 3, 4, 5, 6, 7, 8], False),  # a cycle before the last 8
    ],
)
def test_a_cycle_is_exact_and_at_the_end(ids: list[int], *, cycle: bool) -> None:
    assert measures.ends_in_cycle(ids, window=8, most_period=4) is cycle


def test_short_text_shows_no_cycle() -> None:
    with pytest.raises(MeasureError):
        measures.ends_in_cycle([5] * 7, window=8, most_period=4)


def test_text_until_the_model_ends_it() -> None:
    assert measures.until([4, 5, 2, 6, 2], [2, 7]) == [4, 5]
    assert measures.until([4, 5], [2]) == [4, 5]


def test_perplexity_of_even_choices_is_their_number() -> None:
    assert measures.geometric_mean([math.log(8.0)] * 5) == pytest.approx(8.0)


# ------------------------------------------------------------------------------------------------------- intervals


def test_a_ratio_is_of_means_and_geometric_over_targets() -> None:
    # Means 2 over 4 and 8 over 1: root of 0.5 times 8.
    value, (low, high) = measures.ratio_interval([[1.0, 3.0], [8.0, 8.0]], [[4.0, 4.0], [1.0, 1.0]], seed=1)
    assert value == pytest.approx(2.0)
    # The two prompts drawn twice each: 1 over 4 and 3 over 4.
    assert (low, high) == (pytest.approx(math.sqrt(0.25 * 8)), pytest.approx(math.sqrt(0.75 * 8)))


def test_a_prompt_is_drawn_with_both_sides() -> None:
    # Prompts differ a thousandfold, the ratio not at all.
    one, other = [[1.0, 10.0, 1000.0]], [[2.0, 20.0, 2000.0]]
    assert measures.ratio_interval(one, other, seed=1) == (0.5, (pytest.approx(0.5), pytest.approx(0.5)))
    same = measures.difference_interval([[1.0, 0.0, 1.0]], [[1.0, 0.0, 1.0]], seed=1)
    assert same == (0.0, (0.0, 0.0))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([[1.0, 2.0]], [[1.0]]),
        ([[1.0, 2.0]], [[0.0, 0.0]]),
        ([[1.0, math.nan]], [[1.0, 2.0]]),
        ([[]], [[]]),
        ([], []),
        ([[1.0], [1.0]], [[1.0]]),
    ],
)
def test_no_ratio_of_what_is_not_there(one: list[list[float]], other: list[list[float]]) -> None:
    with pytest.raises(MeasureError):
        measures.ratio_interval(one, other, seed=1)


def test_interval_of_a_mean_is_within_the_values() -> None:
    value, (low, high) = measures.mean_interval([1.0, 2.0, 6.0], seed=1)
    assert value == 3.0
    assert 1.0 <= low < 3.0 < high <= 6.0


# ---------------------------------------------------------------------------------------------- constant temperature

WITHIN = Range(low=0.05, high=20.0, step=1.25, tolerance=0.001, most_steps=20)


@given(st.floats(0.1, 10.0), st.floats(0.2, 5.0))
def test_the_constant_has_the_wanted_mean(temperature: float, start: float) -> None:
    # As bent as the real curve: almost nothing, then almost everything.
    def mean_at(at: float) -> float:
        return 10.0 / (1.0 + at**-4)

    found = match_temperature(mean_at, mean_at(temperature), start, Range(0.05, 20.0, 1.25, 0.001, 60))
    assert found.gap <= 0.001
    assert found.mean_nats == mean_at(found.temperature)


def test_the_nearest_is_taken_when_steps_run_out() -> None:
    found = match_temperature(lambda at: at, 3.0, 1.0, Range(0.05, 20.0, 2.0, 0.001, 2))
    assert found.tried == [(1.0, 1.0), (2.0, 2.0)]
    assert (found.temperature, found.gap) == (2.0, pytest.approx(1 / 3))


@pytest.mark.parametrize("mean_nats", [0.5, 9.0, math.nan])
def test_a_goal_out_of_range_is_an_error(mean_nats: float) -> None:
    with pytest.raises(MatchError):
        match_temperature(lambda _: mean_nats, 2.0, 1.0, Range(0.5, 2.0, 1.5, 0.01, 20))


# ------------------------------------------------------------------------------------------------- the server's answers


def content(**readings: Any) -> dict[str, Any]:
    columns = {name: [1.0, 2.0] for name in ("sampled_entropy_nats", "entropy_nats", "surprisal_nats")}
    return {"output_ids": [4, 5], "meta_info": {"entropic": {**columns, **readings}}}


def test_answers_are_read() -> None:
    controlled = content(saturated=[False, True], temperature=[1.0, 1.5])
    assert answer_of(controlled, 2, controlled=True).saturated == [False, True]
    assert answer_of(controlled, 2, controlled=True).temperature == [1.0, 1.5]
    assert answer_of(content(), 2, controlled=False).sampled_nats == [1.0, 2.0]


@pytest.mark.parametrize(
    ("given_", "tokens", "controlled"),
    [
        (content(), 3, False),  # too short
        (content(sampled_entropy_nats=[1.0, None]), 2, False),  # undefined
        (content(surprisal_nats=[1.0]), 2, False),  # a reading is missing
        ({"output_ids": [4, 5], "meta_info": {}}, 2, False),  # no readings
        (content(), 2, True),  # the controller did not act
        (content(saturated=[True, True]), 2, False),  # it acted though not asked to
    ],
)
def test_a_wrong_answer_is_an_error(given_: dict[str, Any], tokens: int, *, controlled: bool) -> None:
    with pytest.raises(AnswerError):
        answer_of(given_, tokens, controlled=controlled)


def test_a_variant_says_what_it_asks_for() -> None:
    bounds = {"max_temperature_scale": 4.0}
    newton = Variant.of("newton@0.5")
    assert newton.name == "newton@0.5"
    assert newton.asked(2.0, bounds) == {
        "target_entropy_nats": 2.0,
        "sampling_mode": "newton",
        "sampling_actuator": "temperature",
        "sampling_gain": 0.5,
        "max_temperature_scale": 4.0,
    }
    body = body_of([1], 8, 1.0, Variant.of("exact:min_p").asked(2.0, bounds))
    asked = body["sampling_params"]["custom_params"]["entropic"]
    assert asked["sampling_actuator"] == "min_p"
    assert "max_temperature_scale" not in asked
    for wrong in ("pid", "exact:top_p", "fixed@much"):
        with pytest.raises(ValueError, match=wrong.partition("@")[2] or wrong):
            Variant.of(wrong)


def test_prompts_and_end_tokens_are_read_from_files(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"turns": ["a", "b"]}\n{"question": "c", "answer": "d"}\n')
    assert read_prompts(rows, 2) == ["a", "c"]
    plain = tmp_path / "plain.txt"
    plain.write_text("one\n\ntwo\n")
    assert read_prompts(plain, 2) == ["one", "two"]
    with pytest.raises(ValueError, match="2 prompts, 3 are needed"):
        read_prompts(plain, 3)
    rows.write_text('{"answer": "d"}\n')
    with pytest.raises(ValueError, match="turns"):
        read_prompts(rows, 1)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 2]}')
    assert end_ids(tmp_path, type("Tokenizer", (), {"eos_token_id": 2})) == [2, 7]


@pytest.mark.parametrize(
    ("text", "reason", "outcome"),
    [
        ('{"a": 1}', "stop", "valid"),
        ('{"a": "x"}', "stop", "unlike_schema"),
        ("{", "stop", "malformed"),
        ('{"a": 1}', "length", "cut"),
    ],
)
def test_outcome_of_a_document(text: str, reason: str, outcome: str) -> None:
    choice = {"finish_reason": reason, "message": {"content": text}}
    assert schemas.outcome_of(choice, {"properties": {"a": {"type": "integer"}}}) == outcome


# --------------------------------------------------------------------------------------------------------------- cost


def test_a_round_goes_there_and_back_and_turns() -> None:
    assert cost.visits(["off", "on"], 0) == ["off", "on", "on", "off"]
    assert cost.visits(["off", "on"], 1) == ["on", "off", "off", "on"]


def rates(arm: str, values: list[float]) -> list[cost.Sample]:
    return [{"round": at, "clients": 8, "arm": arm, "tokens_per_s": v} for at, v in enumerate(values)]


def test_cost_is_a_ratio_of_the_same_round() -> None:
    samples = rates("exact", [9.0, 90.0]) + rates(cost.OFF, [10.0, 100.0])
    assert cost.ratios(samples, "exact", 8) == [0.9, 0.9]
    (one,) = report.cost_claims(samples, "exact", seed=1)
    assert (one.name, one.value, one.ok) == ("sampling_tps_ratio_8", 0.9, False)
    for broken in (rates("exact", [9.0]) + rates(cost.OFF, [10.0, 100.0]), rates(cost.OFF, [10.0])):
        with pytest.raises(AnswerError):
            cost.ratios(broken, "exact", 8)


# ----------------------------------------------------------------------------------------------------------- Mirostat


def test_mirostat_is_replayed_in_bits() -> None:
    # Probabilities 1/2, 1/4, 1/8, 1/8: surprises 1, 2, 3, 3 bits.
    logits = np.log(np.array([0.5, 0.25, 0.125, 0.125], np.float32))
    one = mirostat_worker.drawn(logits, token=1, mu_bits=2.5)
    # Kept are the first two, 2/3 and 1/3.
    expected = -(2 / 3 * math.log(2 / 3) + 1 / 3 * math.log(1 / 3))
    assert (one.kept, one.inside) == (2, True)
    assert one.sampled_nats == pytest.approx(expected, abs=1e-6)
    assert one.model_nats == pytest.approx(1.75 * math.log(2.0), abs=1e-6)
    assert one.surprisal_nats == pytest.approx(math.log(4.0), abs=1e-6)
    assert one.observed_bits == pytest.approx(math.log2(3.0), abs=1e-6)
    # Too surprising by log2 3 - 1 bits: a tenth of it is taken back.
    mu_bits = mirostat_worker.next_mu_bits(2.5, one.observed_bits, tau_bits=1.0, eta=0.1)
    assert mu_bits == pytest.approx(2.5 - 0.1 * (math.log2(3.0) - 1.0))
    assert mirostat.tau_bits(2.0 * math.log(2.0)) == pytest.approx(2.0)


def test_mirostat_keeps_the_likeliest_and_tells_a_token_that_it_cannot_have_drawn() -> None:
    logits = np.log(np.array([0.5, 0.5 - 1e-3, 1e-3], np.float32))
    alone = mirostat_worker.drawn(logits, token=0, mu_bits=-1.0)
    assert (alone.kept, alone.sampled_nats, alone.observed_bits) == (1, 0.0, 0.0)
    assert not mirostat_worker.drawn(logits, token=2, mu_bits=2.0).inside


def mirostat_rows(**changes: Any) -> list[dict[str, Any]]:
    tau = mirostat.tau_bits(2.0)
    return [{"tau_bits": tau, "prompt": at, "ids": [1, 2], "outside": 0, **changes} for at in (1, 0)]


def test_mirostat_answers_are_complete_and_fit_the_replay() -> None:
    job = mirostat.Job([[1], [2]], [2.0], tokens=2, eta=0.1, seed=1)
    assert [row["prompt"] for row in mirostat.by_target(mirostat_rows(), job)[2.0]] == [0, 1]
    for broken in (mirostat_rows()[:1], mirostat_rows(ids=[1]), mirostat_rows(outside=1)):
        with pytest.raises(AnswerError):
            mirostat.by_target(broken, job)


def test_mirostat_state_goes_on_from_token_to_token(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = (ctypes.c_float * 4)(*np.log([0.5, 0.25, 0.125, 0.125]))
    library = types.SimpleNamespace(llama_get_logits_ith=lambda ctx, at: ctypes.cast(logits, PointerType))
    monkeypatch.setitem(sys.modules, "llama_cpp", library)
    model = types.SimpleNamespace(
        set_seed=lambda seed: None,
        ctx=None,
        n_vocab=lambda: 4,
        generate=lambda prompt, **how: iter([1, 0, 3]),
    )
    row = mirostat_worker.answer(model, [9], {"eta": 1.0, "tokens": 2}, 1.1, seed=1)
    # From 2.2 bits, where two tokens are left, by log2 3 - 1.1 to 1.715, where one is.
    assert row["ids"] == [1, 0]
    assert row["sampled_nats"] == [pytest.approx(0.636514, abs=1e-5), 0.0]
    assert row["outside"] == 0


# ------------------------------------------------------------------------------------------------------ rows and claims


def answer(swing: float, ids: list[int], *, controlled: bool = False) -> Answer:
    count = len(ids)
    sampled = [2.0 + (swing if at % 2 else -swing) for at in range(count)]
    flags = [at % 4 == 0 for at in range(count)] if controlled else []
    return Answer(ids, sampled, [3.0] * count, [math.log(8.0)] * count, flags, [1.0] * len(flags))


def test_rows_hold_what_the_measures_say() -> None:
    row = report.tracking_row(answer(0.5, list(range(64)), controlled=True), 2.0)
    assert row["rms_nats"] == row["oscillation_nats"] == 0.5
    assert (row["mean_nats"], row["saturated_share"], row["settling_tokens"]) == (2.0, 0.25, 16)
    assert row["surprisal_rms_nats"] == pytest.approx(math.log(8.0) - 2.0)
    assert report.tracking_row(answer(0.5, list(range(64))), 2.0)["saturated_share"] is None


def test_a_text_that_ended_before_its_cycle_is_no_loop_to_a_user() -> None:
    looped, ended = (report.text_row(answer(0.0, [*ids, *[5] * 64]), [0]) for ids in ([], [1, 2, 3, 0]))
    assert (looped["loop"], looped["loop_to_end"], looped["tokens_to_end"]) == (1.0, 1.0, 64)
    assert (ended["loop"], ended["loop_to_end"], ended["tokens_to_end"]) == (1.0, 0.0, 3)
    assert ended["repetition_4_to_end"] is None
    made = report.summary([looped, ended], seed=1)
    assert made["perplexity"]["value"] == pytest.approx(8.0)
    assert made["repetition_4_to_end"]["prompts"] == 1


def options(*more: str) -> Any:
    given_ = [
        "--prompts",
        "p.jsonl",
        "--tokens",
        "64",
        "--match-tokens",
        "40",
        "--arms",
        "exact",
        "fixed",
        *more,
    ]
    return sampling_control.checked(sampling_control.parser(), given_)


def filled(asked: Any) -> sampling_control.Findings:
    found = sampling_control.Findings()
    swings = {"exact": 0.1, "fixed": 0.3, constant_of(Variant.of("exact")): 0.5, "mirostat": 0.4}
    for arm, swing in swings.items():
        for target in asked.targets:
            one = answer(swing, [5] * 64 if arm.startswith("constant") else list(range(64)))
            row = {**report.tracking_row(one, 2.0), **report.text_row(one, [0])}
            found.rows.setdefault(arm, {})[target] = [dict(row) for _ in range(3)]
    found.cost = rates("exact", [9.9, 99.0]) + rates(cost.OFF, [10.0, 100.0])
    found.schemas = {"exact": ["valid", "cut"], constant_of(Variant.of("exact")): ["cut", "cut"]}
    return found


def test_claims_are_of_the_first_variant_against_its_constant() -> None:
    asked = options("--parts", "tracking", "text", "cost", "mirostat")
    made, beside = sampling_control.claims_of(asked, filled(asked))
    assert {one.name: round(one.value, 6) for one in made} == {
        "sampling_rms_vs_fixed": 0.2,
        "sampling_rms_vs_mirostat": 0.25,
        "sampling_oscillation_vs_fixed": 0.2,
        "sampling_loop_rate_vs_fixed": -1.0,
        "sampling_tps_ratio_8": 0.99,
    }
    assert all(one.ok for one in made)
    assert beside["sampling_rms_vs_fixed"]["1.5"]["value"] == pytest.approx(0.2)
    assert beside["schemas_valid_share"]["difference"]["value"] == 0.5


def test_a_missing_or_undefined_arm_is_no_claim() -> None:
    asked = options("--parts", "tracking", "text")
    for arm in ("exact", constant_of(Variant.of("exact"))):
        empty, undefined = filled(asked), filled(asked)
        del empty.rows[arm]
        undefined.rows[arm][1.5][0]["rms_nats"] = None
        for found in (empty, undefined):
            with pytest.raises(MeasureError):
                sampling_control.claims_of(asked, found)


def test_tables_show_every_arm_and_results_are_json() -> None:
    asked = options()
    found = filled(asked)
    lines = report.table(report.summaries(found.rows, seed=1)).splitlines()
    assert len(lines) == 1 + 4 * 3
    packed = json.loads(json.dumps(report.packed(found.rows), allow_nan=False))
    assert (packed[0]["arm"], packed[0]["rms_nats"], packed[0]["saturated_share"]) == (
        "exact",
        "0.1 0.1 0.1",
        "- - -",
    )


@pytest.mark.parametrize(
    "wrong",
    [
        ["--arms", "exact", "exact"],
        ["--match", "newton"],
        ["--match", "fixed"],
        ["--targets", "0"],
        ["--tokens", "50"],
        ["--match-tokens", "32"],
        ["--parts", "mirostat"],
        ["--parts", "cost", "--schemas", "s.jsonl"],
    ],
)
def test_options_that_contradict_each_other_are_refused(wrong: list[str]) -> None:
    with pytest.raises(SystemExit):
        options(*wrong)


class FakeAsker:
    """A model whose entropy is twice its temperature, and a controller that holds any target exactly."""

    url = "http://nowhere"

    def __init__(self) -> None:
        self.asked: list[tuple[int, float, bool]] = []

    def answers(self, tokens: int, temperature: float, asked: dict[str, Any] | None = None) -> list[Answer]:
        self.asked.append((tokens, temperature, asked is not None))
        nats = asked["target_entropy_nats"] if asked else 2.0 * temperature
        flags = [False] * tokens if asked else []
        ids = list(range(tokens))
        return [Answer(ids, [nats] * tokens, [3.0] * tokens, [1.0] * tokens, flags, [1.0] * len(flags))] * 2


def test_a_run_measures_every_arm_and_matches_at_the_full_length(tmp_path: Path) -> None:
    asked, asker = options("--parts", "tracking", "text", "--targets", "1.5", "3"), FakeAsker()
    run = sampling_control.Run(asked, asker, [0], tmp_path, {"seed": 1})  # type: ignore[arg-type]
    run.all({}, [])
    constant = constant_of(Variant.of("exact"))
    assert list(run.findings.rows) == ["exact", constant, "fixed"]
    for target, match in run.findings.matches[constant].items():
        assert match.temperature == pytest.approx(target / 2.0, rel=0.02)
        assert run.findings.rows[constant][target][0]["mean_nats"] == 2.0 * match.temperature
    # The search is short, controlled answers and the last constants are not.
    assert {tokens for tokens, _, controlled in asker.asked if controlled} == {64}
    assert {tokens for tokens, _, controlled in asker.asked if not controlled} == {40, 64}
    partial = json.loads((tmp_path / "sampling_control.partial.json").read_text())
    assert {row["arm"] for row in partial["rows"]} == {"exact", "fixed", constant}
