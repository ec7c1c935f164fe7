"""A request trace in Mooncake's form (Qin et al., FAST 2025), as paths of a prefix tree.

A line is ``{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [...]}``. An id stands for a block
of prompt tokens, and equal ids at the beginning of two requests for equal text. A node of the tree is a block behind a
certain prefix: the same id behind another one is another node.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sgl_entropic.replay import jsonlines

BLOCK_TOKENS = 512
NEVER = 1 << 60
"""Next use of a node that is not asked for again."""
_FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")


@dataclass(frozen=True, slots=True)
class Request:
    """One request: when, the nodes of its prompt from the root on, and its lengths.

    Attributes:
        at_s: when it arrived.
        path: nodes from the root on.
        input_tokens: of the prompt.
        output_tokens: of the answer.
        last_tokens: of the path's last node, as far as this request shows it; all others are whole blocks.
    """

    at_s: float
    path: tuple[int, ...]
    input_tokens: int
    output_tokens: int
    last_tokens: int


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in order of arrival, and the tree that they span.

    Attributes:
        requests: all of them.
        parent: the node ahead of each node; -1 at the root.
        hash_id: the trace's name for each node.
        tokens: most tokens of each node in the whole trace; the last of a prompt may be cut short. No policy may look at it.
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
    """Read the first ``requests`` requests of a file, or all; see ``jsonlines.read`` for what a file may be.

    Raises:
        ValueError: a line is malformed, or there is none; the text has its number.
        OSError: the file cannot be opened.
    """
    rows = jsonlines.read(path, lambda row: _row(row, block_tokens), requests)
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
        node, path, size = -1, [], 0
        for place, hash_id in enumerate(row["hash_ids"]):
            size = min(block_tokens, row["input_length"] - place * block_tokens)
            node = nodes.setdefault((node, hash_id), len(nodes))
            if node == len(tokens):
                tokens.append(size)
                context.append(place * block_tokens)
            tokens[node] = max(tokens[node], size)
            path.append(node)
        requests.append(
            Request(row["timestamp"] / 1000.0, tuple(path), row["input_length"], row["output_length"], size)
        )
    return Trace(
        tuple(requests),
        tuple(parent for parent, _ in nodes),
        tuple(hash_id for _, hash_id in nodes),
        tuple(tokens),
        tuple(context),
        block_tokens,
    )


def _row(row: dict[str, Any], block_tokens: int) -> dict[str, Any]:
    missing = [field for field in _FIELDS if field not in row]
    if missing:
        raise ValueError(f"no {', '.join(missing)}")
    ids = row["hash_ids"]
    if not isinstance(ids, list):
        raise ValueError(f"hash_ids is {jsonlines.shown(ids)}: a list of whole numbers is needed")  # noqa: TRY004
    input_tokens = jsonlines.whole(row, "input_length")
    if len(ids) != -(-input_tokens // block_tokens):
        raise ValueError(f"{len(ids)} hash_ids do not make {input_tokens} tokens in blocks of {block_tokens}")
    return {
        "timestamp": jsonlines.number(row, "timestamp"),
        "input_length": input_tokens,
        "output_length": jsonlines.whole(row, "output_length"),
        "hash_ids": [jsonlines.identifier(one, f"hash_ids[{place}]") for place, one in enumerate(ids)],
    }
