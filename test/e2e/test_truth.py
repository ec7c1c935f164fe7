"""Entropies and surprisals equal a teacher-forced transformers run of the same weights, within 1e-3 nats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from sgl_entropic.testing.servers import Server, entropic_server

pytestmark = pytest.mark.e2e

TOLERANCE_NATS = 1e-3  # float32 weights and KV; the differences seen are below 1e-4
ASK = {"entropic": {"return_entropy": True, "return_prompt_surprisal": True}}
TEXTS = (
    "The harbour was quiet that morning, and the ferry had not yet left for the islands.",
    "def area(radius):\n    return 3.14159 * radius",
    "Water boils at a lower temperature on a mountain because",
    "Q: What is seven times eight?\nA:",
    "In 1969 two people walked on the Moon. Their names were Neil Armstrong and",
    "List three primary colours: red,",
    "Die Hauptstadt von Frankreich ist",
    "Once upon a time there was a clockmaker who could not tell the time. " * 6,
)


def body(texts: Any, max_new_tokens: int = 12, **sampling: Any) -> dict[str, Any]:
    return {
        "text": texts,
        "sampling_params": {
            "temperature": 0,
            "max_new_tokens": max_new_tokens,
            "custom_params": ASK,
            **sampling,
        },
    }


def assert_equals_oracle(oracle: Any, prompt: str, answer: dict[str, Any]) -> None:
    """Every reading of ``answer`` is the oracle's."""
    prompt_ids = oracle.tokenizer(prompt)["input_ids"]
    output_ids = answer["output_ids"]
    truth = oracle(prompt_ids + output_ids)
    readings = answer["meta_info"]["entropic"]
    n = len(prompt_ids)
    assert len(readings["entropy_nats"]) == len(output_ids) == answer["meta_info"]["completion_tokens"]
    np.testing.assert_allclose(readings["entropy_nats"], truth.entropy_nats[n:], atol=TOLERANCE_NATS)
    np.testing.assert_allclose(readings["surprisal_nats"], truth.surprisal_nats[n:], atol=TOLERANCE_NATS)
    assert len(readings["prompt_surprisal_nats"]) == n
    assert readings["prompt_surprisal_nats"][0] is None
    np.testing.assert_allclose(
        np.array(readings["prompt_surprisal_nats"], float)[1:], truth.surprisal_nats[1:n], atol=TOLERANCE_NATS
    )
    np.testing.assert_allclose(
        np.array(readings["prompt_entropy_nats"], float)[1:], truth.entropy_nats[1:n], atol=TOLERANCE_NATS
    )
    entropies = truth.entropy_nats[n:]
    drops = -np.diff(entropies)
    summary = readings["summary"]
    assert summary["tokens"] == len(output_ids)
    assert summary["tau_nats"] == pytest.approx(drops[drops > 0].sum(), abs=len(output_ids) * TOLERANCE_NATS)
    assert summary["net_drop_nats"] == pytest.approx(entropies[0] - entropies[-1], abs=2 * TOLERANCE_NATS)
    assert summary["mean_entropy_nats"] == pytest.approx(entropies.mean(), abs=TOLERANCE_NATS)
    assert summary["max_entropy_nats"] == pytest.approx(entropies.max(), abs=TOLERANCE_NATS)
    assert summary["mean_surprisal_nats"] == pytest.approx(
        truth.surprisal_nats[n:].mean(), abs=TOLERANCE_NATS
    )


def assert_equals_oracle_prompt(oracle: Any, prompt_ids: list[int], answer: dict[str, Any]) -> None:
    """Both readings of every prompt token but the first are the oracle's."""
    truth, readings = oracle(prompt_ids), answer["meta_info"]["entropic"]
    surprisal, entropy = (
        np.array(readings[f"prompt_{name}_nats"], float) for name in ("surprisal", "entropy")
    )
    np.testing.assert_allclose(surprisal[1:], truth.surprisal_nats[1:], atol=TOLERANCE_NATS)
    np.testing.assert_allclose(entropy[1:], truth.entropy_nats[1:], atol=TOLERANCE_NATS)


def test_alone(server: Server, post: Callable[..., Any], oracle: Any) -> None:
    """One greedy request."""
    assert_equals_oracle(oracle, TEXTS[0], post(server, "/generate", body(TEXTS[0])))


def test_batch_of_mixed_lengths(server: Server, post: Callable[..., Any], oracle: Any) -> None:
    """Eight prompts of very different lengths in one batch."""
    answers = post(server, "/generate", body(list(TEXTS)))
    for text, answer in zip(TEXTS, answers, strict=True):
        assert_equals_oracle(oracle, text, answer)


@pytest.mark.parametrize("temperature", [0.002, 0.7, 1.3])
def test_sampled_with_temperature(
    server: Server, post: Callable[..., Any], oracle: Any, temperature: float
) -> None:
    """Sampling with a temperature leaves the model's own numbers alone, and its own entropy is that of logits / T."""
    answer = post(server, "/generate", body(TEXTS[2], temperature=temperature))
    assert_equals_oracle(oracle, TEXTS[2], answer)
    prompt_ids = oracle.tokenizer(TEXTS[2])["input_ids"]
    logits = oracle(prompt_ids + answer["output_ids"]).logits[len(prompt_ids) - 1 : -1] / temperature
    np.testing.assert_allclose(
        answer["meta_info"]["entropic"]["sampled_entropy_nats"], entropy_of(logits), atol=TOLERANCE_NATS
    )


def test_logit_bias_moves_only_the_sampled_entropy(
    server: Server, post: Callable[..., Any], oracle: Any
) -> None:
    """A bias that forbids the first choice changes what is sampled from, not what the model believed."""
    prompt_ids = oracle.tokenizer(TEXTS[4])["input_ids"]
    favourite = int(oracle(prompt_ids).logits[-1].argmax())
    answer = post(server, "/generate", body(TEXTS[4], temperature=1.0, logit_bias={str(favourite): -100.0}))
    assert favourite not in answer["output_ids"]
    assert_equals_oracle(oracle, TEXTS[4], answer)
    logits = oracle(prompt_ids + answer["output_ids"]).logits[len(prompt_ids) - 1 : -1].copy()
    logits[:, favourite] -= 100.0
    np.testing.assert_allclose(
        answer["meta_info"]["entropic"]["sampled_entropy_nats"], entropy_of(logits), atol=TOLERANCE_NATS
    )


def test_penalties_leave_the_models_own_numbers_alone(
    server: Server, post: Callable[..., Any], oracle: Any
) -> None:
    """Repetition, presence and frequency penalties."""
    answer = post(
        server,
        "/generate",
        body(TEXTS[5], temperature=0.9, frequency_penalty=0.8, presence_penalty=0.4, repetition_penalty=1.2),
    )
    assert_equals_oracle(oracle, TEXTS[5], answer)


def test_grammar(server: Server, post: Callable[..., Any], oracle: Any) -> None:
    """Sampling waits for the grammar, one stage later than usual; the sampled entropy is that of the legal tokens."""
    answer = post(server, "/generate", body(TEXTS[3], temperature=1.0, regex="[0-9]{3}"))
    assert_equals_oracle(oracle, TEXTS[3], answer)
    prompt_ids = oracle.tokenizer(TEXTS[3])["input_ids"]
    digits = [oracle.tokenizer.convert_tokens_to_ids(str(d)) for d in range(10)]
    assert set(answer["output_ids"][:3]) <= set(digits)
    logits = oracle(prompt_ids + answer["output_ids"]).logits[len(prompt_ids) - 1 :][:3][:, digits]
    np.testing.assert_allclose(
        answer["meta_info"]["entropic"]["sampled_entropy_nats"][:3], entropy_of(logits), atol=TOLERANCE_NATS
    )


def test_prefix_cache_hit(
    server: Server, post: Callable[..., Any], oracle: Any, counters: Callable[..., Any]
) -> None:
    """A shared prefix that branches: the token at the branch was never predicted in its new place before."""
    stem = "The lighthouse keeper wrote in his diary every evening, and on the last page he noted that"
    post(server, "/generate", body(stem + " the storm had passed."))
    before = counters(server)
    for branch in (" a ship was missing.", " nobody had come.", " the storm had passed."):
        answer = post(server, "/generate", body(stem + branch))
        assert answer["meta_info"]["cached_tokens"] > 10
        assert_equals_oracle(oracle, stem + branch, answer)
    after = counters(server)
    assert after["inherited_prompt_tokens"] - before["inherited_prompt_tokens"] > 30
    assert after["boundary_recomputed_tokens"] - before["boundary_recomputed_tokens"] >= 3


def test_second_turn_inherits_generated_tokens(server: Server, post: Callable[..., Any], oracle: Any) -> None:
    """A prompt that continues an earlier answer: cached tokens that were generated keep the sampler's numbers."""
    first = post(server, "/generate", body(TEXTS[6], 16))
    prompt_ids = (
        oracle.tokenizer(TEXTS[6])["input_ids"]
        + first["output_ids"]
        + oracle.tokenizer(" Und Italien?")["input_ids"]
    )
    request = body(None)
    del request["text"]
    second = post(server, "/generate", {**request, "input_ids": prompt_ids})
    assert second["meta_info"]["cached_tokens"] > len(first["output_ids"])
    assert_equals_oracle_prompt(oracle, prompt_ids, second)


@pytest.mark.parametrize("before", ["n=2", "prompt only"])
def test_a_prompt_cached_by_a_pass_that_sampled_nothing(
    server: Server, post: Callable[..., Any], oracle: Any, before: str
) -> None:
    """SGLang prefills once for n choices, without sampling: what it leaves in the cache has no hole."""
    text = f"The bridge over the river was closed in winter ({before}), so the children"
    if before == "n=2":
        first = post(server, "/generate", body(text, 4, n=2, temperature=1.0))[0]
    else:
        post(server, "/generate", body(text, 0))
        first = post(server, "/generate", body(text, 4))
    prompt_ids = (
        oracle.tokenizer(text)["input_ids"] + first["output_ids"] + oracle.tokenizer(" and then")["input_ids"]
    )
    request = body(None)
    del request["text"]
    second = post(server, "/generate", {**request, "input_ids": prompt_ids})
    assert second["meta_info"]["cached_tokens"] >= len(oracle.tokenizer(text)["input_ids"])
    assert_equals_oracle_prompt(oracle, prompt_ids, second)


def test_prompt_only(server: Server, post: Callable[..., Any], oracle: Any) -> None:
    """A request that generates nothing still gets the surprisals of its prompt."""
    text = "Nothing is generated here; the prompt alone is scored."
    answer = post(server, "/generate", body(text, 0))
    truth = oracle(oracle.tokenizer(text)["input_ids"])
    surprisal = np.array(answer["meta_info"]["entropic"]["prompt_surprisal_nats"], float)
    np.testing.assert_allclose(surprisal[1:], truth.surprisal_nats[1:], atol=TOLERANCE_NATS)


def test_exact_entropy_lies_within_the_bounds_of_top_logprobs(
    server: Server, post: Callable[..., Any], oracle: Any
) -> None:
    """What any client can bound from top-20 log-probabilities contains what this server measures exactly."""
    from sgl_entropic.entropy.from_logprobs import entropy_bounds_from_logprobs

    answer = post(server, "/generate", {**body(TEXTS[0]), "return_logprob": True, "top_logprobs_num": 20})
    info = answer["meta_info"]
    for exact, top in zip(info["entropic"]["entropy_nats"], info["output_top_logprobs"], strict=True):
        bounds = entropy_bounds_from_logprobs([entry[0] for entry in top], len(oracle.tokenizer))
        assert bounds.low_nats - TOLERANCE_NATS <= exact <= bounds.high_nats + TOLERANCE_NATS


@pytest.fixture(scope="module")
def hard_server(
    tmp_path_factory: pytest.TempPathFactory, server: Server, model_path: str
) -> Iterator[Server]:
    """Small chunks, forced retraction every few steps, and SGLang's strictest memory checks."""
    log = tmp_path_factory.mktemp("hard") / "server.log"
    flags = (
        "--model-path",
        model_path,
        "--chunked-prefill-size",
        "32",
        "--enable-mixed-chunk",
        "--max-total-tokens",
        "4096",
        "--entropic-weights",
        "float32",
    )
    env = {"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "5"}
    with entropic_server(log, *flags, env=env) as running:
        yield running
        assert running.alive(), running.log_tail()


def test_chunked_prefill_and_retraction(hard_server: Server, post: Callable[..., Any], oracle: Any) -> None:
    """Prompts in chunks of 32, decode rows riding along, and requests thrown out and prefilled again."""
    answers = post(hard_server, "/generate", body([f"{i}. {text}" for i, text in enumerate(TEXTS * 2)], 24))
    for (i, text), answer in zip(enumerate(TEXTS * 2), answers, strict=True):
        assert_equals_oracle(oracle, f"{i}. {text}", answer)
    assert sum(answer["meta_info"]["num_retractions"] for answer in answers) > 0


@pytest.mark.parametrize(
    "entropic",
    [
        {},
        {"target_entropy_nats": 1.5},
        {"target_entropy_nats": 1.5, "sampling_mode": "newton", "sampling_gain": 0.3},
        {"target_entropy_nats": "auto"},
    ],
    ids=["free", "exact", "newton", "auto"],
)
def test_seeded_texts_and_their_temperatures_survive_retraction(
    server: Server, hard_server: Server, post: Callable[..., Any], entropic: dict[str, Any]
) -> None:
    """A request thrown out and prefilled again goes on where it stood: the text that it has alone and undisturbed."""
    texts = [f"{i}. {text}" for i, text in enumerate(TEXTS)]

    def asked(text: Any, seeds: list[int]) -> dict[str, Any]:
        params = [
            {
                "temperature": 1.0,
                "max_new_tokens": 24,
                "ignore_eos": True,
                "sampling_seed": seed,
                "custom_params": {"entropic": entropic},
            }
            for seed in seeds
        ]
        return {"text": text, "sampling_params": params, "return_entropy": True}

    seeds = [100 + i for i in range(len(texts))]
    crowd = post(hard_server, "/generate", asked(texts, seeds))
    assert sum(answer["meta_info"]["num_retractions"] for answer in crowd) > 0
    for text, seed, answer in zip(texts, seeds, crowd, strict=True):
        (alone,) = post(server, "/generate", asked([text], [seed]))
        assert answer["text"] == alone["text"]
        if entropic:
            mine, other = answer["meta_info"]["entropic"], alone["meta_info"]["entropic"]
            np.testing.assert_allclose(mine["temperature"], other["temperature"], rtol=2e-3)
            assert mine["saturated"] == other["saturated"]


def entropy_of(logits: np.ndarray) -> np.ndarray:
    """Entropy in nats of each row, float64."""
    shifted = logits - logits.max(-1, keepdims=True)
    p = np.exp(shifted)
    p /= p.sum(-1, keepdims=True)
    return -(p * np.log(np.where(p > 0, p, 1.0))).sum(-1)
