"""What the compared servers are asked: the same, exactly so long, new in every round, and shared where it should be."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmark"))

from twin_parts import mooncake
from twin_parts.prompts import WordPrompts
from twin_parts.workloads import CLAIMED, Sizes, Workload, catalogue, shortened

LETTERS = "abcdefghijklmnopqrst"


@pytest.fixture(scope="module")
def prompts() -> WordPrompts:
    """Of a word tokenizer with 2,000 words, in the form of a byte-level one."""
    words = [f"{a}{b}{c}{d}" for a in LETTERS for b in LETTERS for c in "aeiou" for d in "x"]
    vocabulary = {f"Ġ{word}": at for at, word in enumerate(words)} | {"?": len(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return WordPrompts(tokenizer)


@pytest.fixture(scope="module")
def workloads() -> dict[str, Workload]:
    return catalogue(Sizes())


def test_a_text_has_the_tokens_asked_for_and_follows_its_key(prompts: WordPrompts) -> None:
    text = prompts.text(57, 1, "a")
    assert prompts.count(text) == len(text.split()) == 57
    assert text == prompts.text(57, 1, "a")
    assert text != prompts.text(57, 1, "b")
    assert prompts.count(text + prompts.text(3, 2)) == 60


def test_a_tokenizer_without_words_is_refused() -> None:
    with pytest.raises(ValueError, match="has 0 lower-case words"):
        WordPrompts(Tokenizer(models.WordLevel({"?": 0}, unk_token="?")))


@pytest.mark.parametrize("name", [*CLAIMED, "ctx4k_4_clients", "shared_prefix"])
def test_stated_lengths_are_real(name: str, prompts: WordPrompts, workloads: dict[str, Workload]) -> None:
    turns = [turn for client in workloads[name].clients(prompts, 1, 0) for turn in client.turns]
    assert [prompts.count(turn.text) for turn in turns] == [turn.tokens for turn in turns]


@pytest.mark.parametrize("name", sorted(catalogue(Sizes())))
def test_a_round_repeats_nothing_of_another(
    name: str, prompts: WordPrompts, workloads: dict[str, Workload]
) -> None:
    rounds = [workloads[name].clients(prompts, 1, index) for index in (0, 0, 1)]
    texts = [[turn.text for client in clients for turn in client.turns] for clients in rounds]
    assert texts[0] == texts[1]
    assert not set(texts[0]) & set(texts[2])
    assert len(set(texts[0])) == len(texts[0])


@pytest.mark.parametrize(
    ("name", "clients", "tokens", "output"),
    [
        ("clients_1", 1, 64, 128),
        ("clients_16", 16, 64, 128),
        ("ctx2k_4_clients", 4, 2000, 64),
        ("ctx4k_4_clients", 4, 4000, 64),
    ],
)
def test_sizes(
    name: str,
    clients: int,
    tokens: int,
    output: int,
    prompts: WordPrompts,
    workloads: dict[str, Workload],
) -> None:
    built = workloads[name].clients(prompts, 1, 0)
    assert [(len(c.turns), c.turns[0].tokens, c.turns[0].output_tokens) for c in built] == [
        (1, tokens, output)
    ] * clients


def test_prefixes_are_shared_within_a_group_only(
    prompts: WordPrompts, workloads: dict[str, Workload]
) -> None:
    texts = [client.turns[0].text.split() for client in workloads["shared_prefix"].clients(prompts, 1, 0)]
    # The members of the two groups alternate.
    assert [other[:512] == texts[0][:512] for other in texts] == [True, False] * 4
    assert [other[:512] == texts[1][:512] for other in texts] == [False, True] * 4
    assert len({tuple(other[512:]) for other in texts}) == 8


def test_only_a_chat_goes_on_from_its_answers(prompts: WordPrompts, workloads: dict[str, Workload]) -> None:
    for name, workload in workloads.items():
        clients = workload.clients(prompts, 1, 0)
        assert {client.continues for client in clients} == {name == "chat"}
    first, second, _ = workloads["chat"].clients(prompts, 1, 0)[0].turns
    assert first.text.startswith("<|im_start|>user")
    assert second.text.startswith("<|im_end|>\n<|im_start|>user")


def test_warming_up_keeps_prompts_and_shortens_answers(
    prompts: WordPrompts, workloads: dict[str, Workload]
) -> None:
    clients = workloads["clients_8"].clients(prompts, 1, 0)
    short = shortened(clients)
    assert [c.turns[0].text for c in short] == [c.turns[0].text for c in clients]
    assert {c.turns[0].output_tokens for c in short} == {8}


def trace_file(folder: Path) -> Path:
    rows = [
        {"timestamp": 5000, "input_length": 1024, "output_length": 200, "hash_ids": [7, 8]},
        {"timestamp": 1000, "input_length": 1200, "output_length": 10, "hash_ids": [7, 9, 10]},
        {"timestamp": 2000, "input_length": 100, "output_length": 1, "hash_ids": [11]},
    ]
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_trace_is_ordered_and_scaled(tmp_path: Path) -> None:
    scale = mooncake.Scale(0.125, requests_per_s=0.5, most_input_tokens=140, most_output_tokens=20)
    requests = mooncake.scaled(mooncake.read(trace_file(tmp_path), 3), scale)
    # Three requests at one in two seconds span four seconds, and keep the proportions of 0, 1 and 4 s.
    assert [one.start_s for one in requests] == pytest.approx([0, 1, 4])
    assert [one.input_tokens for one in requests] == [140, 12, 128]
    assert [one.output_tokens for one in requests] == [1, 1, 20]
    assert scale.block_tokens == 64


def test_equal_blocks_of_a_trace_are_equal_text(tmp_path: Path, prompts: WordPrompts) -> None:
    scale = mooncake.Scale(0.125, 1.0, 4096, 512)
    requests = mooncake.scaled(mooncake.read(trace_file(tmp_path), 3), scale)
    texts = [mooncake.prompt(one, scale.block_tokens, prompts, (1, 0, "trace")) for one in requests]
    assert [prompts.count(text) for text in texts] == [one.input_tokens for one in requests]
    first, other, second = (text.split() for text in texts)
    assert first[:64] == second[:64]
    assert first[64:128] != second[64:128]
    assert first[:12] != other[:12]
    again = mooncake.prompt(requests[0], scale.block_tokens, prompts, (1, 1, "trace"))
    assert again != texts[0]


def test_a_trace_without_span_arrives_at_once(tmp_path: Path) -> None:
    rows = mooncake.read(trace_file(tmp_path), 3)
    at_once = [{**row, "timestamp": 9} for row in rows]
    requests = mooncake.scaled(at_once, mooncake.Scale(1, 1, 4096, 512))
    assert {one.start_s for one in requests} == {0.0}


def test_a_broken_trace_is_named(tmp_path: Path) -> None:
    path = trace_file(tmp_path)
    with pytest.raises(ValueError, match="has 3 requests, 4 were asked for"):
        mooncake.read(path, 4)
    path.write_text('{"timestamp": 1, "input_length": 2}\n')
    with pytest.raises(ValueError, match="line 1: no output_length, hash_ids"):
        mooncake.read(path, 1)
