"""min-p as a controlled variable: the tail is cut so far that the entropy sampled from comes down to a target.

A threshold ``theta`` keeps the tokens with ``p >= theta max p``. It can only lower the entropy: taking away the
least likely outcome, of probability ``q``, changes it by ``q H - h(q) < 0``, with ``H`` that of what is left and
``h`` that of a coin. For all others are at least as likely, so that they are at most ``(1 - q) / q`` and
``q H <= q ln((1 - q) / q) < h(q)``. The entropy is therefore a falling step function of ``theta``.

::

    the largest theta in [0, theta_max] with H(theta) >= target; 0 where H(0) is below it

A higher ``theta_max`` allows more; at ``theta_max = 0`` nothing is cut. It is found within the step: a step function
has no slope for a feedback from step to step. Source: none known for the controller; min-p is that of arXiv 2407.01082.

As in ``temperature_control``: rows are independent, nothing waits for the device or writes to its inputs.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from sgl_entropic.sampling.temperature_control import (
    EXACT,
    below_largest,
    row_blocks,
)

LEAST_LOG_MIN_P = -25.0
"""``ln theta`` that counts as 0: of V = 131,072 tokens, all below it hold less than 2e-6 of the probability."""

# 25 / 2^20: theta is found to a relative 2.4e-5. Finer would ask for more than float32 logits can tell apart.
_SOLVE_STEPS = 20
_NO_WEIGHT = -120.0  # exp of it is 0 in float32, and products with it are finite


class MinPRows(NamedTuple):
    """What B rows ask of the controller; every field is a [B] tensor, float32 unless said otherwise."""

    target_nats: Tensor
    """Entropy to come down to; a row whose target is not finite is left alone."""
    mode: Tensor
    """Integers: EXACT of ``temperature_control``; any other leaves the row alone."""
    max_min_p: Tensor
    """Largest threshold, from 0 to 1."""
    controlled: Tensor
    """bool; False leaves the row to its own threshold."""


class MinPSolution(NamedTuple):
    """Thresholds of B rows and what they lead to; every field is a [B] tensor."""

    min_p: Tensor
    entropy_nats: Tensor
    """Of the tokens kept, renormalised; 0 for a row that is no distribution."""
    saturated: Tensor
    """bool; True where the target is below what the largest threshold leaves, or above that of the whole."""


def min_p_of(log_min_p: Tensor) -> Tensor:
    """Return ``theta``, the number a min-p sampler takes: exactly 0, no cut, at ``LEAST_LOG_MIN_P`` and below."""
    return torch.where(log_min_p > LEAST_LOG_MIN_P, log_min_p.exp(), 0.0)


def solve_min_p(logits: Tensor, rows: MinPRows, start_min_p: Tensor) -> MinPSolution:
    """Return the largest threshold that leaves each row of mode EXACT its target entropy, and the readings of all.

    Found by bisection over ``ln theta``: to a relative 2.4e-5, on the side that keeps more. The entropy is never
    cut below the target, but for the rounding of float32 (1e-5 nats). The start of a row that is not controlled,
    of another mode, without finite target or no distribution is kept bit for bit.

    Args:
        logits: [B, V] float32, already divided by the temperature; ``-inf`` is an illegal token.
        rows: as asked for.
        start_min_p: [B], of the request itself.
    """
    blocks = [
        _solve_block(logits[at], MinPRows(*(column[at] for column in rows)), start_min_p[at])
        for at in row_blocks(logits)
    ]
    return MinPSolution(*(torch.cat(column) for column in zip(*blocks, strict=True)))


class _Cut:
    """Entropy of a block of rows after a cut, in buffers that are filled again each time."""

    def __init__(self, below: Tensor) -> None:
        self.below = below
        finite = below.clamp(min=_NO_WEIGHT)
        self.weights = finite.exp()
        self.moments = self.weights * finite
        self.kept = torch.empty_like(below)
        # One sum over two: see temperature_control.
        self.terms = below.new_empty(2, *below.shape)

    def __call__(self, log_min_p: Tensor) -> Tensor:
        """Return the entropy [b] of what ``log_min_p`` [b] leaves."""
        torch.ge(self.below, log_min_p.unsqueeze(1), out=self.kept)
        torch.mul(self.weights, self.kept, out=self.terms[0])
        torch.mul(self.moments, self.kept, out=self.terms[1])
        partition, moment = self.terms.sum(dim=-1)
        entropy_nats: Tensor = partition.log() - moment / partition
        return entropy_nats.clamp(min=0.0)


def _solve_block(logits: Tensor, rows: MinPRows, start: Tensor) -> MinPSolution:
    below, valid = below_largest(logits)
    cut = _Cut(below)
    target, largest = rows.target_nats, _log_threshold(rows.max_min_p)
    whole_nats, least_nats = cut(torch.full_like(largest, -math.inf)), cut(largest)
    solved = rows.controlled & (rows.mode == EXACT) & valid & target.isfinite()
    low, high = torch.full_like(largest, LEAST_LOG_MIN_P), largest
    for _ in range(_SOLVE_STEPS):
        middle = (low + high) / 2.0
        enough = cut(middle) >= target
        low, high = torch.where(enough, middle, low), torch.where(enough, high, middle)
    # Where not even the whole has the target, nothing was ever enough, and low is still what stands for no cut.
    low = torch.where(least_nats >= target, largest, low)
    min_p = torch.where(solved, min_p_of(low), start)
    return MinPSolution(
        min_p=min_p,
        entropy_nats=cut(min_p.log().nan_to_num(nan=-math.inf, neginf=-math.inf)).masked_fill(~valid, 0.0),
        saturated=solved & ((whole_nats < target) | (least_nats > target)),
    )


def _log_threshold(min_p: Tensor) -> Tensor:
    """``ln theta`` within what is told apart from 0, and at most 0, where only the likeliest are left."""
    return min_p.log().nan_to_num(nan=LEAST_LOG_MIN_P).clamp(LEAST_LOG_MIN_P, 0.0)
