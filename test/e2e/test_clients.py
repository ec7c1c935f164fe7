"""What people run against SGLang runs here too, and the official client parses what it gets."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest

from sgl_entropic.testing.servers import Server

pytestmark = pytest.mark.e2e

MESSAGES: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "sunny": {"type": "boolean"}},
    "required": ["city", "sunny"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    """The official client."""
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", timeout=600, max_retries=0)


@pytest.fixture(scope="module")
def model(client: openai.OpenAI) -> str:
    """Name of the served model."""
    return client.models.list().data[0].id


def test_chat_with_entropy(client: openai.OpenAI, model: str) -> None:
    """Each of two choices carries its own readings in ``choice.entropic``."""
    answer = client.chat.completions.create(
        model=model,
        messages=MESSAGES,
        max_tokens=8,
        n=2,
        seed=1,
        temperature=1.0,
        extra_body={"return_entropy": True},
    )
    assert len(answer.choices) == 2
    total = 0
    for choice in answer.choices:
        readings = choice.model_extra["entropic"]
        assert (
            len(readings["entropy_nats"]) == len(readings["surprisal_nats"]) == readings["summary"]["tokens"]
        )
        assert all(h >= 0 for h in readings["entropy_nats"])
        total += readings["summary"]["tokens"]
    assert total == answer.usage.completion_tokens


def test_a_client_that_does_not_ask_sees_stock_fields_only(client: openai.OpenAI, model: str) -> None:
    """No field of ours in chat, completion or stream."""
    chat = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=4)
    plain = client.completions.create(model=model, prompt="One, two,", max_tokens=4)
    assert "entropic" not in chat.model_dump_json()
    assert "entropic" not in plain.model_dump_json()
    for chunk in client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=4, stream=True):
        assert "entropic" not in chunk.model_dump_json()


@pytest.mark.parametrize("route", ["chat", "completion"])
def test_a_stream_carries_every_reading_once(client: openai.OpenAI, model: str, route: str) -> None:
    """The chunks' readings put together are those of the whole answer, and the last chunk brings the summary."""
    ask = {"return_entropy": True}
    shared: dict[str, Any] = {"model": model, "max_tokens": 10, "temperature": 0}
    if route == "chat":
        whole = client.chat.completions.create(messages=MESSAGES, extra_body=ask, **shared)
        stream = client.chat.completions.create(messages=MESSAGES, extra_body=ask, stream=True, **shared)
    else:
        whole = client.completions.create(prompt="The tallest mountain is", extra_body=ask, **shared)
        stream = client.completions.create(
            prompt="The tallest mountain is", extra_body=ask, stream=True, **shared
        )
    seen: list[float] = []
    summary = None
    for chunk in stream:
        for choice in chunk.choices:
            readings = (choice.model_extra or {}).get("entropic") or {}
            if "entropy_nats" in readings:
                assert readings["output_index"] == len(seen)
                seen += readings["entropy_nats"]
            summary = readings.get("summary", summary)
    expected = whole.choices[0].model_extra["entropic"]
    assert seen == pytest.approx(expected["entropy_nats"], abs=1e-3)
    assert summary["tau_nats"] == pytest.approx(expected["summary"]["tau_nats"], abs=1e-2)


def test_batch_completion_keeps_choices_apart(client: openai.OpenAI, model: str) -> None:
    """Several prompts in one request, each with the readings it has alone."""
    prompts = ["The sky is", "Two plus two is", "A cat says"]
    ask = {"custom_params": {"entropic": {"return_entropy": True, "return_prompt_surprisal": True}}}
    batch = client.completions.create(
        model=model, prompt=prompts, max_tokens=5, temperature=0, extra_body=ask
    )
    for prompt, choice in zip(prompts, batch.choices, strict=True):
        alone = client.completions.create(
            model=model, prompt=prompt, max_tokens=5, temperature=0, extra_body=ask
        )
        mine, other = choice.model_extra["entropic"], alone.choices[0].model_extra["entropic"]
        assert mine["entropy_nats"] == pytest.approx(other["entropy_nats"], abs=1e-3)
        assert mine["prompt_surprisal_nats"][1:] == pytest.approx(
            other["prompt_surprisal_nats"][1:], abs=1e-3
        )


def test_summary_only(client: openai.OpenAI, model: str) -> None:
    """A client may ask for the summary without the lists."""
    ask = {"custom_params": {"entropic": {"return_summary": True}}}
    answer = client.completions.create(
        model=model, prompt="Rivers flow", max_tokens=4, temperature=0, extra_body=ask
    )
    assert set(answer.choices[0].model_extra["entropic"]) == {"summary"}


def test_json_schema(client: openai.OpenAI, model: str) -> None:
    """Structured output through the official client, with readings beside it."""
    answer = client.chat.completions.create(
        model=model,
        messages=MESSAGES,
        max_tokens=60,
        temperature=0,
        response_format={"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}},
        extra_body={"return_entropy": True},
    )
    assert set(json.loads(answer.choices[0].message.content)) == {"city", "sunny"}
    assert answer.choices[0].model_extra["entropic"]["summary"]["tokens"] == answer.usage.completion_tokens


def test_frontend_program(server: Server) -> None:
    """An SGLang frontend program with fork, a regular expression and select."""
    import sglang as sgl

    @sgl.function
    def program(s: Any, animal: str) -> Any:  # SGLang wants the first argument to be called s
        s += f"A {animal} is an animal. "
        forks = s.fork(2)
        for index, fork in enumerate(forks):
            fork += f"Fact {index + 1}:" + sgl.gen("fact", max_tokens=6)  # noqa: PLW2901 -- a state is extended in place
        forks.join()
        s += "Legs:" + sgl.gen("legs", regex=" [0-9]", max_tokens=3)
        s += " Is it a bird?" + sgl.select("bird", choices=[" yes", " no"])

    backend = sgl.RuntimeEndpoint(server.url)
    for animal, state in zip(
        ("dog", "robin"),
        program.run_batch([{"animal": "dog"}, {"animal": "robin"}], backend=backend),
        strict=True,
    ):
        assert state["bird"] in (" yes", " no"), animal
        assert state["legs"].strip().isdigit(), animal


def test_sixteen_clients_with_random_aborts(server: Server, counters: Callable[..., Any]) -> None:
    """Clients that hang up in the middle take nothing with them: the server is alive and its idle memory check passes."""
    rng = random.Random(3)

    async def one(http: httpx.AsyncClient, index: int) -> str:
        body = {
            "text": f"Client {index} writes a long story about the sea.",
            "stream": True,
            "return_entropy": True,
            "sampling_params": {"temperature": 1.0, "max_new_tokens": 24, "ignore_eos": True},
        }
        leave_after = rng.choice([None, 1, 3, 8])
        chunks = 0
        async with http.stream("POST", server.url + "/generate", json=body) as response:
            async for line in response.aiter_lines():
                chunks += line.startswith("data: {")
                if leave_after is not None and chunks >= leave_after:
                    return "left"
                if line == "data: [DONE]":
                    return "done"
        return "cut"

    async def all_clients() -> list[str]:
        async with httpx.AsyncClient(timeout=600, limits=httpx.Limits(max_connections=16)) as http:
            return await asyncio.gather(*(one(http, index) for index in range(16)))

    outcomes = asyncio.run(all_clients())
    assert set(outcomes) <= {"left", "done"}
    assert {"left", "done"} <= set(outcomes)
    assert_idle_memory_is_whole(server)
    assert server.alive()
    assert counters(server)["measured_tokens"] > 0


def assert_idle_memory_is_whole(server: Server) -> None:
    """``flush_cache`` succeeds only when nothing runs, and SGLang's own leak check then has every slot back."""
    server.empty_cache()
    assert "memory leak" not in server.log.read_text(errors="replace").lower()
