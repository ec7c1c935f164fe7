"""Gravity, energy and free energy of a real server's tokens, against hidden states of the same weights in transformers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import orjson
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from sgl_entropic.gravity.settings import GravitySettings
from sgl_entropic.testing.servers import Server, entropic_server

pytestmark = pytest.mark.e2e

TIMEOUT_S = 600.0
WINDOW, TOP_K, DECAY = 8, 5, 0.9
SETTINGS = GravitySettings()
KEYS = ("gravity", "energy", "free_energy", "tier")
PROMPTS = tuple(
    f"{head} {tail}"
    for head in (
        "The capital of France is",
        "Once upon a time there was",
        "def add(a, b):",
        "One, two, three, four,",
    )
    for tail in ("", "and so", "the old", "in a\n")
)
COUNTING = "One, two, three, four, "
LONG = "The lighthouse keeper climbed the stairs every evening and lit the lamp. " * 12


class States:
    """Final hidden states of a token sequence, after the last norm, and what is computed from them, in float64."""

    def __init__(self, path: str) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(path)
        self._model = AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, attn_implementation="eager"
        )

    @torch.inference_mode()
    def __call__(self, token_ids: list[int]) -> np.ndarray:
        output = self._model(torch.tensor([token_ids]), output_hidden_states=True)
        states = output.hidden_states[-1]
        # After the norm, not before it: what the LM head makes logits of.
        torch.testing.assert_close(self._model.lm_head(states), output.logits, atol=1e-4, rtol=0)
        return states[0].double().numpy()

    def truth(self, prompt: list[int], answer: list[int], mean: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Gravity and energy of each token of ``answer``; NaN where there is no energy."""
        states = self(prompt + answer)[len(prompt) - 1 : -1] - mean
        units = states / np.linalg.norm(states, axis=1, keepdims=True)
        gravity, energy = np.zeros(len(units)), np.full(len(units), np.nan)
        centre = units[0]
        for t in range(1, len(units)):
            energy[t] = 1 - centre @ units[t] / np.linalg.norm(centre)
            centre = DECAY * centre + (1 - DECAY) * units[t]
            if t >= WINDOW:
                gravity[t] = np.sort(units[t - WINDOW : t] @ units[t])[-TOP_K:].mean()
        return gravity, energy


@pytest.fixture(scope="module")
def states(model_path: str) -> States:
    return States(model_path)


@pytest.fixture(scope="module")
def mean(states: States) -> np.ndarray:
    return states(states.tokenizer.encode(LONG + " ".join(PROMPTS)))[1:].mean(0).astype(np.float32)


@pytest.fixture(scope="module")
def mean_path(mean: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mean") / "mean.npy"
    np.save(path, mean)
    return path


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trace") / "trace.jsonl"


@pytest.fixture(scope="module")
def heavy(tmp_path_factory: pytest.TempPathFactory, mean_path: Path, trace: Path) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("heavy") / "server.log"
    flags = ["--entropic-gravity", "on", "--entropic-gravity-mean-path", str(mean_path), "--enable-metrics"]
    flags += ["--entropic-weights", "float32", "--entropic-trace-path", str(trace)]
    with entropic_server(log, *flags) as running:
        yield running
        assert running.alive(), running.log_tail()


def ask(server: Server, text: str, tokens: int = 40, **more: Any) -> dict[str, Any]:
    body = {
        "text": text,
        "return_entropy": True,
        "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True},
        **more,
    }
    response = httpx.post(server.url + "/generate", json=body, timeout=TIMEOUT_S)
    assert response.status_code == 200, response.text
    return response.json()


def crowd(server: Server, texts: tuple[str, ...], tokens: int = 40) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(len(texts)) as pool:
        return list(pool.map(lambda text: ask(server, text, tokens), texts))


def check(states: States, mean: np.ndarray, text: str, answer: dict[str, Any]) -> None:
    read = answer["meta_info"]["entropic"]
    gravity, energy = states.truth(states.tokenizer.encode(text), answer["output_ids"], mean)
    np.testing.assert_allclose(read["gravity"], gravity, atol=1e-3)
    assert read["energy"][0] is None
    np.testing.assert_allclose(read["energy"][1:], energy[1:], atol=1e-3)
    cost = energy + np.array(read["entropy_nats"]) / math.log(states.tokenizer.vocab_size)
    np.testing.assert_allclose(read["free_energy"][1:], cost[1:], atol=2e-3)


def test_each_token_equals_the_truth_alone_and_in_a_crowd(
    heavy: Server, states: States, mean: np.ndarray
) -> None:
    alone = [ask(heavy, text) for text in PROMPTS[:3]]
    together = crowd(heavy, PROMPTS)
    for text, answer in zip(PROMPTS, together, strict=True):
        check(states, mean, text, answer)
    for one, of_crowd in zip(alone, together, strict=False):
        assert one["output_ids"] == of_crowd["output_ids"]
        for key in KEYS:
            assert one["meta_info"]["entropic"][key] == of_crowd["meta_info"]["entropic"][key]


def test_a_prefix_hit_and_a_long_prompt_change_nothing(
    heavy: Server, states: States, mean: np.ndarray
) -> None:
    first, second = ask(heavy, LONG), ask(heavy, LONG)
    assert second["meta_info"]["cached_tokens"] > 0
    for answer in (first, second):
        check(states, mean, LONG, answer)


def test_tiers_follow_the_readings(heavy: Server) -> None:
    """A text that counts on is decided; an opening never is."""
    answer = ask(heavy, COUNTING, tokens=120)["meta_info"]["entropic"]
    assert set(answer["tier"][:16]) == {"weak"}
    assert "strong" in answer["tier"]
    for tier, gravity, entropy in zip(
        *(answer[key] for key in ("tier", "gravity", "entropy_nats")), strict=True
    ):
        if tier == "strong":
            assert gravity >= SETTINGS.strong.gravity - SETTINGS.gravity_margin - 1e-6
            assert entropy <= SETTINGS.strong.entropy_nats + SETTINGS.entropy_margin_nats + 1e-6
    summary = answer["summary"]
    assert summary["mean_gravity"] == pytest.approx(np.mean(answer["gravity"]), abs=1e-5)
    assert summary["strong_share"] == pytest.approx(answer["tier"].count("strong") / 120, abs=1e-6)
    assert summary["mean_free_energy"] == pytest.approx(np.mean(answer["free_energy"][1:]), abs=1e-5)


def test_all_routes_and_the_trace_tell_the_same(heavy: Server, trace: Path) -> None:
    whole = ask(heavy, PROMPTS[0], tokens=20)
    expected = {key: whole["meta_info"]["entropic"][key] for key in KEYS}
    client = openai.OpenAI(base_url=heavy.url + "/v1", api_key="none")
    asked = {"model": "default", "prompt": PROMPTS[0], "max_tokens": 20, "temperature": 0}
    extra = {"return_entropy": True, "ignore_eos": True}
    plain: Any = client.completions.create(**asked, extra_body=extra).choices[0]
    assert {key: plain.entropic[key] for key in KEYS} == expected
    assert (
        plain.entropic["summary"]["mean_gravity"] == whole["meta_info"]["entropic"]["summary"]["mean_gravity"]
    )
    streamed: dict[str, list[Any]] = {key: [] for key in KEYS}
    for event in client.completions.create(**asked, stream=True, extra_body=extra):
        for key in KEYS:
            streamed[key] += (getattr(event.choices[0], "entropic", None) or {}).get(key, [])
    assert streamed == expected
    rid = whole["meta_info"]["id"]
    records = [orjson.loads(line) for line in trace.read_bytes().splitlines() if line.endswith(b"}")]
    rows = [row for record in records for row in record.get("rows", ()) if row["rid"] == rid]
    assert [row["tier"] for row in rows] == expected["tier"]
    assert [row["gravity"] for row in rows] == pytest.approx(expected["gravity"], abs=1e-6)


def test_a_client_that_does_not_ask_gets_a_summary_only(heavy: Server) -> None:
    read = ask(heavy, PROMPTS[1], return_entropy=False)["meta_info"]["entropic"]
    assert set(read) == {"summary"}
    assert {"mean_gravity", "strong_share"} <= set(read["summary"])


def test_metrics_and_counters(heavy: Server, counters: Callable[[Server], dict[str, int]]) -> None:
    before = counters(heavy)
    ask(heavy, LONG, tokens=60)
    after = counters(heavy)
    grown = {name: after[name] - before[name] for name in after}
    assert (
        grown["strong_tokens"] + grown["medium_tokens"] + grown["weak_tokens"]
        == grown["measured_tokens"]
        == 60
    )
    assert grown["gravity_rows"] >= 60
    metrics = httpx.get(heavy.url + "/metrics", timeout=TIMEOUT_S).text
    for name in ("sgl_entropic:fleet_gravity", "sgl_entropic:strong_tokens_total"):
        assert name in metrics
    state = httpx.get(heavy.url + "/server_info", timeout=TIMEOUT_S).json()["internal_states"][0][
        "sgl_entropic"
    ]
    assert state["gravity"]["enabled"]
    assert state["gravity"]["compiled"]
    assert state["gravity"]["fleet_share"] == 0.0


def test_the_fleet_is_told_while_it_runs(heavy: Server) -> None:
    """Some texts that count on, which reach the strong tier one by one, and nobody left at the end."""

    def share() -> float:
        info = httpx.get(heavy.url + "/server_info", timeout=TIMEOUT_S).json()
        return float(info["internal_states"][0]["sgl_entropic"]["gravity"]["fleet_share"])

    shares = []
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(ask, heavy, COUNTING, 300) for _ in range(4)]
        while not all(one.done() for one in running):
            shares.append(share())
        answers = [one.result() for one in running]
    assert all("strong" in answer["meta_info"]["entropic"]["tier"] for answer in answers)
    assert max(shares) > 0.0
    possible = {among / of for of in range(1, 5) for among in range(of + 1)}
    assert set(shares) <= possible
    assert share() == 0.0


def test_off_there_is_nothing_of_it(server: Server, heavy: Server) -> None:
    """The main server runs without: same tokens, same readings, no new keys."""
    plain, with_gravity = ask(server, PROMPTS[0]), ask(heavy, PROMPTS[0])
    assert plain["output_ids"] == with_gravity["output_ids"]
    off, on = plain["meta_info"]["entropic"], with_gravity["meta_info"]["entropic"]
    assert not set(KEYS) & set(off)
    assert not {"mean_gravity", "strong_share"} & set(off["summary"])
    for key in KEYS:
        del on[key]
    on["summary"] = {name: on["summary"][name] for name in off["summary"]}
    assert json.dumps(on) == json.dumps(off)


def test_chunks_mixed_batches_and_retractions(
    tmp_path_factory: pytest.TempPathFactory, mean_path: Path, states: States, mean: np.ndarray
) -> None:
    """Where it goes wrong: a retracted request's window restarts, everything else is as if nothing had happened."""
    log = tmp_path_factory.mktemp("rough") / "server.log"
    flags = [
        "--entropic-gravity",
        "on",
        "--entropic-gravity-mean-path",
        str(mean_path),
        "--entropic-weights",
        "float32",
    ]
    flags += ["--chunked-prefill-size", "32", "--enable-mixed-chunk"]
    env = {"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "40"}
    texts = (*PROMPTS[:5], LONG, LONG + "Then", LONG + "But")
    with entropic_server(log, *flags, env=env) as rough:
        answers = crowd(rough, texts, tokens=60)
    retractions = 0
    for text, answer in zip(texts, answers, strict=True):
        gravity, _ = states.truth(states.tokenizer.encode(text), answer["output_ids"], mean)
        read = np.array(answer["meta_info"]["entropic"]["gravity"])
        told = read != 0.0
        np.testing.assert_allclose(read[told], gravity[told], atol=1e-3)
        times = answer["meta_info"]["num_retractions"]
        assert WINDOW <= (~told).sum() <= WINDOW * (1 + times)
        retractions += times
    assert retractions > 0
