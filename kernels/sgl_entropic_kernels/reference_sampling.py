"""What drawing a token means: float64, whole sorts, nothing clever. The compiled ``draw`` is tested against this."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Cut(NamedTuple):
    """How one row is drawn from."""

    temperature: float = 1.0
    top_k: int = 1 << 30
    top_p: float = 1.0
    min_p: float = 0.0

    def keeps_all(self, entries: int) -> bool:
        """Whether nothing is cut from that many entries."""
        return self.top_k >= entries and self.top_p >= 1.0 and self.min_p <= 0.0


def probabilities(logits: Array, temperature: float) -> Array:
    """Softmax of one row ``[V]`` of finite or ``-inf`` logits at a temperature."""
    shifted = (logits.astype(np.float64) - np.max(logits)) / temperature
    weights = np.exp(shifted)
    normalised: Array = weights / weights.sum()
    return normalised


def kept(logits: Array, cut: Cut) -> tuple[Array, Array]:
    """Token ids in the order in which they are drawn, and their probabilities, not normalised.

    Without cuts the order is that of the vocabulary, else from the likeliest down, ties by token id. SGLang's cuts: the
    first ``top_k``; of these, whoever has at most ``top_p`` of the whole mass before them; of these, whoever has at
    least ``min_p`` of the largest probability.
    """
    p = probabilities(logits, cut.temperature)
    if cut.keeps_all(len(p)):
        return np.arange(len(p)), p
    order = np.lexsort((np.arange(len(p)), -p))
    order = order[: cut.top_k]
    before = np.cumsum(p[order]) - p[order]
    order = order[before <= cut.top_p]
    order = order[p[order] >= cut.min_p * p.max()]
    order = order[p[order] > 0]
    return order, p[order]


def draw(logits: Array, cut: Cut, uniform: float) -> int:
    """The token at ``uniform`` of the mass that is kept."""
    ids, p = kept(logits, cut)
    cumulative = np.cumsum(p)
    at = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
    return int(ids[min(at, len(ids) - 1)])


def entropy_at(logits: Array, log_temperature: float) -> float:
    """Entropy in nats of one row at ``exp(log_temperature)``."""
    p = probabilities(logits, float(np.exp(log_temperature)))
    p = p[p > 0]
    return float(-(p * np.log(p)).sum())
