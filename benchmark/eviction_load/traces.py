"""Sessions of a trace in Mooncake's form, scaled down.

Whole sessions are drawn from the trace, not its first lines: what returns, and after how long, stays as it was. Requests
are of one session when they share a block that few others have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from twin_parts import mooncake

from eviction_load.sessions import TRACE, Piece, Session, Turn, generator

Row = dict[str, object]
COMMON_SHARE = 0.01
"""A block that more of the requests have is a beginning that sessions share."""


def read(path: Path) -> list[Row]:
    """All lines.

    Raises:
        ValueError: a line lacks a field, or there is none.
        OSError: the file cannot be read.
    """
    with path.open(encoding="utf-8") as lines:
        count = sum(1 for _ in lines)
    if not count:
        raise ValueError(f"{path} holds no request")
    return mooncake.read(path, count)


def by_session(rows: Sequence[Row]) -> list[list[Row]]:
    """``rows`` put together by the first block that is not common."""
    seen = Counter(hash_id for row in rows for hash_id in _ids(row))
    most = COMMON_SHARE * len(rows)
    groups: dict[int, list[Row]] = {}
    for number, row in enumerate(rows):
        own = next((one for one in _ids(row) if seen[one] <= most), None)
        # Without any block of its own it is a session of its own.
        groups.setdefault(-1 - number if own is None else own, []).append(row)
    return list(groups.values())


def draw(
    rows: Sequence[Row], key: Sequence[object], *, requests: int, length: float, most_tokens: int
) -> list[Session]:
    """About ``requests`` requests of whole sessions, in a span of 1.

    Args:
        rows: of the trace.
        key: of the draw.
        requests: sessions are added until there are so many.
        length: factor of all lengths.
        most_tokens: sessions with a longer prompt are left out, as cutting them would make unequal prompts equal; answers
            are cut at a sixteenth of it.

    Raises:
        ValueError: there are too few.
    """
    groups = [group for group in by_session(rows) if max(map(_input, group)) * length <= most_tokens]
    chosen: list[Row] = []
    for number in generator(key).permutation(len(groups)).tolist():
        if len(chosen) >= requests:
            break
        chosen += groups[number]
    if len(chosen) < requests:
        raise ValueError(
            f"the trace has {len(chosen)} requests in sessions of prompts up to {most_tokens} tokens at "
            f"{length:g} of its lengths, {requests} were asked for"
        )
    scale = mooncake.Scale(length, 1.0, most_tokens, most_tokens // 16)
    made = mooncake.scaled(chosen, scale)
    span = max(made[-1].start_s, 1e-9)
    return [
        Session(
            f"trace/{number}",
            TRACE,
            (Turn(one.start_s / span, _pieces(one, scale.block_tokens), one.output_tokens),),
        )
        for number, one in enumerate(made)
    ]


def _pieces(one: mooncake.Scaled, block_tokens: int) -> tuple[Piece, ...]:
    pieces, left = [], one.input_tokens
    for hash_id in one.hash_ids:
        if left <= 0:
            break
        pieces.append(Piece(f"block/{hash_id}", min(block_tokens, left)))
        left -= block_tokens
    if left > 0:
        # Rounding may leave the blocks a little short of the length.
        pieces.append(Piece("rest/" + "/".join(map(str, one.hash_ids)), left))
    return tuple(pieces)


def _ids(row: Row) -> list[int]:
    ids = row["hash_ids"]
    assert isinstance(ids, list)
    return ids


def _input(row: Row) -> int:
    return int(str(row["input_length"]))
