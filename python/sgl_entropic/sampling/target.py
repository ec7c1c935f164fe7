"""The target entropy "auto": as uncertain as the model was of the request's own prompt, on average."""

from __future__ import annotations

import torch
from torch import Tensor

FALLBACK_NATS = 1.5
"""Target of a prompt with too few known entropies: a choice among e^1.5 = 4.5 equally likely tokens."""
MIN_TARGET_NATS = 0.25
MAX_TARGET_NATS = 4.0
MIN_KNOWN = 8
"""Fewer readings than this say little: entropies of single tokens spread about as wide as their mean."""


def auto_target_nats(
    prompt_entropy_nats: Tensor,
    *,
    fallback_nats: float = FALLBACK_NATS,
    min_nats: float = MIN_TARGET_NATS,
    max_nats: float = MAX_TARGET_NATS,
    min_known: int = MIN_KNOWN,
) -> Tensor:
    """Return the mean of the known entropies of each prompt, float32, within ``[min_nats, max_nats]``.

    ``prompt_entropy_nats`` is [n] or [B, n] and the answer [] or [B]. NaN pads; what is not finite, or negative,
    is unknown. A prompt with fewer than ``min_known`` known entropies, or none at all, gets ``fallback_nats``,
    clamped likewise.

    The entropies are the model's own, at temperature 1, and so the target means: sample as broadly as the prompt
    was predicted. Raising it raises temperatures. Nothing here waits for the device.
    """
    entropies = prompt_entropy_nats.to(torch.float32)
    known = entropies.isfinite() & (entropies >= 0.0)
    count = known.sum(dim=-1)
    # In float64: the mean must not depend on where NaN pads the row.
    total = torch.where(known, entropies, 0.0).sum(dim=-1, dtype=torch.float64)
    mean_nats = (total / count.clamp(min=1)).to(torch.float32)
    enough = count >= max(1, min_known)
    return torch.where(enough, mean_nats, fallback_nats).clamp(min_nats, max_nats)
