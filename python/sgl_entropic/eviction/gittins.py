"""What a second of a slot is worth: the Gittins index of keeping a node.

    index(a) = max over horizons h of  P(returns in [a, a + h)) / E[seconds kept until it returns or a + h]

for a node that has not been touched for ``a`` seconds. Keeping it is a bandit whose arm may be given up at any time, and
the index is the best rate of hits that some plan for it reaches (Gittins 1979). It rises where a return is due: the
answer has been read, the next question is not yet written. Recency is the special case of a hazard that only falls; the
hit density of LHD (Beckmann et al. 2018) is the horizon "until evicted" alone.
"""

from __future__ import annotations

import numpy as np

from sgl_entropic.eviction.arrays import FloatArray


def gittins_index(hazard: FloatArray, widths_s: FloatArray) -> FloatArray:
    """Hits per second and slot at the beginning of each age.

    Args:
        hazard: chance to return within an age of those that reached it, [group, age].
        widths_s: seconds of each age, [age].
    """
    groups, ages = hazard.shape
    index = np.zeros_like(hazard)
    for age in range(ages):
        survives = np.ones((groups, ages - age + 1))
        np.cumprod(1.0 - hazard[:, age:], axis=1, out=survives[:, 1:])
        # Returns are spread evenly over an age, so those that return stay for half of it.
        seconds = np.cumsum((survives[:, :-1] + survives[:, 1:]) / 2 * widths_s[age:], axis=1)
        index[:, age] = ((1.0 - survives[:, 1:]) / seconds).max(axis=1)
    return index
