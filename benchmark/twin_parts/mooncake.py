"""Replay of a request trace in Mooncake's form, scaled to the machine.

A line is ``{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [...]}``; an id stands for a block
of 512 prompt tokens, and equal ids at the beginning of two requests stand for equal text. The trace holds no text: it is
made here from the ids, so that what was shared there is shared here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from twin_parts.prompts import Prompts
from twin_parts.workloads import OUTPUT, Client, Turn, Workload

BLOCK_TOKENS = 512
_FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")


@dataclass(frozen=True, slots=True)
class Scaled:
    """One request as it will be sent: when, how long, and the ids its prompt is made of."""

    start_s: float
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Scale:
    """How a trace is fitted to a machine.

    Attributes:
        length: factor of input, output and block lengths.
        requests_per_s: mean rate of arrivals; the gaps keep their proportions.
        most_input_tokens: longer prompts are cut.
        most_output_tokens: longer answers are cut.
    """

    length: float
    requests_per_s: float
    most_input_tokens: int
    most_output_tokens: int

    @property
    def block_tokens(self) -> int:
        """Tokens of a block after scaling."""
        return max(1, round(BLOCK_TOKENS * self.length))


def read(path: Path, requests: int) -> list[dict[str, object]]:
    """The first ``requests`` lines.

    Raises:
        ValueError: a line lacks a field, or there are too few lines; the text says which.
    """
    rows = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(islice(lines, requests), 1):
            row = json.loads(line)
            missing = [field for field in _FIELDS if field not in row]
            if missing:
                raise ValueError(f"{path}, line {number}: no {', '.join(missing)}")
            rows.append(row)
    if len(rows) < requests:
        raise ValueError(f"{path} has {len(rows)} requests, {requests} were asked for")
    return rows


def scaled(rows: Sequence[dict[str, object]], scale: Scale) -> list[Scaled]:
    """The requests of ``rows`` in order of arrival, scaled."""
    ordered = sorted(rows, key=lambda row: float(str(row["timestamp"])))
    times_ms = [float(str(row["timestamp"])) for row in ordered]
    span_ms = times_ms[-1] - times_ms[0]
    # n requests at r a second span (n - 1) / r seconds; a trace without span arrives at once
    factor = (len(rows) - 1) / scale.requests_per_s / span_ms if span_ms else 0.0
    result = []
    for row, time_ms in zip(ordered, times_ms, strict=True):
        ids = row["hash_ids"]
        assert isinstance(ids, list)
        lengths = (int(str(row["input_length"])), int(str(row["output_length"])))
        tokens = [max(1, round(length * scale.length)) for length in lengths]
        result.append(
            Scaled(
                (time_ms - times_ms[0]) * factor,
                min(tokens[0], scale.most_input_tokens),
                min(tokens[1], scale.most_output_tokens),
                tuple(ids),
            )
        )
    return result


def prompt(one: Scaled, block_tokens: int, prompts: Prompts, key: Sequence[object]) -> str:
    """Text of ``one``: a piece for each id, the last ones cut where the prompt ends."""
    pieces, left = [], one.input_tokens
    for hash_id in one.hash_ids:
        if left <= 0:
            break
        words = prompts.text(block_tokens, *key, "block", hash_id).split()[:left]
        pieces += words
        left -= len(words)
    if left > 0:
        # rounding may leave the blocks a little short of the length
        pieces += prompts.text(left, *key, "rest", *one.hash_ids).split()
    return "".join(f" {word}" for word in pieces)


def workload(requests: Sequence[Scaled], block_tokens: int) -> Workload:
    """The replay, one client for each request."""

    def build(prompts: Prompts, key: Sequence[object]) -> list[Client]:
        return [
            Client(
                (Turn(prompt(one, block_tokens, prompts, key), one.input_tokens, one.output_tokens),),
                one.start_s,
            )
            for one in requests
        ]

    tokens = (sum(r.input_tokens for r in requests), sum(r.output_tokens for r in requests))
    text = (
        f"{len(requests)} requests of a trace over {requests[-1].start_s:.0f} s, "
        f"{tokens[0]} tokens in, {tokens[1]} out, blocks of {block_tokens}"
    )
    return Workload("trace", text, OUTPUT, build)
