"""Tokens per second with the controller on over off, on one server, switched by the request.

A round visits off and every variant there and back (off, on, on, off), so that a machine that grows slower within a round
slows both alike; the order turns from round to round. A rate is of all tokens over all the time of both visits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from telemetry_cost import PROMPTS

from sampling_parts.client import AnswerError, timed

OFF = "off"
Sample = dict[str, Any]


def visits(arms: Sequence[str], round_index: int) -> list[str]:
    """The order of a round: there and back, beginning with another arm each time."""
    turn = round_index % len(arms)
    there = [*arms[turn:], *arms[:turn]]
    return [*there, *reversed(there)]


def bodies_of(clients: int, tokens: int, key: str, asked: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Requests of a visit; ``key`` makes their prompts new, so that none is found in the prefix cache."""
    sampling: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": tokens, "ignore_eos": True}
    if asked is not None:
        sampling["custom_params"] = {"entropic": asked}
    return [
        {"text": f"{key}, guest {index}. {PROMPTS[index % len(PROMPTS)]}", "sampling_params": sampling}
        for index in range(clients)
    ]


def visit(url: str, bodies: list[dict[str, Any]], tokens: int) -> float:
    """Seconds that all requests took, sent at once.

    Raises:
        AnswerError: any failed or has another number of tokens.
    """
    contents, elapsed = timed(url, "/generate", bodies, len(bodies))
    produced = sum(int(content["meta_info"]["completion_tokens"]) for content in contents)
    if produced != tokens * len(bodies):
        raise AnswerError(f"{produced} tokens came, {tokens * len(bodies)} were asked for")
    return elapsed


def run(
    url: str,
    arms: dict[str, dict[str, Any]],
    loads: Sequence[int],
    tokens: int,
    rounds: int,
) -> list[Sample]:
    """One sample for each round, number of clients and arm, :data:`OFF` among them; a round before warms up.

    Args:
        url: of the server.
        arms: what each variant asks of the controller.
        loads: numbers of clients.
        tokens: output of each request.
        rounds: that count.

    Raises:
        AnswerError: any request failed.
    """
    asked: dict[str, dict[str, Any] | None] = {OFF: None, **arms}
    samples = []
    for index in range(-1, rounds):
        for clients in loads:
            seconds = dict.fromkeys(asked, 0.0)
            length = tokens if index >= 0 else min(tokens, 8)
            for at, name in enumerate(visits(list(asked), index)):
                key = f"Round {index + 1}, load {clients}, visit {at}"
                seconds[name] += visit(url, bodies_of(clients, length, key, asked[name]), length)
            samples += [
                {
                    "round": index,
                    "clients": clients,
                    "arm": name,
                    "tokens_per_s": 2 * clients * length / seconds[name],
                }
                for name in asked
                if index >= 0
            ]
        print(f"cost: round {index + 1} of {rounds}", flush=True)
    return samples


def ratios(samples: Sequence[Sample], arm: str, clients: int) -> list[float]:
    """Rate of ``arm`` over that of :data:`OFF` in each round.

    Raises:
        AnswerError: a round lacks one of them, or there are none.
    """
    sides = [
        {s["round"]: s["tokens_per_s"] for s in samples if s["arm"] == name and s["clients"] == clients}
        for name in (arm, OFF)
    ]
    if not sides[0] or sides[0].keys() != sides[1].keys():
        raise AnswerError(f"cost of {arm} at {clients} clients: the sides have other rounds, or none")
    return [sides[0][index] / sides[1][index] for index in sorted(sides[0])]
