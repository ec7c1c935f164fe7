"""What attention pruning is set to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Policy = Literal["surprisal", "streaming", "attention", "quest", "mixed"]
"""How blocks are chosen, see :mod:`sgl_entropic.attention.contribution`."""

POLICIES: tuple[Policy, ...] = get_args(Policy)


RECENT_SHARES: dict[Policy, float] = {
    "surprisal": 0.375,
    "streaming": 1.0,
    "attention": 0.25,
    "quest": 0.0,
    "mixed": 0.0,
}
"""Share of what is read that goes to the most recent blocks, where nobody says otherwise: what measured best."""

MIN_KEEP_RATIOS: dict[Policy, float] = {
    "surprisal": 0.25,
    "streaming": 0.25,
    "attention": 0.25,
    "quest": 0.25,
    "mixed": 0.15,
}
"""Share of the context that is kept when nothing is uncertain, where nobody says otherwise. On running text ``mixed`` then
reads about a third, and is about as near to reading all as ``quest`` is at one half (``docs/concepts/attention.md``)."""

LAYER_TILTS: dict[Policy, float] = {"mixed": 0.3}
"""How much more of its budget the last layer reads than the mean one, and the first as much less; 0 for other policies.
The first layers are the ones that lose least by reading less (the other way about costs most: ``docs/notebook.md``)."""


@dataclass(frozen=True, slots=True)
class AttentionSettings:
    """One request's settings; token counts and entropies in nats.

    Attributes:
        policy: how the blocks to keep are chosen.
        min_keep_ratio: share of the context that is kept when nothing is uncertain (``r_min``); no pruned step reads less.
        max_keep_ratio: share that is kept at most; beyond it, entropy asks for no more.
        reference_entropy_nats: entropy at which all is kept (``H_ref``).
        floor_entropy_nats: readings below it count as this much (``H_floor``): a guard against over-confident models.
        block_tokens: tokens of a block, at absolute positions.
        sink_tokens: first tokens of the context, always kept.
        recent_tokens: last tokens, always kept.
        recent_share: share of the kept blocks that goes to the most recent ones, at least ``recent_tokens``.
        min_context_tokens: shorter contexts are read whole.
        score_interval_steps: steps after which the blocks are chosen anew.
        spike_entropy_nats: a reading beyond it brings the whole context back at once; above 0, since no entropy falls below
            a share of 0.
        calm_share: share of ``spike_entropy_nats`` that the entropy has to fall below to be pruned again.
    """

    policy: Policy = "surprisal"
    min_keep_ratio: float = 0.25
    max_keep_ratio: float = 1.0
    reference_entropy_nats: float = 10.0
    floor_entropy_nats: float = 0.5
    block_tokens: int = 16
    sink_tokens: int = 16
    recent_tokens: int = 64
    recent_share: float = 0.25
    min_context_tokens: int = 512
    score_interval_steps: int = 16
    spike_entropy_nats: float = 6.0
    calm_share: float = 0.75
