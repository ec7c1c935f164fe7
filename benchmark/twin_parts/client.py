"""Load from one process: streaming requests to ``/v1/completions``, the route that all compared servers have.

While a load runs the client only notes when each event arrived; it reads them afterwards, so that it takes little from
the server that it shares the cores with.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from twin_parts.workloads import GRAMMAR, SCHEMA, Client, Turn

REQUEST_TIMEOUT_S = 1800.0
_DATA, _DONE = b"data:", b"[DONE]"


class LoadError(RuntimeError):
    """A server did not do what was asked: an error, no tokens, or another number of them."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a kind of server is asked for exactly so many tokens, and for a document of the schema.

    Attributes:
        exact: fields that make it go on to the length.
        structured: fields that hold the answer to the schema; ``None`` when it cannot.
        may_stop: it has no field for that, so an answer may end early; the tokens that came are counted.
    """

    exact: Mapping[str, Any]
    structured: Mapping[str, Any] | None
    may_stop: bool = False


_USAGE = {"stream_options": {"include_usage": True}}
DIALECTS = {
    "sglang": Dialect({"ignore_eos": True, **_USAGE}, {"json_schema": json.dumps(SCHEMA), **_USAGE}),
    "llamacpp": Dialect({}, {"grammar": GRAMMAR}, may_stop=True),
    "llamacpp-native": Dialect({"ignore_eos": True, **_USAGE}, {"json_schema": SCHEMA, **_USAGE}),
    "hf": Dialect({"ignore_eos": True, **_USAGE}, None),
}


@dataclass(frozen=True, slots=True)
class Answer:
    """One finished request; times in seconds.

    Attributes:
        client: index of the client.
        turn: index of the turn.
        sent_s: when it was sent, from the beginning of the workload.
        arrivals_s: when each piece of text arrived, from the beginning of the workload.
        end_s: when the stream ended, likewise.
        input_tokens: prompt length.
        output_tokens: answer length.
        asked_tokens: the length that was asked for.
        stopped_early: the model ended the answer before, where it must not (``structured`` answers end by themselves).
        text: the answer.
    """

    client: int
    turn: int
    sent_s: float
    arrivals_s: tuple[float, ...]
    end_s: float
    input_tokens: int
    output_tokens: int
    asked_tokens: int
    stopped_early: bool
    text: str

    @property
    def ttft_s(self) -> float:
        """From sending to the first piece."""
        return self.arrivals_s[0] - self.sent_s

    @property
    def gaps_s(self) -> list[float]:
        """Between pieces; a piece is one token unless the server was so fast that it sent two at once."""
        return [later - earlier for earlier, later in zip(self.arrivals_s, self.arrivals_s[1:], strict=False)]

    def tokens_until(self, time_s: float) -> float:
        """Tokens that had arrived at ``time_s``, taking all pieces as equally long."""
        arrived = sum(arrival <= time_s for arrival in self.arrivals_s)
        return self.output_tokens * arrived / len(self.arrivals_s)


def body_of(turn: Turn, prompt: str, dialect: Dialect, model: str, seed: int) -> dict[str, Any]:
    """The request, greedy, so that only the machine decides how long it takes.

    Raises:
        LoadError: the server cannot hold an answer to a schema.
    """
    extra = dialect.structured if turn.structured else dialect.exact
    if extra is None:
        raise LoadError("this server cannot hold an answer to a schema")
    common = {"model": model, "prompt": prompt, "max_tokens": turn.output_tokens}
    return {**common, "temperature": 0.0, "seed": seed, "stream": True, **extra}


async def run_clients(
    url: str,
    clients: Sequence[Client],
    dialect: Dialect,
    count: Callable[[str], int],
    *,
    model: str = "default",
    seed: int = 0,
) -> list[Answer]:
    """Let all clients run to their end.

    Args:
        url: base address of the server.
        clients: what they ask.
        dialect: how the server is asked.
        count: tokens of a text.
        model: name to send.
        seed: seed to send.

    Raises:
        LoadError: any request failed, ended early or has another number of tokens than asked for.
    """
    timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
    # A connection for each request: some servers close one after an answer without saying so.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    # 1 MiB: the last event of an answer holds all of it with some servers
    async with aiohttp.ClientSession(timeout=timeout, connector=connector, read_bufsize=1 << 20) as http:
        begin = time.perf_counter()

        async def one(index: int, client: Client) -> list[Answer]:
            await asyncio.sleep(max(0.0, client.start_s - (time.perf_counter() - begin)))
            answers, history = [], ""
            for at, turn in enumerate(client.turns):
                prompt = history + turn.text
                body = body_of(turn, prompt, dialect, model, seed)
                sent_s = time.perf_counter() - begin
                events, end_s = await _stream(http, url + "/v1/completions", body, begin)
                reply = _reply(events)
                tokens = output_tokens(turn, reply, count, may_stop=dialect.may_stop)
                early = tokens < turn.output_tokens and not turn.structured
                taken = input_tokens(turn, reply, prompt, count)
                times = (sent_s, tuple(reply.arrivals_s), end_s)
                answers.append(
                    Answer(index, at, *times, taken, tokens, turn.output_tokens, early, reply.text)
                )
                history = prompt + reply.text if client.continues else ""
            return answers

        done = await asyncio.gather(*(one(index, client) for index, client in enumerate(clients)))
    return [answer for answers in done for answer in answers]


async def _stream(
    http: aiohttp.ClientSession, url: str, body: dict[str, Any], begin: float
) -> tuple[list[tuple[float, bytes]], float]:
    try:
        async with http.post(url, json=body) as response:
            if response.status != 200:
                text = (await response.text())[:500]
                raise LoadError(f"status {response.status} from {url}: {text}")
            events = [
                (time.perf_counter() - begin, line)
                async for line in response.content
                if line.startswith(_DATA)
            ]
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise LoadError(f"{url}: {type(error).__name__}: {error}") from error
    return events, time.perf_counter() - begin


@dataclass(frozen=True, slots=True)
class Reply:
    """What a stream said."""

    arrivals_s: list[float]
    text: str
    usage: Mapping[str, Any]
    reason: str


def _reply(events: Sequence[tuple[float, bytes]]) -> Reply:
    arrivals, pieces, usage, reason = [], [], {}, None
    for time_s, line in events:
        payload = line[len(_DATA) :].strip()
        if payload == _DONE:
            continue
        try:
            event = json.loads(payload)
        except ValueError as error:
            raise LoadError(f"no JSON in the stream: {payload[:200]!r}") from error
        if "error" in event:
            raise LoadError(f"error in the stream: {str(event['error'])[:500]}")
        usage = event.get("usage") or usage
        for choice in event.get("choices", ()):
            reason = choice.get("finish_reason") or reason
            if choice.get("text"):
                arrivals.append(time_s)
                pieces.append(choice["text"])
    if not pieces:
        raise LoadError("no tokens came")
    if reason is None:
        raise LoadError("the stream broke off: no finish_reason")
    return Reply(arrivals, "".join(pieces), usage, reason)


def input_tokens(turn: Turn, reply: Reply, prompt: str, count: Callable[[str], int]) -> int:
    """Prompt length as the server says, else as we count.

    Raises:
        LoadError: the server says otherwise than we know.
    """
    taken = int(reply.usage.get("prompt_tokens") or turn.tokens or count(prompt))
    if turn.tokens is not None:
        _require_length(taken, turn.tokens)
    return taken


def output_tokens(turn: Turn, reply: Reply, count: Callable[[str], int], *, may_stop: bool) -> int:
    """Answer length as the server says; else the length asked for where that ended it; else as we count.

    Raises:
        LoadError: another number than asked for, unless the answer may end before.
    """
    if reply.usage.get("completion_tokens"):
        tokens = int(reply.usage["completion_tokens"])
    elif reply.reason == "length":
        tokens = turn.output_tokens
    else:
        tokens = count(reply.text)
    fewer = turn.structured or (may_stop and reply.reason == "stop")
    if not (1 if fewer else turn.output_tokens) <= tokens <= turn.output_tokens:
        raise LoadError(f"{tokens} tokens came ({reply.reason}), {turn.output_tokens} were asked for")
    return tokens


def _require_length(taken: int, tokens: int) -> None:
    # One more is allowed: a server may put a token of its own before the text.
    if not 0 <= taken - tokens <= 1:
        raise LoadError(f"a prompt of {tokens} tokens was taken as {taken}")


async def check_prompt_count(url: str, prompt: str, tokens: int, model: str = "default") -> int:
    """Ask once without streaming for how long the server takes ``prompt`` to be; return that.

    Raises:
        LoadError: more than one token longer than ``tokens``, or shorter: the server cuts text otherwise.
    """
    body = {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0.0}
    timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as http,
            http.post(url + "/v1/completions", json=body) as response,
        ):
            if response.status != 200:
                raise LoadError(f"status {response.status}: {(await response.text())[:500]}")
            taken = int(json.loads(await response.read())["usage"]["prompt_tokens"])
    except (aiohttp.ClientError, TimeoutError, OSError, KeyError, ValueError) as error:
        raise LoadError(f"{url}: {type(error).__name__}: {error}") from error
    _require_length(taken, tokens)
    return taken
