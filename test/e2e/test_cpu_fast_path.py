"""The CPU's fast path on a real model: the same answers as SGLang's own operations, and SGLang's features on it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest

from sgl_entropic.testing.servers import Server, entropic_server

pytestmark = pytest.mark.e2e

TIMEOUT_S = 600.0
TIE_NATS = 1e-4  # below this, float32 in another order may choose the other token
LOGPROB_NATS = 2e-4
STEM = "The lighthouse keeper wrote in his diary every evening about the sea, the wind and the ships. "
PROMPTS = (
    "Explain rain.",
    "Write a line about bread.",
    "Q: Why clocks?\nA:",
    "The history of ships began",
    "def count_bees(items):\n   ",
    "In 1969 two people walked on the Moon. Their names were",
    "Die Hauptstadt von Frankreich ist",
    "List three primary colours: red,",
    "Water boils at a lower temperature on a mountain because",
    "SELECT name FROM",
    "Salt",
    # Longer than one chunk of the prefill.
    STEM * 12 + "On the last page he noted that",
)
SUBJECTS = ("salt", "oil", "tea", "iron", "rope", "bread", "rain", "sand")
SCHEMA = (
    '{"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer",'
    ' "minimum": 0, "maximum": 99}}, "required": ["name", "age"], "additionalProperties": false}'
)
# Requests whose greedy answers must not depend on how the numbers were computed.
FEATURES: dict[str, dict[str, Any]] = {
    "n": {"n": 3},
    "penalties": {"frequency_penalty": 0.7, "presence_penalty": 0.3, "repetition_penalty": 1.2},
    "logit_bias": {"logit_bias": {"28": -100.0, "253": 5.0}},
    "json_schema": {"json_schema": SCHEMA, "max_new_tokens": 40},
    "regex": {"regex": "(red|green|blue), [0-9]{4}"},
    "stop": {"stop": [" the"], "max_new_tokens": 32},
    "ignore_eos": {"ignore_eos": True, "max_new_tokens": 48},
}


def ask(server: Server, text: Any, tokens: int = 16, sampling: Any = None, **more: Any) -> Any:
    """Greedy answers of ``/generate``."""
    parameters = {"temperature": 0, "max_new_tokens": tokens, **(sampling or {})}
    body = {"text": text, "sampling_params": parameters, **more}
    response = httpx.post(server.url + "/generate", json=body, timeout=TIMEOUT_S)
    assert response.status_code == 200, response.text
    return response.json()


def ask_greedily(server: Server) -> Any:
    """The 12 prompts, 64 tokens each, with what came second at every step."""
    return ask(server, list(PROMPTS), 64, return_logprob=True, top_logprobs_num=2)


def ask_features(server: Server) -> dict[str, Any]:
    return {name: ask(server, PROMPTS[7], sampling=sampling) for name, sampling in FEATURES.items()}


def ask_readings(server: Server) -> Any:
    """Log-probabilities of prompt and answer, and hidden states."""
    return ask(
        server,
        STEM,
        8,
        return_logprob=True,
        logprob_start_len=0,
        top_logprobs_num=5,
        return_hidden_states=True,
    )


def state_of(server: Server) -> dict[str, Any]:
    """The fast path's evidence."""
    state = httpx.get(server.url + "/server_info", timeout=TIMEOUT_S).json()["internal_states"][0]
    cpu: dict[str, Any] = state["sgl_entropic"]["cpu"]
    return cpu


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory, model_path: str) -> dict[str, Any]:
    """The answers of SGLang's own operations; its server is gone before the next one starts."""
    log = tmp_path_factory.mktemp("slow") / "server.log"
    flags = (
        "--entropic-cpu-fast-path",
        "off",
        "--entropic-telemetry",
        "off",
        "--enable-return-hidden-states",
    )
    with entropic_server(log, "--model-path", model_path, *flags) as server:
        state = httpx.get(server.url + "/server_info", timeout=TIMEOUT_S).json()["internal_states"][0]
        return {
            "state": state["sgl_entropic"],
            "greedy": ask_greedily(server),
            "features": ask_features(server),
            "readings": ask_readings(server),
        }


@pytest.fixture(scope="module")
def fast(
    tmp_path_factory: pytest.TempPathFactory, model_path: str, stock: dict[str, Any]
) -> Iterator[Server]:
    """The fast path on float32 weights, in chunks of 64 and with a pool too small for 16 long answers."""
    log = tmp_path_factory.mktemp("fast") / "server.log"
    flags = ("--entropic-weights", "float32", "--chunked-prefill-size", "64", "--max-total-tokens", "1400")
    more = ("--enable-return-hidden-states", "--schedule-conservativeness", "0.01")
    with entropic_server(log, "--model-path", model_path, *flags, *more) as running:
        yield running
        state = state_of(running)
        assert (state["last_backend"], state["module_steps"]) == ("fused", 0)
        assert (state["paged_attention_calls"], state["native_attention_calls"]) == (0, 0)
        assert running.alive(), running.log_tail()


@pytest.fixture(scope="module")
def rounded(tmp_path_factory: pytest.TempPathFactory, model_path: str) -> Iterator[Server]:
    """The default: 8-bit weights. On one thread, so that a setting of the platform is seen to arrive."""
    log = tmp_path_factory.mktemp("rounded") / "server.log"
    flags = ("--entropic-cpu-threads", "1", "--max-total-tokens", "4096")
    with entropic_server(log, "--model-path", model_path, *flags) as running:
        yield running
        assert running.alive(), running.log_tail()


def test_the_default_is_eight_bits(rounded: Server) -> None:
    """And it was told how many threads to take."""
    ask(rounded, PROMPTS[0], 4)
    state = state_of(rounded)
    assert (state["weights"], state["last_backend"], state["module_steps"]) == ("int8", "fused", 0)
    assert state["threads"] == 1


def test_off_is_off(stock: dict[str, Any]) -> None:
    """Nothing of the fast path is there."""
    assert stock["state"].get("cpu") is None
    assert stock["state"]["config"]["cpu"]["fast_path"] is False


def test_greedy_answers_are_stock(stock: dict[str, Any], fast: Server) -> None:
    """12 prompts of up to 300 tokens, 64 tokens each; a difference is a tie of the two most likely tokens."""
    before = state_of(fast)
    for mine, theirs in zip(ask_greedily(fast), stock["greedy"], strict=True):
        ours, stocks = mine["output_ids"], theirs["output_ids"]
        first = next((i for i, pair in enumerate(zip(ours, stocks, strict=True)) if len(set(pair)) > 1), None)
        if first is not None:
            best, second = theirs["meta_info"]["output_top_logprobs"][first]
            assert best[0] - second[0] < TIE_NATS
        chosen = [
            [entry[0] for entry in answer["meta_info"]["output_token_logprobs"][:first]]
            for answer in (mine, theirs)
        ]
        np.testing.assert_allclose(*chosen, atol=LOGPROB_NATS)
    after = state_of(fast)
    assert after["fused_steps"] - before["fused_steps"] >= 64
    assert after["fused_tokens"] - before["fused_tokens"] >= 12 * 63
    assert after["weights"] == "float32"


@pytest.mark.parametrize("name", FEATURES)
def test_features_are_stock(stock: dict[str, Any], fast: Server, name: str) -> None:
    mine, theirs = ask(fast, PROMPTS[7], sampling=FEATURES[name]), stock["features"][name]
    if name == "n":
        assert len(mine) == len(theirs) == 3
        assert {answer["text"] for answer in mine} == {answer["text"] for answer in theirs}
        return
    assert mine["text"] == theirs["text"]
    assert mine["output_ids"] == theirs["output_ids"]


def test_logprobs_and_hidden_states_are_stock(stock: dict[str, Any], fast: Server) -> None:
    """Of the prompt and of the answer, five tokens deep."""
    mine, theirs = ask_readings(fast)["meta_info"], stock["readings"]["meta_info"]
    for name in ("input_token_logprobs", "output_token_logprobs"):
        values = [
            np.array([np.nan if entry[0] is None else entry[0] for entry in info[name]], float)
            for info in (mine, theirs)
        ]
        np.testing.assert_allclose(*values, atol=LOGPROB_NATS)
        assert len(values[0]) >= 8
    for name in ("input_top_logprobs", "output_top_logprobs"):
        deep = [
            np.array([[item[0] for item in entry] for entry in info[name] if entry], float)
            for info in (mine, theirs)
        ]
        assert deep[0].shape[1] == 5
        np.testing.assert_allclose(*deep, atol=LOGPROB_NATS)
    # One entry a step; the first is that of the prompt's tokens, here in two chunks.
    for ours, stocks in zip(mine["hidden_states"][1:], theirs["hidden_states"][1:], strict=True):
        np.testing.assert_allclose(ours, stocks, atol=2e-3)
    assert len(mine["hidden_states"]) == 8


def test_telemetry_is_the_oracle_s(fast: Server, oracle: Any) -> None:
    """Entropies and surprisals, from the statistics that the LM head computes along with the logits."""
    before = state_of(fast)["head_statistics_recalled"]
    answer = ask(
        fast,
        PROMPTS[8],
        sampling={"custom_params": {"entropic": {"return_entropy": True, "return_prompt_surprisal": True}}},
    )
    prompt = oracle.tokenizer(PROMPTS[8])["input_ids"]
    truth, readings = oracle(prompt + answer["output_ids"]), answer["meta_info"]["entropic"]
    np.testing.assert_allclose(readings["entropy_nats"], truth.entropy_nats[len(prompt) :], atol=1e-3)
    np.testing.assert_allclose(readings["surprisal_nats"], truth.surprisal_nats[len(prompt) :], atol=1e-3)
    for name in ("surprisal", "entropy"):
        mine = np.array(readings[f"prompt_{name}_nats"], float)
        np.testing.assert_allclose(mine[1:], getattr(truth, f"{name}_nats")[1 : len(prompt)], atol=1e-3)
    assert state_of(fast)["head_statistics_recalled"] - before >= len(answer["output_ids"]) - 1


def sixteen() -> list[str]:
    """Prompts of many lengths, eight of them with a common prefix."""
    return [
        *PROMPTS[:8],
        *(f"{STEM}{subject} was" for subject in SUBJECTS),
    ]


@pytest.mark.parametrize(("fixture", "weights"), [("fast", "float32"), ("rounded", "int8")])
def test_company_changes_nothing(request: pytest.FixtureRequest, fixture: str, weights: str) -> None:
    """16 prompts alone, all together, and all together again, from the cache: the same tokens."""
    running = request.getfixturevalue(fixture)
    assert state_of(running)["weights"] == weights
    httpx.post(running.url + "/flush_cache", timeout=TIMEOUT_S).raise_for_status()
    alone = [ask(running, prompt, 24)["output_ids"] for prompt in sixteen()]
    httpx.post(running.url + "/flush_cache", timeout=TIMEOUT_S).raise_for_status()
    together = ask(running, sixteen(), 24)
    again = ask(running, sixteen(), 24)
    assert sum(answer["meta_info"]["cached_tokens"] for answer in again) > 8 * 15
    assert [answer["output_ids"] for answer in together] == alone
    assert [answer["output_ids"] for answer in again] == alone
    assert state_of(running)["last_backend"] == "fused"


def test_retraction_under_a_small_pool(fast: Server) -> None:
    """Requests that were thrown out and prefilled again end as they would have alone."""
    prompts = [f"{index}. {PROMPTS[index % 8]}" for index in range(32)]
    answers = ask(fast, prompts, 100, sampling={"min_new_tokens": 100})
    retracted = [index for index, answer in enumerate(answers) if answer["meta_info"]["num_retractions"]]
    assert retracted
    for index in retracted[:4]:
        alone = ask(fast, prompts[index], 100, sampling={"min_new_tokens": 100})
        assert answers[index]["output_ids"] == alone["output_ids"]


def test_an_abort_leaves_nothing_behind(fast: Server) -> None:
    """Clients that hang up in the middle of their streams, beside one that stays."""
    expected = ask(fast, PROMPTS[3], 40)["output_ids"]
    body = {
        "text": PROMPTS[2],
        "sampling_params": {"temperature": 0, "max_new_tokens": 600, "ignore_eos": True},
        "stream": True,
    }

    def hang_up() -> int:
        with httpx.stream("POST", fast.url + "/generate", json=body, timeout=TIMEOUT_S) as response:
            lines = response.iter_lines()
            return sum(len(next(lines)) > 0 for _ in range(6))

    with ThreadPoolExecutor(2) as pool:
        hung_up = pool.submit(hang_up)
        assert ask(fast, PROMPTS[3], 40)["output_ids"] == expected
        assert hung_up.result() > 0
    fast.empty_cache()
    assert ask(fast, PROMPTS[3], 40)["output_ids"] == expected


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/v1/embeddings", {"model": "default", "input": "a"}),
        ("/generate", {"input_embeds": [[0.1] * 576] * 3, "sampling_params": {"max_new_tokens": 2}}),
        ("/update_weights_from_disk", {"model_path": "somewhere"}),
        ("/get_weights_by_name", {"name": "model.norm.weight"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_served_is_refused(fast: Server, route: str, body: dict[str, Any]) -> None:
    """With a client's error, and the next request is answered."""
    response = httpx.post(fast.url + route, json=body, timeout=TIMEOUT_S)
    assert 400 <= response.status_code < 500, response.text
    assert ask(fast, PROMPTS[0], 4)["meta_info"]["completion_tokens"] == 4
