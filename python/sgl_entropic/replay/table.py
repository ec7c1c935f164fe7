"""The figures of a run as text, and what they say about ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sgl_entropic.replay.arms import PLAIN

Row = dict[str, Any]
"""``pool_blocks``, ``policy``, ``replay_s`` and the figures of ``Outcome``."""
_HEAD = ("POOL", "POLICY", "BLOCKS", "TOKENS", "GAP", "COMPUTED", "TTFT", "P90", "SECONDS")


def lines(rows: Sequence[Row]) -> list[str]:
    """One line for each pool and policy, under a head."""
    cells = [_HEAD]
    for row in rows:
        gap = gap_closed(rows, row["pool_blocks"], row["policy"])
        cells.append(
            (
                f"{row['pool_blocks']}",
                row["policy"],
                f"{row['hit_blocks_share']:.4f}",
                f"{row['hit_tokens_share']:.4f}",
                "" if gap is None else f"{gap:+.2f}",
                f"{row['computed_tokens'] / 1e6:.2f}M",
                f"{row['ttft_mean_ms']:.0f}",
                f"{row['ttft_p90_ms']:.0f}",
                f"{row['replay_s']:.1f}",
            )
        )
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]


def gap_closed(rows: Sequence[Row], pool_blocks: int, policy: str) -> float | None:
    """Share of the way from LRU to Belady in hit tokens; ``None`` where there is none, or one of both did not run."""
    low = _hits(rows, pool_blocks, "lru")
    high = _hits(rows, pool_blocks, "belady")
    own = _hits(rows, pool_blocks, policy)
    if low is None or high is None or own is None or high <= low:
        return None
    return (own - low) / (high - low)


def summary(rows: Sequence[Row]) -> dict[str, float]:
    """The claims: the worst pool against the best plain policy, the mean gap closed, and surprisal against its placebo."""
    pools = list(dict.fromkeys(row["pool_blocks"] for row in rows))
    against_plain, gaps, against_placebo = [], [], []
    for pool in pools:
        own, placebo = _hits(rows, pool, "ours"), _hits(rows, pool, "ours-placebo")
        best = max((_hits(rows, pool, name) or 0.0 for name in PLAIN), default=0.0)
        gap = gap_closed(rows, pool, "ours")
        if own is not None and best:
            against_plain.append(own / best)
        if gap is not None:
            gaps.append(gap)
        if own is not None and placebo:
            against_placebo.append(own / placebo)
    result = {}
    if against_plain:
        result["hits_vs_best_plain_min"] = min(against_plain)
    if gaps:
        result["belady_gap_closed_mean"] = sum(gaps) / len(gaps)
    if against_placebo:
        result["surprisal_vs_placebo_mean"] = sum(against_placebo) / len(against_placebo)
    return result


def _hits(rows: Sequence[Row], pool_blocks: int, policy: str) -> float | None:
    for row in rows:
        if row["pool_blocks"] == pool_blocks and row["policy"] == policy:
            return float(row["hit_tokens_share"])
    return None
