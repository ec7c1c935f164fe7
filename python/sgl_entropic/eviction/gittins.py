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
    ages = len(widths_s)
    # All ages at once, one age more of the horizon after the other; those of a group lie in a column.
    stays = np.ascontiguousarray(1.0 - hazard.T)
    widths = widths_s[:, None]
    index = np.zeros_like(stays)
    survives, seconds = np.ones_like(stays), np.zeros_like(stays)
    for horizon in range(ages):
        begins = ages - horizon
        before = survives[:begins]
        after = before * stays[horizon:]
        # Returns are spread evenly over an age, so those that return stay for half of it.
        seconds = seconds[:begins] + (before + after) / 2 * widths[horizon:]
        np.maximum(index[:begins], (1.0 - after) / seconds, out=index[:begins])
        survives = after
    return np.ascontiguousarray(index.T)
