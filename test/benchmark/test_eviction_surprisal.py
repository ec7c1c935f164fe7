"""Does surprisal help eviction: traces as promised, readings those of transformers, placebos of the same values, figures by hand."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmark"))

import eviction_surprisal
from attention_quality_parts.model import Model
from eviction_surprisal_parts import figures, loads, readings, replays, texts

from sgl_entropic.models import resolve_model_path

MODEL = Path(resolve_model_path(None))
SIZES = loads.Sizes(chats=30, examples=60, schemas=50)


def made(start: int, tokens: int) -> texts.Ids:
    return tuple(range(start, start + tokens))


PROBLEMS = tuple(
    texts.Problem(made(10_000 + 200 * n, 20), made(10_100 + 200 * n, 9), (9, 7)) for n in range(40)
)
TEXTS = texts.Texts(
    system=made(1, 5),
    problems=PROBLEMS,
    chats=tuple((made(30_000 + 100 * n, 15), made(30_050 + 100 * n, 8)) for n in range(12)),
    examples=tuple(texts.Examples(made(50_000 + 100 * n, 70), PROBLEMS[n : n + 9]) for n in range(4)),
    schemas=tuple(made(60_000, 10) + made(61_000 + 100 * n, 50 + n) for n in range(9)),
    wanted=(made(70_000, 6), made(70_100, 7)),
    documents=tuple(made(80_000, 4) + made(81_000 + 200 * n, 90) for n in range(20)),
    asked=tuple(made(90_000 + 20 * n, 6) for n in range(5)),
)
ANSWERS = tuple(made(40_000 + 50 * n, 11) for n in range(12))


def drawn(load: str, number: int = 0) -> list[loads.Ask]:
    return loads.draw(load, TEXTS, ANSWERS, SIZES, (1, number))


def values_of(asks: list[loads.Ask], seed: int = 0) -> dict[str, float]:
    names = dict.fromkeys(name for ask in asks for name in readings.names_of(ask.prompt + ask.answer))
    return dict(zip(names, np.random.default_rng(seed).lognormal(size=len(names)).tolist(), strict=True))


# ------------------------------------------------------------------------------------------------------------- requests


@settings(max_examples=10)
@given(number=st.integers(0, 99))
def test_the_mix_is_all_kinds_in_order_of_time(number: int) -> None:
    mix = drawn(loads.MIX, number)
    alone = [ask for kind in loads.KINDS for ask in drawn(kind, number)]
    assert Counter(mix) == Counter(alone)
    assert mix == sorted(mix, key=lambda ask: ask.at_s)
    assert all(0 <= ask.at_s < loads.SPAN_S for ask in mix)
    assert mix == drawn(loads.MIX, number)


def test_a_chat_goes_on_with_all_that_was_said_and_some_ask_once() -> None:
    asks = drawn(loads.CHAT)
    assert all(ask.prompt[:5] == TEXTS.system for ask in asks)
    first = {ask.prompt: ask for ask in asks if len(ask.prompt) in (5 + 20, 5 + 15)}
    later = [ask for ask in asks if ask.prompt not in first]
    went_on = set()
    for ask in later:
        begins = [one for prompt, one in first.items() if ask.prompt[: len(prompt)] == prompt]
        assert len(begins) == 1
        begin = begins[0]
        assert ask.at_s > begin.at_s
        said = begin.prompt + begin.answer
        assert ask.prompt[: len(said)] == said
        went_on.add(begin.prompt)
    assert 0 < len(went_on) < len(first)


def test_popular_prompts_are_asked_more_often_and_others_by_another_draw() -> None:
    by_draw = []
    for number in range(2):
        counts = Counter(ask.prompt[:70] for ask in drawn(loads.EXAMPLES, number))
        assert sum(counts.values()) == SIZES.examples
        assert max(counts.values()) > 2 * min(counts.values())
        by_draw.append(counts)
    assert by_draw[0] != by_draw[1]


def test_of_some_documents_several_questions_are_asked_and_none_twice() -> None:
    asks = drawn(loads.DOCUMENTS)
    counts = Counter(ask.prompt[:94] for ask in asks)
    assert max(counts.values()) > 1
    assert min(counts.values()) == 1
    assert len({ask.prompt for ask in asks}) == len(asks)


def test_files_become_texts(tmp_path: Path) -> None:
    reader = texts.Reader(Tokenizer.from_file(str(MODEL / "tokenizer.json")))
    gsm8k = tmp_path / "gsm8k"
    row = '{{"question": "What is {0} and 1?", "answer": "It is more.\\n#### {0}"}}\n'
    gsm8k.write_text("".join(row.format(n) for n in range(130)))
    bench, schemas, text = tmp_path / "bench", tmp_path / "schemas", tmp_path / "text"
    bench.write_text('{"turns": ["Say a word.", "And another."]}\n')
    schemas.write_text(json.dumps({"schema": {"enum": list(range(1000))}}) + "\n")
    text.write_text("one two three four five " * 400)
    found = reader.texts(gsm8k, bench, schemas, text, 2)
    assert (len(found.problems), len(found.chats), len(found.schemas), len(found.documents)) == (90, 1, 1, 2)
    decoded = Tokenizer.from_file(str(MODEL / "tokenizer.json")).decode
    asked = decoded(list(found.problems[0].question), skip_special_tokens=False)
    assert asked == "<|im_start|>user\nWhat is 40 and 1?<|im_end|>\n<|im_start|>assistant\n"
    assert decoded(list(found.problems[0].number), skip_special_tokens=False) == "40<|im_end|>\n"
    lengths = [sum(map(len, (reader.ids(texts.SCHEMA), reader.ids(texts.CLOSED)))) + texts.SCHEMA_TOKENS]
    assert [len(schema) for schema in found.schemas] == lengths
    # No problem is an example and asked as well.
    shown = {one.question for one in found.problems}
    assert {p.question for one in found.examples for p in one.problems} <= shown
    with pytest.raises(texts.TextsError):
        reader.texts(gsm8k, bench, schemas, text, 200)
    with pytest.raises(texts.TextsError):
        reader.texts(bench, bench, schemas, text, 2)


# ------------------------------------------------------------------------------------------------------------- readings


def test_blocks_are_named_by_all_that_stands_before_their_end() -> None:
    one = made(5, 40)
    other = (*one[:20], 3, *one[21:])
    first, second = readings.names_of(one), readings.names_of(other)
    assert len(first) == 3
    assert (first[0] == second[0], first[1] == second[1], first[2] == second[2]) == (True, False, False)
    # The same last block, longer.
    assert readings.names_of(one[:38])[2] != first[2]
    assert readings.names_of(one[:32]) == first[:2]


def test_mean_surprisals_are_those_of_transformers() -> None:
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))

    def ids(text: str) -> texts.Ids:
        return tuple(tokenizer.encode(text, add_special_tokens=False).ids)

    begin = ids("<|im_start|>system\nThe lobster is a large crustacean with two claws of different size,")
    sequences = [
        begin + ids(" one to crush and one to cut. It lives on the floor of the sea.") * 2,
        begin + ids(" which it uses at night, and"),
        begin,
        ids("Of another text."),
    ]
    known: dict[str, float] = {}
    computed = readings.measure(Model(MODEL, 128, 128), sequences, known)
    # What is common was not computed twice, but for the last token of it.
    assert computed < sum(map(len, sequences)) - 2 * (len(begin) - 3)
    plain = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    for sequence in sequences:
        with torch.inference_mode():
            logits = plain(torch.tensor([sequence])).logits[0].double().log_softmax(-1)
        nats = [math.nan] + [-float(logits[at, token]) for at, token in enumerate(sequence[1:])]
        for place, name in enumerate(readings.names_of(sequence)):
            assert known[name] == pytest.approx(np.nanmean(nats[16 * place : 16 * place + 16]), abs=1e-2)
    assert len(known) == len({name for ids in sequences for name in readings.names_of(ids)})
    before = dict(known)
    assert readings.measure(Model(MODEL, 128, 128), sequences, known) == 0
    assert known == before


def test_answers_are_what_transformers_would_choose() -> None:
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    prompts = [
        tuple(tokenizer.encode(text, add_special_tokens=False).ids)
        for text in ("The capital of France is", "One, two, three, four, five,")
    ]
    plain = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    expected = []
    for prompt in prompts:
        ids = list(prompt)
        for _ in range(6):
            with torch.inference_mode():
                ids.append(int(plain(torch.tensor([ids])).logits[0, -1].argmax()))
        expected.append(ids[len(prompt) :])
    model = Model(MODEL, 128, 128)
    assert readings.greedy(model, prompts, 6, stop=-1) == expected
    stop = expected[0][2]
    cut = [answer[: answer.index(stop)] if stop in answer else answer for answer in expected]
    assert readings.greedy(model, prompts, 6, stop) == cut


def test_readings_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "readings.json"
    assert readings.Readings.read(path) == readings.Readings()
    one = readings.Readings([[1, 2]], {"a": 0.5})
    one.write(path)
    assert readings.Readings.read(path) == one


# -------------------------------------------------------------------------------------------------------------- replays


def test_a_placebo_has_the_same_values_at_other_blocks() -> None:
    asks = drawn(loads.MIX)
    load = replays.load_of(asks, values_of(asks))
    run = replays.runs_of(load.trace)
    shuffled = replays.shuffled(load.surprisal_nats, 3)
    assert sorted(shuffled) == sorted(load.surprisal_nats)
    assert not np.array_equal(shuffled, load.surprisal_nats)
    first = np.unique(run)
    means, others = replays.over_runs(load, run), replays.shuffled_runs(load, run, 3)
    assert sorted(means[first]) == sorted(others[first])
    assert not np.array_equal(means, others)
    assert all(len(set(others[run == one])) == 1 for one in first)


def test_a_load_has_the_blocks_and_values_of_its_requests() -> None:
    asks = drawn(loads.MIX)
    values = values_of(asks)
    load = replays.load_of(asks, values)
    assert len(load.trace.parent) == len(values)
    for ask, request in zip(asks, load.trace.requests, strict=True):
        assert request.input_tokens == len(ask.prompt)
        names = readings.names_of(ask.prompt + ask.answer)
        assert [load.surprisal_nats[node] for node in request.path] == [values[name] for name in names]


def test_a_run_ends_where_requests_part() -> None:
    shared, one, other = made(1, 32), made(100, 32), made(200, 16)
    asks = [loads.Ask(0.0, shared + one), loads.Ask(1.0, shared + other), loads.Ask(2.0, made(300, 16))]
    names = [readings.names_of(ask.prompt) for ask in asks]
    known = {names[0][0]: 1.0, names[0][1]: 3.0, names[0][2]: 5.0, names[1][2]: 2.0, names[2][0]: 7.0}
    load = replays.load_of(asks, known)
    means = replays.over_runs(load, replays.runs_of(load.trace))
    by_path = [[means[node] for node in request.path] for request in load.trace.requests]
    # A block of the second run was never scored.
    assert by_path == [[2.0, 2.0, 5.0, 5.0], [2.0, 2.0, 2.0], [7.0]]


def test_equal_surprisals_change_nothing_and_pools_are_where_lru_finds_some() -> None:
    asks = drawn(loads.MIX)
    load = replays.load_of(asks, dict.fromkeys(values_of(asks), 2.0))
    (pool,) = replays.pools_of(load, [0.5])
    arms = replays.arms_of(load, [0])
    found = {name: replays.hit_tokens(load, make(), pool) for name, make in arms.items()}
    ours = {count for name, count in found.items() if name not in (replays.LRU, replays.SLRU, replays.BELADY)}
    assert ours == {found[replays.PLAIN]}
    assert 0.4 < found[replays.LRU] / replays.most_hit_tokens(load) < 0.6
    assert found[replays.LRU] < found[replays.BELADY]


def test_surprisal_that_tells_the_future_helps_and_its_reverse_harms() -> None:
    asks = drawn(loads.MIX)
    counts = Counter(name for ask in asks for name in readings.names_of(ask.prompt + ask.answer))
    load = replays.load_of(asks, {name: 4.0 if count > 1 else 0.5 for name, count in counts.items()})
    (pool,) = replays.pools_of(load, [0.4])
    arms = replays.arms_of(load, [0])
    found = {
        name: replays.hit_tokens(load, arms[name](), pool) for name in ("plain", "measured/1", "reversed/1")
    }
    assert found["reversed/1"] < found["plain"] < found["measured/1"]
    described = replays.described(load)
    assert (described["again_mean_nats"], described["once_mean_nats"]) == (4.0, 0.5)
    assert described["again_above_once"] == 1.0


# -------------------------------------------------------------------------------------------------------------- figures


def sample(draw: int, pool: int, hits: dict[str, int], load: str = loads.MIX) -> figures.Sample:
    return {"load": load, "draw": draw, "pool_blocks": pool, "most_hit_tokens": 1000, "hit_tokens": hits}


def test_a_ratio_is_paired_and_its_interval_is_over_draws() -> None:
    # Pools of one draw are averaged first: logarithms of 1.1 and 1.3.
    samples = [
        sample(0, 1, {"a": 110, "b": 100}),
        sample(0, 2, {"a": 1100, "b": 1000}),
        sample(1, 1, {"a": 130, "b": 100}),
        sample(1, 2, {"a": 13, "b": 10}),
    ]
    value, low, high = figures.ratio(samples, "a", "b")
    logs = np.log([1.1, 1.3])
    assert value == pytest.approx(math.exp(logs.mean()))
    # Student's quantile with one degree of freedom.
    half = 12.7062 * logs.std(ddof=1) / math.sqrt(2)
    assert [low, high] == pytest.approx([value * math.exp(-half), value * math.exp(half)], rel=1e-4)


def test_the_claims_are_of_the_mix_beside_the_mean_of_placebos() -> None:
    hits = {"lru": 50, "plain": 100, "measured/0.5": 105, "placebo/0.5/0": 90, "placebo/0.5/1": 110}
    samples = [sample(draw, 1, hits) for draw in range(3)]
    samples += [sample(0, 1, {**hits, "measured/0.5": 1}, loads.CHAT)]
    placebo, plain = figures.claims_of(samples)
    assert (placebo.name, plain.name) == (
        "evict_measured_surprisal_vs_placebo",
        "evict_measured_surprisal_vs_plain",
    )
    for one in (placebo, plain):
        assert [one.value, one.low, one.high] == pytest.approx([1.05] * 3)
        assert (one.bar, one.ok) == (">= 1", True)
    ratios = figures.ratios(samples)
    assert set(ratios) == {"mix", "mix, 1 blocks", "chat", "chat, 1 blocks"}
    assert ratios["mix"]["measured/0.5 over placebo/0.5"] == [1.05] * 3
    assert ratios["chat"]["lru over plain"] == [0.5] * 3
    assert "mix: LRU finds 0.050 of what can be found" in figures.table(samples)


@pytest.mark.parametrize("wrong", [["--draws", "1"], ["--placebos", "0"], ["--shares", "1.5"]])
def test_what_cannot_be_is_refused(wrong: list[str]) -> None:
    files = ["--gsm8k", "a", "--mt-bench", "b", "--schemas", "c", "--text", "d"]
    with pytest.raises(SystemExit):
        eviction_surprisal.checked(eviction_surprisal.parser(), [*files, *wrong])
