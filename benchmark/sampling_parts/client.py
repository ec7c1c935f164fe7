"""Asking the server for answers with readings; an answer that lacks any is an error."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

TIMEOUT_S = 1800.0


class AnswerError(RuntimeError):
    """The server refused a request, or an answer is not what was asked for."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Tokens of one answer and what was measured of each.

    Attributes:
        ids: the tokens.
        sampled_nats: entropy of the distribution each was drawn from.
        model_nats: entropy of the model's own, at temperature 1.
        surprisal_nats: of the token in the model's own.
        saturated: target out of reach; empty for answers that are not controlled.
        temperature: each was drawn at; empty likewise, and where it is not what is moved.
    """

    ids: list[int]
    sampled_nats: list[float]
    model_nats: list[float]
    surprisal_nats: list[float]
    saturated: list[bool]
    temperature: list[float]


def body_of(
    prompt: Sequence[int], tokens: int, temperature: float, asked: dict[str, Any] | None
) -> dict[str, Any]:
    """A request of exactly ``tokens`` tokens from the whole vocabulary; ``asked`` is what the controller is to do."""
    sampling = {"temperature": temperature, "top_p": 1.0, "top_k": -1, "min_p": 0.0}
    entropic = {"return_entropy": True, **(asked or {})}
    length = {"max_new_tokens": tokens, "ignore_eos": True}
    return {
        "input_ids": list(prompt),
        "sampling_params": {**sampling, **length, "custom_params": {"entropic": entropic}},
    }


def answer_of(content: dict[str, Any], tokens: int, *, controlled: bool) -> Answer:
    """Read an answer of ``/generate``.

    Raises:
        AnswerError: another number of tokens or readings than ``tokens``, an undefined reading, or one that says
            that the controller did (not) act though it was (not) asked to.
    """
    readings = content["meta_info"].get("entropic") or {}
    ids = [int(token) for token in content["output_ids"]]
    if len(ids) != tokens:
        raise AnswerError(f"{len(ids)} tokens came, {tokens} were asked for")
    names = ("sampled_entropy_nats", "entropy_nats", "surprisal_nats")
    sampled, model, surprisal = (numbers_of(readings.get(name), name, tokens) for name in names)
    if not controlled:
        if any(readings.get("saturated") or ()):
            raise AnswerError("an answer without a target says that its controller is saturated")
        return Answer(ids, sampled, model, surprisal, [], [])
    flags = readings.get("saturated") or []
    if len(flags) != tokens or not all(isinstance(flag, bool) for flag in flags):
        raise AnswerError(f"saturated: {len(flags)} flags for {tokens} tokens; the controller did not act")
    # An actuator that leaves the temperature alone has none to report.
    found = readings.get("temperature")
    temperature = numbers_of(found, "temperature", tokens) if found else []
    return Answer(ids, sampled, model, surprisal, flags, temperature)


def numbers_of(values: Any, name: str, count: int) -> list[float]:
    """``values`` as ``count`` finite numbers.

    Raises:
        AnswerError: they are not.
    """
    if not isinstance(values, list) or len(values) != count:
        raise AnswerError(f"{name}: {len(values or [])} readings for {count} tokens")
    undefined = sum(value is None or not math.isfinite(value) for value in values)
    if undefined:
        raise AnswerError(f"{name}: {undefined} of {count} readings are undefined")
    return [float(value) for value in values]


async def post_all(
    url: str, route: str, bodies: Sequence[dict[str, Any]], clients: int
) -> tuple[list[Any], float]:
    """The contents of all answers, in the order of ``bodies``, ``clients`` at a time, and the seconds it took.

    Raises:
        AnswerError: any failed, or has another status than 200.
    """
    gate = asyncio.Semaphore(clients)
    limits = httpx.Limits(max_connections=clients)

    async with httpx.AsyncClient(timeout=TIMEOUT_S, limits=limits) as http:

        async def one(body: dict[str, Any]) -> Any:
            async with gate:
                try:
                    response = await http.post(url + route, json=body)
                except httpx.HTTPError as error:
                    raise AnswerError(f"{route}: {type(error).__name__}: {error}") from error
            if response.status_code != 200:
                raise AnswerError(f"{route}: status {response.status_code}: {response.text[:500]}")
            return response.json()

        # Making a client takes some milliseconds, which are none of the server's.
        begin = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(body)) for body in bodies]
        elapsed = time.perf_counter() - begin
    return [task.result() for task in tasks], elapsed


def posted(url: str, route: str, bodies: Sequence[dict[str, Any]], clients: int) -> list[Any]:
    """The contents of :func:`post_all`, waited for."""
    return timed(url, route, bodies, clients)[0]


def timed(url: str, route: str, bodies: Sequence[dict[str, Any]], clients: int) -> tuple[list[Any], float]:
    """:func:`post_all`, waited for; the first failure is raised as itself."""
    try:
        return asyncio.run(post_all(url, route, bodies, clients))
    except ExceptionGroup as group:
        raise group.exceptions[0] from None


@dataclass(frozen=True, slots=True)
class Asker:
    """Asks one server for answers to the same prompts again and again.

    Attributes:
        url: base address.
        prompts: ids of each.
        clients: requests at a time.
    """

    url: str
    prompts: list[list[int]]
    clients: int

    def answers(self, tokens: int, temperature: float, asked: dict[str, Any] | None = None) -> list[Answer]:
        """One answer to each prompt.

        Raises:
            AnswerError: any failed.
        """
        bodies = [body_of(prompt, tokens, temperature, asked) for prompt in self.prompts]
        contents = posted(self.url, "/generate", bodies, self.clients)
        return [answer_of(content, tokens, controlled=asked is not None) for content in contents]

    def scored(self, texts: list[list[int]]) -> list[tuple[list[float], list[float]]]:
        """Entropy and surprisal of each token of ``texts`` behind the prompts, in the model's own distribution.

        Raises:
            AnswerError: any failed.
        """
        sampling = {
            "temperature": 0,
            "max_new_tokens": 1,
            "custom_params": {"entropic": {"return_prompt_surprisal": True}},
        }
        bodies = [
            {"input_ids": [*prompt, *text], "sampling_params": sampling}
            for prompt, text in zip(self.prompts, texts, strict=True)
        ]
        contents = posted(self.url, "/generate", bodies, self.clients)
        result = []
        for prompt, text, content in zip(self.prompts, texts, contents, strict=True):
            readings = content["meta_info"].get("entropic") or {}
            entropy, surprisal = (
                numbers_of((readings.get(name) or [])[len(prompt) :], name, len(text))
                for name in ("prompt_entropy_nats", "prompt_surprisal_nats")
            )
            result.append((entropy, surprisal))
        return result
