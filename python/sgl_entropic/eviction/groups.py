"""Nodes that are likely to be asked for again alike, told apart by what the last request that touched them showed.

An open conversation comes back with its whole prefix and a little more; a long document behind a shared prompt seldom
does; a prefix that several continuations hang on returns with any of them. Each fact has few levels, so that a few hundred
requests are enough to learn from.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

LEVELS = (2, 4, 4, 2, 4)
"""Levels of: cut short, new tokens, hits, shared, turn."""
GROUPS = 256
"""Groups in all: the product of the levels."""
FACTS_OF_GROUP = np.array(np.unravel_index(np.arange(GROUPS), LEVELS), dtype=np.int64)
"""Level of each fact [5, group]."""

# New prompt tokens: a chat turn, a long turn, a document, a long document.
_NEW_TOKENS = (512, 1536, 7680)
_MOST_HITS = 3
# A prefix with more continuations than this belongs to nobody's conversation: a system prompt.
_MOST_CONTINUATIONS = 8


@dataclass(frozen=True, slots=True)
class Touch:
    """What a request that ends in or passes through a node shows about it.

    Attributes:
        cut_short: the node holds the last tokens of the prompt and less than a whole block, so that a longer prompt
            cannot match it. Never so where blocks are single tokens.
        new_tokens: prompt tokens of the request that were not known before.
        hits: how often the node was asked for after it was first computed, this time included.
        continuations: different nodes that ever followed it.
        turn: see ``turn_of``.
    """

    cut_short: bool
    new_tokens: int
    hits: int
    continuations: int
    turn: int


def turn_of(matched_hits: int, matched_continuations: int) -> int:
    """Which turn of a conversation a request seems to be, from 0 (the first, or unknown) to 3 (the fourth or later).

    Args:
        matched_hits: hits of the deepest node that the request found known, this time included; 0 if it found none.
        matched_continuations: different nodes that ever followed that one, before this time.
    """
    return 0 if matched_continuations > _MOST_CONTINUATIONS else min(matched_hits, _MOST_HITS)


def group_of(touch: Touch) -> int:
    """The group of a node, in ``range(GROUPS)``."""
    levels = (
        int(touch.cut_short),
        bisect_left(_NEW_TOKENS, touch.new_tokens),
        min(touch.hits, _MOST_HITS),
        int(touch.continuations > 1),
        touch.turn,
    )
    group = 0
    for level, size in zip(levels, LEVELS, strict=True):
        group = group * size + level
    return group
