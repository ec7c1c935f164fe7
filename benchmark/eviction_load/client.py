"""Sends sessions to one server: each turn with all that was said before, the answers as the server gave them.

A turn is sent when it is due, or when the answer before it has come if that is later; its times count from then. An answer
that is not what was asked for is an error.
"""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
from scheduling_load.client import DATA, DONE, TIMEOUT_S, Events, LoadError, document_of, stream

from eviction_load.sessions import Session
from eviction_load.tokens import Ids

LATE_S = 5.0
"""A client that sends so much later than it should is no measure of a server."""
Sent = tuple[tuple[float, float], list[int], Events, float]


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer; times in seconds from the beginning of the load.

    Attributes:
        session: whose.
        turn: which of its turns.
        asked_s: when it was due, or when the answer before it had come.
        sent_s: when it was sent, which is a little later where the client had to wait for a core.
        first_s: when the first piece arrived.
        end_s: when the stream ended.
        prompt_tokens: of all that was sent.
        cached_tokens: of these, found in the server's cache.
        output_tokens: of the answer.
        retractions: times the server took its memory away.
        cut: the limit came before the form was whole.
        digest: of the answer's tokens.
    """

    session: Session
    turn: int
    asked_s: float
    sent_s: float
    first_s: float
    end_s: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    retractions: int
    cut: bool
    digest: int

    @property
    def due_s(self) -> float:
        """When it was due."""
        return self.session.turns[self.turn].due

    @property
    def ttft_s(self) -> float:
        """To the first piece."""
        return self.first_s - self.asked_s


def ask_sessions(url: str, sessions: Sequence[Session], ids: Ids, name: str) -> list[Answer]:
    """All answers, session by session.

    Args:
        url: base address.
        sessions: the load; times in seconds.
        ids: makes token ids of pieces.
        name: of the load, unique for this server; request ids begin with it.

    Raises:
        LoadError: an answer is not what was asked for; or the client was too slow to send in time.
    """
    # Made beforehand: it is none of the load's time.
    texts = [[[i for piece in turn.new for i in ids.of(piece)] for turn in one.turns] for one in sessions]
    try:
        return asyncio.run(_all(url, sessions, texts, name))
    except ExceptionGroup as group:
        raise group.exceptions[0] from None


async def _all(
    url: str, sessions: Sequence[Session], texts: list[list[list[int]]], name: str
) -> list[Answer]:
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as http:
        begin = time.perf_counter()

        async def one(session: Session, new: list[list[int]]) -> list[Answer]:
            answers: list[Answer] = []
            said: list[int] = []
            for turn, asked in enumerate(session.turns):
                await asyncio.sleep(max(0.0, asked.due - (time.perf_counter() - begin)))
                due_s = max(asked.due, answers[-1].end_s) if answers else asked.due
                said += new[turn]
                rid = f"{name}/{session.name}/{turn}"
                body = body_of(session, turn, said, rid)
                sent_s = time.perf_counter() - begin
                if sent_s > due_s + LATE_S:
                    raise LoadError(
                        f"{rid}: sent {sent_s - due_s:.1f} s late, the client is too slow for this load"
                    )
                events = await stream(http, url + "/generate", json.dumps(body).encode(), begin)
                answer, tokens = read(
                    session, turn, rid, ((due_s, sent_s), said, events, time.perf_counter() - begin)
                )
                answers.append(answer)
                said += tokens
            return answers

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(*pair)) for pair in zip(sessions, texts, strict=True)]
    return [answer for task in tasks for answer in task.result()]


def body_of(session: Session, turn: int, said: Sequence[int], rid: str) -> dict[str, Any]:
    """For ``/generate``; greedy, so that equal prompts have equal answers."""
    asked = session.turns[turn]
    sampling: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": asked.output_tokens}
    sampling |= {"ignore_eos": True} if asked.form is None else asked.form.sampling()
    return {"rid": rid, "input_ids": list(said), "sampling_params": sampling, "stream": True}


def read(session: Session, turn: int, rid: str, sent: Sent) -> tuple[Answer, list[int]]:
    """An answer that is whole and to this request, and its tokens.

    Raises:
        LoadError: it is not.
    """
    times_s, said, events, end_s = sent
    if len(events) < 2 or events[-1][1][len(DATA) :].strip() != DONE:
        raise LoadError(f"{rid}: the stream broke off after {len(events)} events")
    documents = [document_of(line, rid) for _, line in events[:-1]]
    tokens = [i for document in documents for i in document["output_ids"]]
    info = documents[-1]["meta_info"]
    asked, reason = session.turns[turn], (info.get("finish_reason") or {}).get("type")
    if info["id"] != rid or info["prompt_tokens"] != len(said):
        raise LoadError(f"{rid}: {len(said)} tokens were sent, the answer is to {info}")
    if info["completion_tokens"] != len(tokens):
        raise LoadError(f"{rid}: {len(tokens)} tokens came, {info['completion_tokens']} were counted")
    text = "".join(document["text"] for document in documents)
    if asked.form is None:
        good = reason == "length" and len(tokens) == asked.output_tokens
    else:
        good = reason == "length" or (reason == "stop" and asked.form.holds(text))
    if not good:
        raise LoadError(f"{rid}: ended by {reason} with {len(tokens)} tokens: {text!r}")
    answer = Answer(
        session,
        turn,
        *times_s,
        events[0][0],
        end_s,
        len(said),
        int(info.get("cached_tokens") or 0),
        len(tokens),
        int(info.get("num_retractions") or 0),
        asked.form is not None and reason == "length",
        zlib.crc32(json.dumps(tokens).encode()),
    )
    return answer, tokens
