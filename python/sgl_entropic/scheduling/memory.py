"""KV memory ahead: how much more the running requests will need at worst, and whom to retract when it runs out."""

from __future__ import annotations

import numpy as np

from sgl_entropic.scheduling.cost import CostModel
from sgl_entropic.scheduling.traffic import Columns, FloatArray


def peak_growth_tokens(remaining: FloatArray, private: FloatArray) -> FloatArray:
    """Return the most KV, beyond what is held now, that requests need while all generate; whole tokens, [s].

    Each step every request takes a slot; one that ends frees what it has. Just before the j-th shortest ends, those
    that still run have grown by its length, and the shorter ones' private tokens have come back. In between the need
    only grows, so the largest of these is the peak.

    Args:
        remaining: tokens to come in s futures, [s, n].
        private: tokens whose slots are freed when the request ends, [n].
    """
    count = remaining.shape[1]
    if count == 0:
        return np.zeros(len(remaining))
    order = np.argsort(remaining, axis=1, kind="stable")
    ends = np.take_along_axis(remaining, order, axis=1)
    held = private[order]
    freed = np.cumsum(held, axis=1) - held
    need = ends * np.arange(count, 0, -1) - freed
    peak: FloatArray = np.maximum(0.0, need.max(axis=1))
    return peak


def victim_value(running: Columns, remaining: FloatArray, cost: CostModel) -> FloatArray:
    """Return what retracting each request is worth, larger first to go: token steps freed for each ms of recomputing.

    What it frees is its private tokens for as long as it would have stayed; what it costs is their prefill, sunk when
    they were computed: a prefix that others share stays and is not computed again.
    """
    recompute_ms = cost.prefill_ms(running.private, running.context)
    value: FloatArray = running.private * remaining / np.maximum(recompute_ms, 1e-9)
    return value
