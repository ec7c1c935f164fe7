"""Sends a load to one server and reads the streams; an answer that is not exactly what was asked for is an error.

While a load runs the client only notes when each event arrived; it reads them afterwards, so that it takes little from
the server that it shares the cores with.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from scheduling_load.asks import Ask

TIMEOUT_S = 1800.0
TEMPERATURE = 1.0
DATA, DONE = b"data:", b"[DONE]"
Events = list[tuple[float, bytes]]


class LoadError(RuntimeError):
    """A server refused a request, or an answer is not what was asked for."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer; times in seconds from the beginning of the load.

    Attributes:
        ask: what was asked.
        asked_s: when it was due in an open loop, when it was sent in a closed one.
        arrivals_s: when each piece arrived.
        tokens_at: tokens that had come with each piece.
        end_s: when the stream ended.
        cached_tokens: of the prompt.
        retractions: times the server took its memory away.
        tau_nats: its entropic time; 0 where no reading is valid.
    """

    ask: Ask
    asked_s: float
    arrivals_s: tuple[float, ...]
    tokens_at: tuple[int, ...]
    end_s: float
    cached_tokens: int
    retractions: int
    tau_nats: float

    @property
    def ttft_s(self) -> float:
        """To the first piece."""
        return self.arrivals_s[0] - self.asked_s

    @property
    def latency_s(self) -> float:
        """To the end."""
        return self.end_s - self.asked_s

    def tokens_until(self, time_s: float) -> int:
        """Tokens that had arrived by then."""
        return max(
            (n for at, n in zip(self.arrivals_s, self.tokens_at, strict=True) if at <= time_s), default=0
        )


def ask_all(url: str, asks: Sequence[Ask], name: str, clients: int | None = None) -> list[Answer]:
    """All answers, in the order of ``asks``.

    Args:
        url: base address.
        asks: the load.
        name: of the load, unique for this server; request ids begin with it.
        clients: how many are under way at a time in a closed loop; ``None`` for an open one, at each request's time.

    Raises:
        LoadError: any answer is not what was asked for; or the client was too slow to send in time.
    """
    try:
        raw = asyncio.run(_all(url, asks, name, clients))
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
    answers = [
        _read(ask, f"{name}/{index}", sent_s, events, end_s, is_open=clients is None)
        for index, (ask, (sent_s, events, end_s)) in enumerate(zip(asks, raw, strict=True))
    ]
    late_s = max((raw[i][0] - ask.at_s for i, ask in enumerate(asks)), default=0.0)
    if clients is None and late_s > 1.0:
        raise LoadError(
            f"{name}: a request was sent {late_s:.1f} s late, the client is too slow for this load"
        )
    return answers


async def _all(
    url: str, asks: Sequence[Ask], name: str, clients: int | None
) -> list[tuple[float, Events, float]]:
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    gate = contextlib.nullcontext() if clients is None else asyncio.Semaphore(clients)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as http:
        # Made beforehand: the wording of hundreds of bodies is none of the load's time.
        bodies = [json.dumps(ask.body(f"{name}/{i}", TEMPERATURE)).encode() for i, ask in enumerate(asks)]
        begin = time.perf_counter()

        async def one(ask: Ask, body: bytes) -> tuple[float, Events, float]:
            if clients is None:
                await asyncio.sleep(max(0.0, ask.at_s - (time.perf_counter() - begin)))
            async with gate:
                sent_s = time.perf_counter() - begin
                events = await stream(http, url + "/generate", body, begin)
                return sent_s, events, time.perf_counter() - begin

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(ask, body)) for ask, body in zip(asks, bodies, strict=True)]
    return [task.result() for task in tasks]


async def stream(http: aiohttp.ClientSession, url: str, body: bytes, begin: float) -> Events:
    """The events of one answer, each with the time since ``begin``.

    Raises:
        LoadError: the server refused, or could not be reached.
    """
    headers = {"Content-Type": "application/json"}
    try:
        async with http.post(url, data=body, headers=headers) as response:
            if response.status != 200:
                raise LoadError(f"{url}: status {response.status}: {(await response.text())[:500]}")
            return [
                (time.perf_counter() - begin, line)
                async for line in response.content
                if line.startswith(DATA)
            ]
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise LoadError(f"{url}: {type(error).__name__}: {error}") from error


def _read(ask: Ask, rid: str, sent_s: float, events: Events, end_s: float, *, is_open: bool) -> Answer:
    if not events or events[-1][1][len(DATA) :].strip() != DONE:
        raise LoadError(f"{rid}: the stream broke off after {len(events)} events")
    arrivals, counts, pieces = [], [], []
    documents = [(at_s, document_of(line, rid)) for at_s, line in events[:-1]]
    for at_s, document in documents:
        arrivals.append(at_s)
        counts.append(int(document["meta_info"]["completion_tokens"]))
        pieces.append(document["text"])
    _check(ask, rid, [document["meta_info"] for _, document in documents], "".join(pieces))
    info = documents[-1][1]["meta_info"]
    summary = (info.get("entropic") or {}).get("summary") or {}
    return Answer(
        ask,
        ask.at_s if is_open else sent_s,
        tuple(arrivals),
        tuple(counts),
        end_s,
        int(info.get("cached_tokens") or 0),
        int(info.get("num_retractions") or 0),
        float(summary.get("tau_nats") or 0.0),
    )


def document_of(line: bytes, rid: str) -> dict[str, Any]:
    """What one event of an answer holds.

    Raises:
        LoadError: it is none of an answer.
    """
    try:
        document: dict[str, Any] = json.loads(line[len(DATA) :])
    except ValueError as error:
        raise LoadError(f"{rid}: no JSON in the stream: {line[:200]!r}") from error
    if "meta_info" not in document:
        raise LoadError(f"{rid}: no answer in the stream: {line[:500]!r}")
    return document


def _check(ask: Ask, rid: str, infos: Sequence[dict[str, Any]], text: str) -> None:
    """One answer, whole, to this request.

    Raises:
        LoadError: it is another's, ended twice or not at all, or has another prompt, end, length or text.
    """
    counts = [int(info["completion_tokens"]) for info in infos]
    ends = [at for at, info in enumerate(infos) if info.get("finish_reason")]
    if any(info["id"] != rid for info in infos):
        raise LoadError(f"{rid}: pieces of {sorted({info['id'] for info in infos})}")
    if ends != [len(infos) - 1] or counts != sorted(counts):
        raise LoadError(f"{rid}: ended at {ends} of {len(infos)} pieces with {counts} tokens")
    # One more is allowed: a tokenizer may put a token of its own before the text.
    if not 0 <= infos[-1]["prompt_tokens"] - ask.prompt_tokens <= 1:
        raise LoadError(f"{rid}: a prompt of {ask.prompt_tokens} was taken as {infos[-1]['prompt_tokens']}")
    reason = infos[-1]["finish_reason"]
    if counts[-1] != ask.output_tokens or reason["type"] != ("stop" if ask.hidden else "length"):
        raise LoadError(f"{rid}: {counts[-1]} tokens came ({reason}), {ask.output_tokens} were asked for")
    if ask.hidden and not re.fullmatch(f"[0-9]{{{ask.output_tokens - 1}}}", text):
        raise LoadError(f"{rid}: not the digits that were asked for: {text!r}")
