"""From counts to hazards: the chance that a node that reached an age returns before the next.

    hazard(g, a) = (returned(g, a) + k prior(g, a)) / (exposed(g, a) + k)
    prior(g, a)  = pooled(a) x factor of each fact's level x factor of the group

The factors are fitted as those of a multiplicative Poisson model (iterative proportional fitting, Deming and Stephan 1940):
for each level, returns observed over returns expected, in turn. All are drawn towards 1 by pseudo-counts, and the pooled
hazard towards 0.1 at every age and 0.2 at the first. As ages grow geometrically, that prior is a return rate that falls as
1 / age: before anything is learnt, the order is recency.
"""

from __future__ import annotations

import numpy as np

from sgl_entropic.eviction.arrays import FloatArray
from sgl_entropic.eviction.groups import FACTS_OF_GROUP, LEVELS

_PRIOR_HAZARD = 0.1
_FIRST_PRIOR_HAZARD = 0.2
_MOST = 0.95
_LEAST = 1e-6
_ROUNDS = 3


def hazards(exposed: FloatArray, returned: FloatArray, cell_prior: float, factor_prior: float) -> FloatArray:
    """Hazards within (0, 1).

    Args:
        exposed: weight of nodes that reached an age, [group, age].
        returned: weight of those that returned before the next age, [group, age].
        cell_prior: pseudo-count of the factors' estimate.
        factor_prior: pseudo-count of "no difference".
    """
    before = np.full(exposed.shape[1], _PRIOR_HAZARD)
    before[0] = _FIRST_PRIOR_HAZARD
    pooled = (returned.sum(0) + before * factor_prior) / (exposed.sum(0) + factor_prior)
    pooled = np.minimum(pooled, _MOST)
    observed = returned.sum(1)
    factors = _factors(observed, exposed @ pooled, factor_prior)
    prior = np.minimum(pooled * factors[:, None], _MOST)
    own = (observed + cell_prior) / ((exposed * prior).sum(1) + cell_prior)
    prior = np.minimum(prior * own[:, None], _MOST)
    # A return within the very second of a visit may be counted before its exposure is.
    chance: FloatArray = (returned + cell_prior * prior) / (np.maximum(exposed, returned) + cell_prior)
    return np.clip(chance, _LEAST, _MOST)


def _factors(observed: FloatArray, expected: FloatArray, prior: float) -> FloatArray:
    factors = np.ones(len(observed))
    for _ in range(_ROUNDS):
        for level, levels in zip(FACTS_OF_GROUP, LEVELS, strict=True):
            seen = np.bincount(level, observed, levels)
            foreseen = np.bincount(level, expected * factors, levels)
            factors = factors * ((seen + prior) / (foreseen + prior))[level]
    return factors
