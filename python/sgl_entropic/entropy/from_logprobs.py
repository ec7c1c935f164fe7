"""Bound a token's entropy from the ``top_logprobs`` of any OpenAI-compatible server. Standard library only.

The formulas, and why they are bounds, are those of :mod:`sgl_entropic.entropy.truncated`. The bounds hold for
the distribution that the server took its log-probabilities from; some servers report them after temperature.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

# Servers round: a log-probability may come out just above 0. More than this is some other quantity.
_ROUNDING_NATS = 1e-3


class EntropyBounds(NamedTuple):
    """Bounds on one token's entropy in nats, ``low_nats <= point_nats <= high_nats``."""

    low_nats: float
    high_nats: float
    point_nats: float
    """The midpoint of the bounds: the guess with the smallest worst error, not an expectation."""
    tail_mass: float
    """Probability that the listed tokens leave to the others, from 0 to 1."""


def entropy_bounds_from_logprobs(logprobs: Sequence[float], vocab_size: int) -> EntropyBounds:
    """Bound the entropy of a token from its k most likely alternatives.

    Args:
        logprobs: natural logs of the k largest probabilities, in any order; ``-inf`` (or a server's -9999) is
            a token that cannot be drawn.
        vocab_size: V, how many tokens the model chooses among; an overestimate only widens the bounds.

    Raises:
        ValueError: k outside 1..V, NaN, or a log-probability above 0.
    """
    k = len(logprobs)
    if not 1 <= k <= vocab_size:
        raise ValueError(f"logprobs must hold from 1 to vocab_size = {vocab_size} numbers, not {k}")
    log_p = [_log_probability(value) for value in logprobs]
    p = [math.exp(value) for value in log_p]
    head = math.fsum(-mass * log_mass for mass, log_mass in zip(p, log_p, strict=True) if mass > 0.0)
    tail_tokens = vocab_size - k
    # No tail token is likelier than the least likely of those listed.
    tail_mass = min(max(0.0, 1.0 - math.fsum(p)), tail_tokens * min(p))
    if tail_mass == 0.0:
        return EntropyBounds(head, head, head, 0.0)
    low = head - tail_mass * min(log_p)
    high = max(low, head + tail_mass * (math.log(tail_tokens) - math.log(tail_mass)))
    return EntropyBounds(low, high, 0.5 * (low + high), tail_mass)


def _log_probability(value: float) -> float:
    if not value <= _ROUNDING_NATS:  # NaN too
        raise ValueError(f"a log-probability must be at most 0, not {value!r}")
    return min(float(value), 0.0)
