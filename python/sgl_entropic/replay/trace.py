"""A request trace in Mooncake's form (Qin et al., FAST 2025), as paths of a prefix tree.

A line is ``{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [...]}``. An id stands for a block
of prompt tokens, and equal ids at the beginning of two requests for equal text. A node of the tree is a block behind a
certain prefix: the same id behind another one is another node.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

BLOCK_TOKENS = 512
NEVER = 1 << 60
"""Next use of a node that is not asked for again."""
_FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")


@dataclass(frozen=True, slots=True)
class Request:
    """One request: when, the nodes of its prompt from the root on, and its lengths."""

    at_s: float
    path: tuple[int, ...]
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in order of arrival, and the tree that they span.

    Attributes:
        requests: all of them.
        parent: the node ahead of each node; -1 at the root.
        hash_id: the trace's name for each node.
        tokens: tokens of each node; the last of a prompt may be cut short.
        context_tokens: tokens ahead of each node.
        block_tokens: tokens of a whole block.
    """

    requests: tuple[Request, ...]
    parent: tuple[int, ...]
    hash_id: tuple[int, ...]
    tokens: tuple[int, ...]
    context_tokens: tuple[int, ...]
    block_tokens: int = BLOCK_TOKENS

    def next_uses(self) -> list[list[int]]:
        """For each request and each node of its path, the number of the next request with that node."""
        ahead: dict[int, int] = {}
        uses: list[list[int]] = []
        for number in range(len(self.requests) - 1, -1, -1):
            path = self.requests[number].path
            uses.append([ahead.get(node, NEVER) for node in path])
            ahead.update(dict.fromkeys(path, number))
        uses.reverse()
        return uses


def read(path: Path, *, block_tokens: int = BLOCK_TOKENS, requests: int | None = None) -> Trace:
    """Read the first ``requests`` lines of a file, or all.

    Raises:
        ValueError: a line is malformed, or there is none; the text has its number.
        OSError: the file cannot be read.
    """
    rows: list[dict[str, Any]] = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(islice(lines, requests), 1):
            try:
                rows.append(_row(line, block_tokens))
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from error
    if not rows:
        raise ValueError(f"{path} holds no request")
    return build(sorted(rows, key=lambda row: float(row["timestamp"])), block_tokens)


def build(rows: list[dict[str, Any]], block_tokens: int = BLOCK_TOKENS) -> Trace:
    """The trace of ``rows``, which are well formed and in order of time."""
    nodes: dict[tuple[int, int], int] = {}
    tokens: list[int] = []
    context: list[int] = []
    requests = []
    for row in rows:
        node, path = -1, []
        for place, hash_id in enumerate(row["hash_ids"]):
            size = min(block_tokens, row["input_length"] - place * block_tokens)
            node = nodes.setdefault((node, hash_id), len(nodes))
            if node == len(tokens):
                tokens.append(size)
                context.append(place * block_tokens)
            tokens[node] = max(tokens[node], size)
            path.append(node)
        requests.append(
            Request(row["timestamp"] / 1000.0, tuple(path), row["input_length"], row["output_length"])
        )
    return Trace(
        tuple(requests),
        tuple(parent for parent, _ in nodes),
        tuple(hash_id for _, hash_id in nodes),
        tuple(tokens),
        tuple(context),
        block_tokens,
    )


def _row(line: str, block_tokens: int) -> dict[str, Any]:
    row = json.loads(line)
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 -- what a file holds is a value
    missing = [field for field in _FIELDS if field not in row]
    if missing:
        raise ValueError(f"no {', '.join(missing)}")
    for field in _FIELDS[:3]:
        if isinstance(row[field], bool) or not isinstance(row[field], int | float) or not row[field] >= 0:
            raise ValueError(f"{field} is {row[field]!r}: a number of at least 0 is needed")
    ids = row["hash_ids"]
    if not isinstance(ids, list) or not all(isinstance(one, int) for one in ids):
        raise ValueError("hash_ids is not a list of whole numbers")
    if len(ids) != -(-row["input_length"] // block_tokens):
        raise ValueError(
            f"{len(ids)} hash_ids do not make {row['input_length']} tokens in blocks of {block_tokens}"
        )
    return row
