"""Decode steps that leave blocks out, on the real server: against transformers with the same blocks hidden, and what must not change."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import torch
from transformers import AttentionInterface, AutoModelForCausalLM, AutoTokenizer

from sgl_entropic.attention.contribution import contribution
from sgl_entropic.attention.selection import block_budget, select, whole_blocks
from sgl_entropic.attention.settings import RECENT_SHARES, AttentionSettings
from sgl_entropic.testing.servers import Server, entropic_server
from sgl_entropic_kernels.reference_choice import code_keys, coded_scores, layer_budgets
from sgl_entropic_kernels.reference_ops import Scoring

pytestmark = pytest.mark.e2e

TIMEOUT_S = 600.0
INTERVAL = 8
FLAGS = (
    "--entropic-attention", "on", "--entropic-weights", "float32", "--entropic-attention-min-context-tokens", "256",
    "--entropic-attention-recent-tokens", "32", "--entropic-attention-score-interval-steps", str(INTERVAL),
    "--chunked-prefill-size", "192", "--max-total-tokens", "6000",
)  # fmt: skip
FIXED = {"min_keep_ratio": 0.4, "max_keep_ratio": 0.4}
WORDS = (
    "cat",
    "dog",
    "tree",
    "house",
    "river",
    "stone",
    "blue",
    "red",
    "old",
    "king",
    "road",
    "sea",
    "lamp",
    "fish",
)


@pytest.fixture(scope="module")
def pruned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Pruning from 256 tokens on, prompts in chunks, a pool that is soon full, retraction by force."""
    log = tmp_path_factory.mktemp("pruned") / "server.log"
    env = {
        "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE": "1",
        "SGLANG_TEST_RETRACT": "1",
        "SGLANG_TEST_RETRACT_INTERVAL": "100000",
    }
    with entropic_server(log, *FLAGS, env=env) as running:
        yield running
        assert running.alive(), running.log_tail()


def prompt(index: int, words: int = 360) -> str:
    chosen = " ".join(WORDS[(index * 7 + at * at + at * at // 5) % len(WORDS)] for at in range(words))
    return f"Story {index}: {chosen}. Once upon a time"


def ask(
    server: Server, text: Any, tokens: int = 40, *, entropic: dict[str, Any] | None = None, **more: Any
) -> Any:
    readings = more.pop("return_entropy", True)
    top = {name: more.pop(name) for name in ("rid", "stream") if name in more}
    sampling = {
        "temperature": 0.0,
        "max_new_tokens": tokens,
        "ignore_eos": True,
        "custom_params": {"entropic": entropic or {}},
        **more,
    }
    field = "text" if isinstance(text, str) else "input_ids"
    body = {field: text, "sampling_params": sampling, "return_entropy": readings, **top}
    response = httpx.post(server.url + "/generate", json=body, timeout=TIMEOUT_S)
    assert response.status_code == 200, response.text
    return response.json()


def hidden_by(surprisal: list[float | None], policy: str, prompt_tokens: int, outputs: int) -> list[set[int]]:
    """Positions that the step of each output token from the first decoded one on may see, by the pure rule."""
    settings = AttentionSettings(
        policy=policy,
        min_keep_ratio=0.4,
        recent_tokens=32,
        recent_share=RECENT_SHARES[policy],  # type: ignore[arg-type, index]
        score_interval_steps=INTERVAL,
    )
    known = np.array([np.nan if value is None else value for value in surprisal], dtype=np.float32)
    visible: list[set[int]] = []
    chosen = None
    for n in range(1, outputs):
        length = prompt_tokens + n
        if n >= 2 and (n - 2) % INTERVAL == 0:
            scores = contribution(settings, known[: whole_blocks(length, settings) * 16], None)
            chosen = select(scores, length, 0.4, settings)
        visible.append(set(range(length)) if chosen is None else set(chosen.positions(length, 16).tolist()))
    return visible


@torch.inference_mode()
def entropies_with_blocks_hidden(
    model: Any, ids: list[int], prompt_tokens: int, visible: list[set[int]]
) -> list[float]:
    """Entropy after each of these steps in transformers, keys and values of hidden positions masked out."""
    cache = model(torch.tensor([ids[:prompt_tokens]]), use_cache=True).past_key_values
    found = []
    for n, seen in enumerate(visible, 1):
        length = prompt_tokens + n
        mask = torch.full((1, 1, 1, length), torch.finfo(torch.float32).min)
        mask[..., sorted(seen)] = 0.0
        out = model(
            torch.tensor([[ids[length - 1]]]),
            past_key_values=cache,
            attention_mask=mask,
            position_ids=torch.tensor([[length - 1]]),
            use_cache=True,
        )
        log_p = torch.log_softmax(out.logits[0, -1].double(), -1)
        found.append(float(-(log_p.exp() * log_p).sum()))
    return found


@pytest.mark.parametrize("policy", ["surprisal", "streaming"])
def test_it_is_transformers_with_the_same_blocks_hidden(pruned: Server, oracle: Any, policy: str) -> None:
    """Every step's entropy, 33 steps in all, five choices of blocks."""
    ids = oracle.tokenizer.encode(prompt(1))
    answer = ask(
        pruned, ids, 34, entropic={**FIXED, "attention_policy": policy, "return_prompt_surprisal": True}
    )
    found = answer["meta_info"]["entropic"]
    report = found["attention"]
    assert report["policy"] == policy
    assert report["pruned_steps"] == 32
    assert report["decode_steps"] == 33
    surprisal = found["prompt_surprisal_nats"] + found["surprisal_nats"]
    visible = hidden_by(surprisal, policy, len(ids), 34)
    expected = entropies_with_blocks_hidden(oracle._model, ids + answer["output_ids"], len(ids), visible)
    assert found["entropy_nats"][1:] == pytest.approx(expected, abs=5e-3)
    read = [len(seen) / (len(ids) + n) for n, seen in enumerate(visible, 1)]
    assert found["keep_ratio"][0] is None
    assert found["keep_ratio"][1:] == pytest.approx(read, abs=1e-5)
    # And it makes a difference: with all blocks in sight the entropies are others.
    whole = entropies_with_blocks_hidden(
        oracle._model, ids + answer["output_ids"], len(ids), [set(range(len(ids) + n)) for n in range(1, 34)]
    )
    assert max(abs(a - b) for a, b in zip(expected, whole, strict=True)) > 0.05


class ChoosingAttention:
    """Attention in transformers that leaves out what the rule of ``mixed`` or ``quest`` leaves out, layer by layer.

    Attributes:
        choice: blocks to choose from, how many of them each KV head of each layer reads, and what is added to each one's
            score; ``None`` reads all.
        bounds: the score is of Quest's bounds instead of the keys' codes.
    """

    def __init__(self) -> None:
        self.choice: tuple[int, list[int], np.ndarray] | None = None  # type: ignore[type-arg]
        self.bounds = False

    def __call__(
        self, module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float, **_: Any
    ) -> Any:
        groups = query.shape[1] // key.shape[1]
        keys, values = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        scores = query @ keys.transpose(2, 3) * scaling
        length, queries = key.shape[2], query.shape[2]
        if queries > 1:
            scores += torch.full((queries, length), -torch.inf).triu(length - queries + 1)
        elif self.choice is not None:
            blocks, budgets, bonus = self.choice
            if not self.bounds:
                held = key[0, :, : blocks * 16].transpose(0, 1).numpy()
                likely_to_be, _ = coded_scores(
                    query[0, :, 0].numpy(), code_keys(held), 16, Scoring(scaling, -1), bonus
                )
            else:
                cut = keys[0, :, : blocks * 16].unflatten(1, (blocks, 16))
                low, high = (x.bfloat16().float() for x in (cut.amin(2), cut.amax(2)))
                products = torch.maximum(query[0] * low, query[0] * high).sum(-1)
                shares = torch.softmax(products * scaling, -1).unflatten(0, (-1, groups)).sum(1)
                likely_to_be = (torch.log(shares) + torch.from_numpy(bonus)).numpy()
            for head in range(key.shape[1]):
                own = slice(head * groups, (head + 1) * groups)
                likely = torch.from_numpy(likely_to_be[head])
                likely[0] = torch.inf
                hidden = torch.ones(blocks, dtype=torch.bool)
                hidden[likely.topk(budgets[module.layer_idx]).indices] = False
                scores[0, own, :, : blocks * 16][..., hidden.repeat_interleave(16)] = -torch.inf
        return (torch.softmax(scores, -1) @ values).transpose(1, 2), None


@pytest.mark.parametrize("policy", ["mixed", "quest"])
def test_it_is_transformers_with_the_same_rule(pruned: Server, model_path: str, policy: str) -> None:
    """What each layer of each step leaves out by its query; a near tie may fall otherwise in a step here and there."""
    attention = ChoosingAttention()
    attention.bounds = policy == "quest"
    AttentionInterface.register("choosing", attention)
    model = AutoModelForCausalLM.from_pretrained(
        model_path, dtype=torch.float32, attn_implementation="choosing"
    )
    ids = AutoTokenizer.from_pretrained(model_path).encode(prompt(1))
    asked = {**FIXED, "attention_policy": policy, "return_prompt_surprisal": True}
    answer = ask(pruned, ids, 34, entropic=asked)
    found = answer["meta_info"]["entropic"]
    known = found["prompt_surprisal_nats"] + found["surprisal_nats"]
    surprisal = np.array([np.nan if value is None else value for value in known], dtype=np.float32)
    settings = AttentionSettings(
        policy=policy,  # type: ignore[arg-type]
        min_keep_ratio=0.4,
        recent_tokens=32,
        recent_share=0.0,
        score_interval_steps=INTERVAL,
    )
    sequence = ids + answer["output_ids"]
    expected, whole = [], []
    with torch.inference_mode():
        caches = [model(torch.tensor([ids]), use_cache=True).past_key_values for _ in range(2)]
        for n in range(1, 34):
            length = len(ids) + n
            if n >= 2 and (n - 2) % INTERVAL == 0:
                blocks = whole_blocks(length, settings)
                bonus = contribution(settings, surprisal[: blocks * 16], None)[0]
                budget, layers = block_budget(length, 0.4, settings), model.config.num_hidden_layers
                lean = 0.3 if policy == "mixed" else 0.0
                choice = (blocks, layer_budgets(budget, blocks, 1, layers, lean), bonus)
            for cache, into, rule in ((caches[0], expected, n >= 2), (caches[1], whole, False)):
                attention.choice = choice if rule else None
                token, place = torch.tensor([[sequence[length - 1]]]), torch.tensor([[length - 1]])
                out = model(token, past_key_values=cache, position_ids=place, use_cache=True)
                log_p = torch.log_softmax(out.logits[0, -1].double(), -1)
                into.append(float(-(log_p.exp() * log_p).sum()))
    apart = np.abs(np.array(found["entropy_nats"][1:]) - expected)
    assert np.median(apart) < 1e-3
    assert (apart < 5e-3).mean() > 0.8
    assert apart.max() < 0.1
    assert np.abs(np.array(whole) - expected).max() > 0.02
    assert found["attention"]["pruned_steps"] == 32


def test_what_reads_all_is_as_without(pruned: Server, server: Server) -> None:
    """Switched off by the request, a share of 1, and contexts below the minimum: the tokens of a server without it."""
    long, short = prompt(2), prompt(3, 60)
    plain = {text: ask(server, text)["output_ids"] for text in (long, short)}
    assert ask(pruned, long, entropic={"attention_pruning": False})["output_ids"] == plain[long]
    assert ask(pruned, long, entropic={"min_keep_ratio": 1, "max_keep_ratio": 1})["output_ids"] == plain[long]
    answer = ask(pruned, short, entropic=FIXED)
    assert answer["output_ids"] == plain[short]
    assert answer["meta_info"]["entropic"]["attention"]["pruned_steps"] == 0
    assert answer["meta_info"]["entropic"]["attention"]["keep_ratio"] == 1.0


def test_counters_say_what_was_read(pruned: Server, counters: Callable[[Server], dict[str, int]]) -> None:
    before = counters(pruned)
    found = ask(pruned, prompt(4), 30, entropic=FIXED)["meta_info"]["entropic"]
    after = counters(pruned)
    acted = {name: after[name] - before[name] for name in after}
    assert acted["pruned_rows"] == found["attention"]["pruned_steps"] == 28
    assert acted["rescored_contexts"] == 4
    assert acted["read_tokens"] / acted["context_tokens"] == pytest.approx(
        found["attention"]["keep_ratio"], abs=1e-3
    )
    # The first step reads all. Whole blocks, and up to 7 tokens since they were chosen, come on top of the share.
    assert 0.4 <= (found["attention"]["keep_ratio"] * 29 - 1) / 28 < 0.46
    assert min(found["keep_ratio"][2:]) >= 0.4


def test_the_share_follows_the_entropy(pruned: Server) -> None:
    """``r = r_min + (1 - r_min) max(H, H_floor) / ln V`` of the mean over the interval before, never below it."""
    answer = ask(pruned, prompt(5), 40, entropic={"min_keep_ratio": 0.3})
    found = answer["meta_info"]["entropic"]
    length = answer["meta_info"]["prompt_tokens"]
    for n in (10, 18, 26, 34):
        known = found["entropy_nats"][max(0, n - 1 - INTERVAL) : n - 1]
        wanted = 0.3 + 0.7 * max(sum(known) / len(known), 0.5) / np.log(49152)
        # At the first of eight steps, less what the seven others add and what no whole block makes up.
        assert -21 / (length + n) <= found["keep_ratio"][n] - wanted <= 0


@pytest.mark.parametrize("policy", ["surprisal", "streaming", "attention", "quest", "mixed"])
def test_a_request_has_the_same_text_alone_and_among_others(pruned: Server, policy: str) -> None:
    """Others of every policy, dense ones and short ones in the same steps; prompts in chunks."""
    own = {**FIXED, "attention_policy": policy}
    alone = ask(pruned, prompt(6), 48, entropic=own)

    def one(index: int) -> Any:
        if index == 3:
            return ask(pruned, prompt(6), 48, entropic=own)
        other = ("surprisal", "streaming", "attention", "mixed")[index % 4]
        return ask(
            pruned,
            prompt(20 + index, 40 if index % 3 == 0 else 200 + 10 * index),
            30,
            entropic={"attention_pruning": False} if index % 5 == 0 else {"attention_policy": other},
        )

    with ThreadPoolExecutor(6) as pool:
        crowd = list(pool.map(one, range(6)))
    assert crowd[3]["output_ids"] == alone["output_ids"]
    assert (
        crowd[3]["meta_info"]["entropic"]["attention"]["keep_ratio"]
        == alone["meta_info"]["entropic"]["attention"]["keep_ratio"]
    )
    assert pruned.slots_left_over() == 0


def test_other_requests_get_exact_keys_only(pruned: Server) -> None:
    """What a pruned request generated is not in the prefix cache for others; its prompt is."""
    text = prompt(8)
    first = ask(pruned, text, 40, entropic=FIXED)
    ids = first["meta_info"]["prompt_tokens"]
    again = ask(pruned, text + first["text"] + " and", 4, entropic={"attention_pruning": False})
    assert ids - 8 <= again["meta_info"]["cached_tokens"] <= ids
    dense = ask(pruned, prompt(9), 40, entropic={"attention_pruning": False})
    more = ask(pruned, prompt(9) + dense["text"] + " and", 4, entropic={"attention_pruning": False})
    assert more["meta_info"]["cached_tokens"] > dense["meta_info"]["prompt_tokens"] + 20


FACTS = {
    "the secret access code of Lisbon": "48213",
    "the inventory number of the old bridge": "70596",
}
"""What is told in a document, early and late, and what a question about it has to find."""


def document(sentences: int = 72) -> str:
    """Some 1,400 tokens of story with both facts hidden in it."""
    told = []
    for at in range(sentences):
        one, other, place, thing = (WORDS[(at * step + at * at // 3) % len(WORDS)] for step in (1, 3, 5, 11))
        told.append(
            f"On day {at + 1} the {one} went past the {other} to the {place} and looked for a {thing}."
        )
    for (fact, code), share in zip(FACTS.items(), (0.3, 0.7), strict=True):
        told.insert(round(share * sentences), f"{fact.capitalize()} is {code}.")
    return " ".join(told)


@pytest.mark.parametrize("policy", ["mixed", "surprisal"])
def test_two_questions_share_one_cached_document(pruned: Server, policy: str) -> None:
    """Each is answered from the cached document as from one that was computed for it alone, and finds its own fact."""
    text = document()
    half = {"min_keep_ratio": 0.5, "max_keep_ratio": 0.5, "attention_policy": policy}

    def answer(fact: str) -> Any:
        question = f"\nQuestion: What is {fact}?\nAnswer: {fact.capitalize()} is"
        return ask(pruned, text + question, 24, entropic=half)

    alone = {}
    for fact in FACTS:
        pruned.empty_cache()
        alone[fact] = answer(fact)
        assert alone[fact]["meta_info"]["cached_tokens"] == 0
    pruned.empty_cache()
    tokens = ask(pruned, text, 1, entropic={"attention_pruning": False})["meta_info"]["prompt_tokens"]
    one_by_one = [answer(fact) for fact in FACTS]
    with ThreadPoolExecutor(len(FACTS)) as pool:
        at_once = list(pool.map(answer, FACTS))
    for (fact, code), *answers in zip(FACTS.items(), one_by_one, at_once, strict=True):
        assert code in alone[fact]["text"]
        for found in answers:
            assert tokens - 16 <= found["meta_info"]["cached_tokens"]
            assert found["output_ids"] == alone[fact]["output_ids"]
            report = found["meta_info"]["entropic"]["attention"]
            assert report == alone[fact]["meta_info"]["entropic"]["attention"]
            assert report["pruned_steps"] >= 20
            assert 0.5 <= found["meta_info"]["entropic"]["keep_ratio"][-1] < 0.52
    assert pruned.slots_left_over() == 0


def test_everything_at_once_leaks_nothing(pruned: Server) -> None:
    """``n`` above 1, a grammar, a client that leaves, an abort, more than fits into memory; no slot is left over."""
    schema = json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})

    def one(index: int) -> None:
        text = prompt(40 + index, 150 + 25 * index)
        if index % 5 == 0:
            answers = ask(pruned, text, 24, temperature=0.8, n=2)
            assert all(a["meta_info"]["completion_tokens"] == 24 for a in answers)
        elif index % 5 == 1:
            answer = ask(pruned, text, 64, json_schema=schema, ignore_eos=False)
            if answer["meta_info"]["finish_reason"]["type"] == "stop":
                assert isinstance(json.loads(answer["text"])["a"], int)
        elif index == 3:
            # Its beams are rows behind those of the requests.
            answer = ask(pruned, text, 16, beam_width=2, return_entropy=False)
            assert answer
        elif index % 5 == 2:
            body = {
                "text": text,
                "sampling_params": {"max_new_tokens": 300, "ignore_eos": True},
                "stream": True,
            }
            with httpx.stream("POST", pruned.url + "/generate", json=body, timeout=TIMEOUT_S) as response:
                next(response.iter_lines())
        else:
            assert ask(pruned, text, 60)["meta_info"]["completion_tokens"] == 60

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(one, range(20)))
    assert pruned.slots_left_over() == 0


@pytest.mark.parametrize(
    ("entropic", "said"),
    [
        ({"min_keep_ratio": 0}, "from 0.01 to 1"),
        ({"max_keep_ratio": 2}, "from 0.01 to 1"),
        ({"min_keep_ratio": 0.5, "max_keep_ratio": 0.4}, "below min_keep_ratio"),
        ({"attention_policy": "h2o"}, "surprisal or streaming or attention or quest or mixed"),
        ({"attention_pruning": "yes"}, "true or false"),
        ({"attention_pruning": False, "min_keep_ratio": 0.5}, "attention_pruning is false"),
    ],
)
def test_bad_parameters_are_refused_on_every_route(pruned: Server, entropic: Any, said: str) -> None:
    body = {"text": "x", "sampling_params": {"custom_params": {"entropic": entropic}}}
    response = httpx.post(pruned.url + "/generate", json=body, timeout=TIMEOUT_S)
    assert response.status_code == 400
    assert said in response.text
    client = openai.OpenAI(base_url=pruned.url + "/v1", api_key="none", timeout=TIMEOUT_S)
    with pytest.raises(openai.BadRequestError, match=said):
        client.chat.completions.create(
            model="default",
            messages=[{"role": "user", "content": "x"}],
            extra_body={"custom_params": {"entropic": entropic}},
        )


def test_the_end_of_an_openai_stream_says_what_was_read(pruned: Server) -> None:
    client = openai.OpenAI(base_url=pruned.url + "/v1", api_key="none", timeout=TIMEOUT_S)
    body = {"custom_params": {"entropic": {**FIXED, "return_summary": True}}, "ignore_eos": True}
    stream = client.completions.create(
        model="default", prompt=prompt(12), max_tokens=20, temperature=0, stream=True, extra_body=body
    )
    found = [chunk.choices[0].entropic for chunk in stream if hasattr(chunk.choices[0], "entropic")]
    assert len(found) == 1
    assert found[0]["attention"]["pruned_steps"] == 18


def test_asking_without_the_flag_is_refused(server: Server) -> None:
    body = {"text": "x", "sampling_params": {"custom_params": {"entropic": {"attention_pruning": True}}}}
    response = httpx.post(server.url + "/generate", json=body, timeout=TIMEOUT_S)
    assert response.status_code == 400
    assert "--entropic-attention on" in response.text
