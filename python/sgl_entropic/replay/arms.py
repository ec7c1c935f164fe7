"""The policies by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sgl_entropic.eviction import EvictionSettings
from sgl_entropic.eviction.arrays import FloatArray
from sgl_entropic.replay import baselines, surprisal
from sgl_entropic.replay.ours import GHOST_BLOCKS, Ours
from sgl_entropic.replay.policy import Policy
from sgl_entropic.replay.prefill import PrefillCost
from sgl_entropic.replay.trace import Trace

PLAIN = ("lru", "slru", "t-lru")
"""What ours must never be worse than."""
READ_SURPRISAL = ("ours", "ours-placebo")
"""Which need to know surprisals."""


@dataclass(frozen=True, slots=True)
class ArmSettings:
    """What the policies of a run are made with.

    Attributes:
        cost: prefill, for GDSF.
        slru_hits: hits after which SLRU protects a block.
        tlru_threshold_tokens: uncached tokens that a first token in time allows.
        tlru_next_tokens: tokens that a conversation's next prompt adds.
        gravity: share of active requests in strong gravity.
        seed: of the placebo.
        eviction: of ours.
        ghost_blocks: evicted blocks that ours remembers.
    """

    cost: PrefillCost
    slru_hits: int = 1
    tlru_threshold_tokens: int = 2048
    tlru_next_tokens: int = 0
    gravity: float = 0.0
    seed: int = 0
    eviction: EvictionSettings | None = None
    ghost_blocks: int = GHOST_BLOCKS


def factories(
    trace: Trace, surprisal_nats: FloatArray, settings: ArmSettings
) -> dict[str, Callable[[], Policy]]:
    """What makes a fresh policy of each name, in the order of the table; ``READ_SURPRISAL`` alone look at the surprisals."""
    threshold, following = settings.tlru_threshold_tokens, settings.tlru_next_tokens

    def ours(nats: FloatArray) -> Policy:
        return Ours(trace, nats, settings.gravity, settings.eviction, settings.ghost_blocks)

    return {
        "lru": lambda: baselines.Lru(trace),
        "fifo": lambda: baselines.Fifo(trace),
        "lfu": lambda: baselines.Lfu(trace),
        "slru": lambda: baselines.Slru(trace, settings.slru_hits),
        "t-lru": lambda: baselines.TailLru(trace, threshold, following),
        "hits-per-token": lambda: baselines.HitsPerToken(trace),
        "gdsf": lambda: baselines.Gdsf(trace, settings.cost),
        "ours": lambda: ours(surprisal_nats),
        "ours-placebo": lambda: ours(surprisal.shuffled(surprisal_nats, settings.seed + 1)),
        "belady": lambda: baselines.Belady(trace),
    }


NAMES = ("lru", "fifo", "lfu", "slru", "t-lru", "hits-per-token", "gdsf", "ours", "ours-placebo", "belady")
"""All names, in that order."""
