"""Sampling at a target entropy on the real server: every route, every neighbour, every feature of the sampler beside it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from sgl_entropic.testing.servers import Server

pytestmark = pytest.mark.e2e

TIMEOUT_S = 600.0
TARGET = 1.5
REACHED_NATS = 2e-3
PROMPT = "The oldest bridge of the town was built by"
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 99},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)


def ask(server: Server, text: str = PROMPT, tokens: int = 24, **more: Any) -> Any:
    """One sampled answer of ``/generate``; ``entropic`` goes into custom_params, all else into sampling_params."""
    parameters: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": tokens, "ignore_eos": True}
    entropic = more.pop("entropic", {"target_entropy_nats": TARGET})
    top = {name: more.pop(name) for name in ("return_logprob", "stream") if name in more}
    parameters |= more
    if entropic:
        parameters["custom_params"] = {"entropic": entropic}
    body = {"text": text, "sampling_params": parameters, "return_entropy": True, **top}
    response = httpx.post(server.url + "/generate", json=body, timeout=TIMEOUT_S)
    assert response.status_code == 200, response.text
    return response.json()


def readings(answer: Any) -> dict[str, Any]:
    found: dict[str, Any] = answer["meta_info"]["entropic"]
    return found


def check_held(found: dict[str, Any], target: float = TARGET, low: float = 0.7, high: float = 1.3) -> None:
    """Every token was drawn at the target, or at a clamp that the target lies beyond."""
    for entropy, temperature, saturated in zip(
        found["sampled_entropy_nats"], found["temperature"], found["saturated"], strict=True
    ):
        assert low - 1e-4 <= temperature <= high + 1e-4
        if not saturated:
            # A token that leaves no choice moves at no temperature.
            assert abs(entropy - target) <= REACHED_NATS or entropy < 1e-3
        elif temperature < (low + high) / 2:
            assert entropy > target
        else:
            assert entropy < target
    assert found["target_entropy_nats"] == target


def test_the_target_is_held_on_generate(server: Server, counters: Callable[[Server], dict[str, int]]) -> None:
    before = counters(server)
    found = readings(ask(server, tokens=48))
    assert len(found["temperature"]) == len(found["saturated"]) == len(found["entropy_nats"]) == 48
    check_held(found)
    assert sum(not saturated for saturated in found["saturated"]) > 10
    after = counters(server)
    assert after["steered_tokens"] - before["steered_tokens"] == 48
    assert after["saturated_tokens"] - before["saturated_tokens"] == sum(found["saturated"])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("chat", [False, True])
def test_on_the_openai_routes(server: Server, *, chat: bool, stream: bool) -> None:
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", timeout=TIMEOUT_S)
    extra = {
        "return_entropy": True,
        "ignore_eos": True,
        "custom_params": {"entropic": {"target_entropy_nats": TARGET}},
    }
    shared: dict[str, Any] = {
        "model": "default",
        "max_tokens": 12,
        "temperature": 1.0,
        "stream": stream,
        "extra_body": extra,
    }
    if chat:
        answer: Any = client.chat.completions.create(messages=[{"role": "user", "content": PROMPT}], **shared)
    else:
        answer = client.completions.create(prompt=PROMPT, **shared)
    chunks = [
        choice.entropic
        for event in (answer if stream else [answer])
        for choice in event.choices
        if hasattr(choice, "entropic")
    ]
    lists = ("sampled_entropy_nats", "temperature", "saturated")
    found: dict[str, Any] = {
        name: [value for chunk in chunks for value in chunk.get(name, [])] for name in lists
    }
    found["target_entropy_nats"] = next(
        c["target_entropy_nats"] for c in chunks if "target_entropy_nats" in c
    )
    assert len(found["temperature"]) == 12
    check_held(found)


def test_a_request_that_does_not_ask_shows_nothing_of_it(server: Server) -> None:
    found = readings(ask(server, entropic=None))
    assert not {"temperature", "saturated", "target_entropy_nats"} & set(found)


@pytest.mark.parametrize("mode", ["newton", "fixed"])
def test_feedback_moves_against_the_error(server: Server, mode: str) -> None:
    """Each temperature follows from the one before and from what it was measured at; the sign is pinned."""
    gain = {"newton": 0.3, "fixed": 0.05}[mode]
    found = readings(
        ask(
            server,
            tokens=40,
            entropic={"target_entropy_nats": TARGET, "sampling_mode": mode, "sampling_gain": gain},
        )
    )
    logs = [math.log(t) for t in found["temperature"]]
    assert logs[0] == pytest.approx(0.0, abs=1e-5)
    moved = 0
    for before, after, entropy in zip(logs, logs[1:], found["sampled_entropy_nats"], strict=False):
        assert (after - before) * (entropy - TARGET) <= 1e-9
        moved += after != before
        inside = math.log(0.7) + 1e-3 < after < math.log(1.3) - 1e-3
        if mode == "fixed" and before != after and inside:
            assert after - before == pytest.approx(-gain * (entropy - TARGET), abs=2e-5)
    assert moved > 10


def test_auto_is_the_prompt_s_own_entropy(server: Server) -> None:
    text = (
        "In the beginning the sea was calm and the ships lay in the harbour, and nobody spoke of the storm."
    )
    body = {
        "text": text,
        "return_prompt_surprisal": True,
        "return_entropy": True,
        "sampling_params": {
            "temperature": 1.0,
            "max_new_tokens": 4,
            "custom_params": {"entropic": {"target_entropy_nats": "auto"}},
        },
    }
    for _ in range(2):  # the second time the prompt comes from the prefix cache
        found = readings(httpx.post(server.url + "/generate", json=body, timeout=TIMEOUT_S).json())
        prompt = [value for value in found["prompt_entropy_nats"] if value is not None]
        assert found["target_entropy_nats"] == pytest.approx(sum(prompt) / len(prompt), abs=1e-3)


def test_neighbours_are_untouched(server: Server) -> None:
    """Greedy ones keep their text; ones that are not steered their temperature, and steered ones their own targets."""
    greedy = ask(server, entropic=None, temperature=0)["text"]

    def one(index: int) -> Any:
        if index % 3 == 0:
            return ask(server, entropic=None, temperature=0)
        if index % 3 == 1:
            return ask(server, entropic=None, temperature=0.8)
        return ask(server, entropic={"target_entropy_nats": 1.0 + index / 10})

    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(one, range(12)))
    for index, answer in enumerate(answers):
        if index % 3 == 0:
            assert answer["text"] == greedy
        elif index % 3 == 2:
            check_held(readings(answer), round(1.0 + index / 10, 6))


@pytest.mark.parametrize(
    "entropic",
    [
        None,
        {"target_entropy_nats": TARGET},
        {"target_entropy_nats": TARGET, "sampling_mode": "newton", "sampling_gain": 0.3},
    ],
)
def test_a_seed_gives_one_text(server: Server, entropic: Any) -> None:
    """Alone, again from the prefix cache, and among fifteen others, of which some bring logprobs or a grammar."""
    alone = ask(server, entropic=entropic, sampling_seed=11)["text"]
    assert ask(server, entropic=entropic, sampling_seed=11)["text"] == alone
    assert ask(server, entropic=entropic, sampling_seed=12)["text"] != alone

    def one(index: int) -> str:
        if index == 7:
            text: str = ask(server, entropic=entropic, sampling_seed=11)["text"]
            return text
        more: dict[str, Any] = {"return_logprob": True} if index % 4 == 0 else {}
        more |= {"json_schema": SCHEMA} if index % 5 == 1 else {}
        more |= {"top_p": 0.9, "frequency_penalty": 0.3} if index % 4 == 2 else {}
        ask(server, f"{index} " + PROMPT, entropic=entropic if index % 2 else None, **more)
        return ""

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(one, range(16)))[7] == alone


@pytest.mark.parametrize(
    "more",
    [
        {"json_schema": SCHEMA, "ignore_eos": False, "max_new_tokens": 60},
        {"regex": "(red|green|blue), [0-9]{4}", "ignore_eos": False},
        {"frequency_penalty": 0.5, "presence_penalty": 0.3, "repetition_penalty": 1.1},
        {"logit_bias": {"28": -100.0, "253": 3.0}},
        {"top_p": 0.9, "top_k": 50, "min_p": 0.01},
        {"temperature": 0.7},
    ],
    ids=lambda more: next(iter(more)),
)
def test_beside_the_sampler_s_other_features(server: Server, more: dict[str, Any]) -> None:
    """The target is that of the distribution after masks and biases, around the request's own temperature."""
    own = more.get("temperature", 1.0)
    answer = ask(server, **more)
    check_held(readings(answer), low=0.7 * own, high=1.3 * own)
    if "json_schema" in more and answer["meta_info"]["finish_reason"]["type"] == "stop":
        assert set(json.loads(answer["text"])) == {"name", "age"}


def test_choices_are_steered_each_for_itself(server: Server) -> None:
    answers = ask(server, n=3)
    assert len({answer["text"] for answer in answers}) > 1
    for answer in answers:
        check_held(readings(answer))


def test_log_probabilities_are_of_the_draw(server: Server) -> None:
    """As in SGLang: at the temperature that the token was drawn at; its surprisal stays the model's own."""
    answer = ask(server, return_logprob=True)
    found = readings(answer)
    for (logprob, _, _), surprisal, temperature in zip(
        answer["meta_info"]["output_token_logprobs"],
        found["surprisal_nats"],
        found["temperature"],
        strict=True,
    ):
        if abs(temperature - 1) < 1e-6:
            assert -logprob == pytest.approx(surprisal, abs=1e-3)
    assert any(
        abs(-logprob - surprisal) > 1e-2
        for (logprob, _, _), surprisal in zip(
            answer["meta_info"]["output_token_logprobs"], found["surprisal_nats"], strict=True
        )
    )


def test_min_p_as_the_actuator(server: Server) -> None:
    found = readings(ask(server, entropic={"target_entropy_nats": 1.0, "sampling_actuator": "min_p"}))
    assert set(found["temperature"]) == {1.0}
    for before, left, saturated in zip(
        found["sampled_entropy_nats"], found["cut_entropy_nats"], found["saturated"], strict=True
    ):
        assert left <= before + 1e-3
        if saturated:
            assert before < 1.0 + 1e-3
        else:
            assert left >= 1.0 - 1e-3
    assert any(value > 0 for value in found["min_p"])


def test_the_trace_tells(server: Server, trace_rows: Callable[[str, int], list[dict[str, Any]]]) -> None:
    answer = ask(server, tokens=6)
    found, rid = readings(answer), answer["meta_info"]["id"]
    rows = trace_rows(rid, 6)
    assert [row["output_index"] for row in rows] == list(range(6))
    assert [row["temperature"] for row in rows] == pytest.approx(found["temperature"], abs=1e-6)
    assert [row["saturated"] for row in rows] == found["saturated"]
    assert {row["target_entropy_nats"] for row in rows} == {TARGET}


@pytest.mark.parametrize(
    ("entropic", "sampling", "said"),
    [
        ({"target_entropy_nats": -1}, {}, "from 0 to 20, auto or off"),
        ({"target_entropy_nats": "warm"}, {}, "from 0 to 20, auto or off"),
        ({"target_entropy_nats": 2.0, "sampling_mode": "pid"}, {}, "fixed or newton or exact"),
        (
            {"target_entropy_nats": 2.0, "sampling_mode": "fixed", "sampling_gain": 0.5},
            {},
            "0 < gain < 0.06631",
        ),
        ({"sampling_gain": 0.5}, {}, "give target_entropy_nats too"),
        ({"target_entropy_nats": 2.0}, {"temperature": 0}, "contradicts temperature = 0"),
        ({"target_entropy_nats": 2.0, "max_temperature_scale": 0.5}, {}, "from 1 to 20"),
    ],
)
def test_bad_input_is_refused_on_every_route(server: Server, entropic: Any, sampling: Any, said: str) -> None:
    custom = {"entropic": entropic}
    bodies = {
        "/generate": {"text": "x", "sampling_params": {**sampling, "custom_params": custom}},
        "/v1/completions": {"model": "default", "prompt": "x", "custom_params": custom, **sampling},
        "/v1/chat/completions": {
            "model": "default",
            "messages": [{"role": "user", "content": "x"}],
            "custom_params": custom,
            **sampling,
        },
    }
    for route, body in bodies.items():
        response = httpx.post(server.url + route, json=body, timeout=TIMEOUT_S)
        assert response.status_code == 400, (route, response.text)
        assert said in response.text
    assert ask(server, tokens=2)["text"]
