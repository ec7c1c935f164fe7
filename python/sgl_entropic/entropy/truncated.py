"""Entropy from the k largest logits, for when the rest of the row is not at hand.

With the true normaliser the top-k probabilities are exact and only the tail, of mass ``r = 1 - sum p``, is
unknown. Spread evenly over the ``V - k`` other tokens it holds the most entropy; packed into tokens as likely
as the k-th, the least. The exact entropy lies between::

    high = -sum p ln p - r ln(r / (V - k))          low = -sum p ln p - r ln p_k

No host synchronisation, no data-dependent shapes, inputs are read only.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from sgl_entropic.entropy.row_statistics import row_statistics


class TailEstimate(NamedTuple):
    """Bounds on the entropy of B rows, each a [B] tensor in nats, with ``low <= point <= high``."""

    low_nats: Tensor
    high_nats: Tensor
    point_nats: Tensor
    """The midpoint of the bounds: the guess with the smallest worst error, not an expectation."""
    tail_mass: Tensor
    """``r``, the probability outside the top k, from 0 to 1."""


def truncated_entropy(topk_logits: Tensor) -> Tensor:
    """Return the entropy [B], in nats, of the distribution renormalised over its ``topk_logits`` [B, k].

    Edge cases are those of :func:`~sgl_entropic.entropy.row_statistics.row_statistics`; invalid rows read 0.
    """
    return row_statistics(topk_logits).entropy_nats


def tail_bounds(topk_logits: Tensor, log_normalizer: Tensor, vocab_size: int) -> TailEstimate:
    """Bound the entropy of the whole row from its k largest logits and the true normaliser.

    Args:
        topk_logits: [B, k], the k largest logits of each row in any order; k = V is legal and exact.
        log_normalizer: [B], ln Z over the whole vocabulary.
        vocab_size: V, the number of tokens that the normaliser runs over.

    A row with NaN or ``+inf``, or whose normaliser is not finite, tells nothing: bounds 0 and ln V, tail
    mass 1.

    Raises:
        ValueError: a wrong shape, or k outside 1..V.
    """
    _require_topk(topk_logits, log_normalizer, vocab_size)
    dtype = torch.promote_types(torch.promote_types(topk_logits.dtype, log_normalizer.dtype), torch.float32)
    log_p = topk_logits.to(dtype) - log_normalizer.to(dtype).unsqueeze(1)
    log_p = log_p.nan_to_num_(nan=0.0).clamp_(max=0.0)  # -inf becomes the lowest finite number: 0 * it is 0
    p = log_p.exp()
    head = -(p * log_p).sum(dim=-1)
    log_p_k = log_p.amin(dim=-1)
    tail_tokens = vocab_size - topk_logits.shape[1]
    # No tail token is likelier than the k-th: this bounds the rounding noise of 1 - sum p, and low <= high.
    tail_mass = torch.minimum((1.0 - p.sum(dim=-1)).clamp_(min=0.0), tail_tokens * log_p_k.exp())
    low = head - tail_mass * log_p_k
    flat = tail_mass * math.log(max(tail_tokens, 1)) + torch.special.entr(tail_mass)
    high = torch.maximum(low, head + flat)

    known = (topk_logits < math.inf).all(dim=-1) & log_normalizer.isfinite()  # NaN < inf is False
    low = low.masked_fill(~known, 0.0)
    high = high.masked_fill(~known, math.log(vocab_size))
    return TailEstimate(low, high, (low + high) * 0.5, tail_mass.masked_fill(~known, 1.0))


def _require_topk(topk_logits: Tensor, log_normalizer: Tensor, vocab_size: int) -> None:
    if topk_logits.dim() != 2:
        raise ValueError(f"topk_logits must have shape [rows, k], not {list(topk_logits.shape)}")
    rows, k = topk_logits.shape
    if not 1 <= k <= vocab_size:
        raise ValueError(f"k must be from 1 to vocab_size = {vocab_size}, not {k}")
    if log_normalizer.shape != (rows,):
        raise ValueError(f"log_normalizer must have shape [{rows}], not {list(log_normalizer.shape)}")
