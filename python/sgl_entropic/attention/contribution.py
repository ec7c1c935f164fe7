"""How much a block of the context contributes: the larger, the sooner it is kept."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sgl_entropic.attention.settings import AttentionSettings

Floats = NDArray[np.float32]


def block_surprisal(surprisal_nats: Floats, block_tokens: int) -> Floats:
    """``I_b``: mean surprisal of each block's tokens, ``[blocks]``; NaN where none is known.

    Args:
        surprisal_nats: ``[blocks * block_tokens]``, NaN where unknown (the first token of a prompt has none).
        block_tokens: tokens of a block.
    """
    table = surprisal_nats.reshape(-1, block_tokens)
    known = ~np.isnan(table)
    count = known.sum(axis=1)
    total = np.where(known, table, 0).sum(axis=1)
    means: Floats = np.where(count > 0, total / np.maximum(count, 1), np.nan).astype(np.float32)
    return means


SURPRISAL_WEIGHT = 0.3
"""What a nat of a block's mean surprisal adds to the logarithm of the attention that it is likely to receive."""


def contribution(settings: AttentionSettings, surprisal_nats: Floats, mass: Floats | None) -> Floats:
    """``[layers, blocks]`` by the request's policy; one layer where all are alike.

    Where each step chooses by its query, this is what it adds to a block's score.

    Args:
        settings: of the request.
        surprisal_nats: ``[blocks * block_tokens]``.
        mass: ``[layers, blocks or more]`` attention that the blocks received; ``None`` where it was never measured.
    """
    blocks = len(surprisal_nats) // settings.block_tokens
    if settings.policy == "surprisal":
        return block_surprisal(surprisal_nats, settings.block_tokens)[None]
    if settings.policy == "mixed":
        return np.float32(SURPRISAL_WEIGHT) * block_surprisal(surprisal_nats, settings.block_tokens)[None]
    if settings.policy == "attention" and mass is not None:
        return mass[:, :blocks]
    # Nothing but the place counts: of equals the later one is kept.
    return np.zeros((1, blocks), dtype=np.float32)
