"""Temperature as a controlled variable: it moves so that the entropy sampled from stays near a target.

With ``u = ln T``, ``H`` and ``V`` entropy and varentropy of ``softmax(z / T)``, and the error ``e = H - target``::

    fixed    u' = clip(u - gain e, lo, hi)
    newton   u' = clip(u - gain e / max(V, floor), lo, hi)
    exact    H(u) = target on the logits at hand, u in [lo, hi]; no state

``dH/du = V >= 0``, so the minus sign stabilises: too much entropy cools. A higher target or higher ``lo`` means
more randomness; at ``lo = hi = ln T`` of the request nothing changes. Which gains are stable: ``stability.py``.
Source: the law is that of arXiv 2603.03310 with this sign; the derivation is in ``docs/concepts/sampling.md``.

Rows are independent of each other, on a CPU bit for bit. Nothing here waits for the device, depends on the data
for its shapes, or writes to its inputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from sgl_entropic.feedback.stability import Mode

FIXED, NEWTON, EXACT = range(3)
MODE_CODES: dict[Mode, int] = {"fixed": FIXED, "newton": NEWTON, "exact": EXACT}

FORCED_VARENTROPY = 0.01
"""Below it a row says nothing about the controller: one token has nearly all the probability, or all are alike."""
NEWTON_VARENTROPY_FLOOR = 0.1
"""Least slope that Newton's step divides by, so that one flat row does not throw the temperature about."""
SOLVE_TOLERANCE_NATS = 1e-3

# Passes over the logits besides two at the ends. Rows like a model's take eight within T from 0.22 to 4.5; the
# worst of 72,000 random ladders, ties and steep two-level rows, with T from 0.01 to 100, took eleven.
_SOLVE_STEPS = 14
_NO_WEIGHT = -120.0  # exp of it is 0 in float32, and products with it are finite
_SMALLEST_SLOPE = 1e-6

# Entries handled at once, five temporaries of this size; see sgl_entropic.entropy.row_statistics.
_BLOCK_ENTRIES_CPU = 1 << 18
_BLOCK_ENTRIES_ACCELERATOR = 1 << 23


class ControlRows(NamedTuple):
    """What B rows ask of the controller; every field is a [B] tensor, float32 unless said otherwise."""

    target_nats: Tensor
    """Entropy to hold; a row whose target is not finite is left alone."""
    gain: Tensor
    """``u`` per nat of error (fixed), or share of Newton's step (newton); unused by exact."""
    mode: Tensor
    """Integers: FIXED, NEWTON or EXACT."""
    min_log_temperature: Tensor
    """``ln`` of the request's temperature times the smallest scale; finite where ``controlled``."""
    max_log_temperature: Tensor
    controlled: Tensor
    """bool; False leaves the row to its own temperature."""


class Solution(NamedTuple):
    """Temperatures of B rows and what they lead to; every field is a [B] tensor, float32 but for ``saturated``."""

    log_temperature: Tensor
    entropy_nats: Tensor
    """Of ``softmax(z / T)`` at that temperature; 0 for a row that is no distribution."""
    varentropy: Tensor
    """Likewise, nats squared."""
    saturated: Tensor
    """bool; True where no temperature in range reaches the target, and the nearest bound is taken."""


def next_log_temperature(
    log_temperature: Tensor,
    rows: ControlRows,
    entropy_nats: Tensor,
    varentropy: Tensor,
    frozen: Tensor,
    own_varentropy: Tensor | None = None,
) -> Tensor:
    """Return ``ln T`` of the next token, [B], from the entropy that this token was drawn at.

    Rows that are frozen, not controlled, of mode EXACT, or without finite readings keep ``log_temperature`` bit
    for bit. From a finite state and finite bounds nothing that is not finite can come, whatever the readings.

    Args:
        log_temperature: [B], at which this token was drawn.
        rows: as asked for.
        entropy_nats: [B], of the distribution drawn from.
        varentropy: [B], likewise, nats squared.
        frozen: [B] bool; True for one legal token, a greedy row and a row that is no distribution.
        own_varentropy: [B], before the temperature, to tell forced rows by. Without it ``varentropy`` decides, and
            a temperature that is low enough makes every row look forced: the controller would keep it there.
    """
    error_nats = entropy_nats - rows.target_nats
    slope = torch.where(rows.mode == NEWTON, varentropy.clamp(min=NEWTON_VARENTROPY_FLOOR), 1.0)
    proposed = log_temperature - rows.gain * error_nats / slope
    steerable = (varentropy if own_varentropy is None else own_varentropy) >= FORCED_VARENTROPY
    moves = rows.controlled & (rows.mode != EXACT) & ~frozen & steerable & proposed.isfinite()
    bounded = torch.minimum(torch.maximum(proposed, rows.min_log_temperature), rows.max_log_temperature)
    return torch.where(moves, bounded, log_temperature)


def solve_log_temperature(logits: Tensor, rows: ControlRows, start_log_temperature: Tensor) -> Solution:
    """Return the ``ln T`` at which each row of mode EXACT has its target entropy, and the readings of all rows.

    Within ``SOLVE_TOLERANCE_NATS`` of the target, or saturated. The answer does not depend on the start. Kept bit
    for bit is the start of a row that is not controlled, of another mode, without finite target or no
    distribution, and of a row whose entropy the whole range changes by less than the tolerance (one legal token,
    all equal).

    Newton's method between brackets: a step that leaves the bracket or does not halve the error is replaced by
    a bisection. The number of steps is fixed, so that no answer has to be waited for.

    Args:
        logits: [B, V] float32, before any temperature; ``-inf`` is an illegal token.
        rows: as asked for.
        start_log_temperature: [B], of the request itself; ``-inf`` (greedy) is legal where not controlled.
    """
    blocks = [
        _solve_block(logits[at], ControlRows(*(column[at] for column in rows)), start_log_temperature[at])
        for at in row_blocks(logits)
    ]
    return Solution(*(torch.cat(column) for column in zip(*blocks, strict=True)))


def row_blocks(logits: Tensor) -> Iterator[slice]:
    """Slices of the rows of ``logits`` [B, V] whose temporaries stay in cache; one empty slice for no rows."""
    rows, vocab_size = logits.shape
    entries = _BLOCK_ENTRIES_CPU if logits.device.type == "cpu" else _BLOCK_ENTRIES_ACCELERATOR
    step = max(1, entries // max(1, vocab_size))
    return (slice(at, at + step) for at in range(0, max(1, rows), step))


def below_largest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``z - max z`` as [B, V] float32 without NaN, and whether the row is a distribution, [B] bool.

    Entries at ``+inf`` share all probability. A row that is no distribution comes out as all equal.
    """
    entries = logits.to(torch.float32)
    largest = entries.amax(dim=-1, keepdim=True)
    valid = largest > -math.inf  # False for NaN too, which amax hands on
    # NaN in a valid row is +inf - +inf: one of those that share all. Without a distribution all is NaN, thus 0.
    below = (entries - largest).nan_to_num_(nan=0.0, neginf=-math.inf)
    return below, valid.squeeze(1)


class _Tempered:
    """Entropy and varentropy of a block of rows at any temperature, in buffers that are filled again each time."""

    def __init__(self, below: Tensor) -> None:
        self.below = below
        self.scaled = torch.empty_like(below)
        # One sum over three: a single row must not become a sum to one number, which PyTorch splits among threads
        # and so rounds differently from the same row in a batch.
        self.terms = below.new_empty(3, *below.shape)

    def __call__(self, log_temperature: Tensor) -> tuple[Tensor, Tensor]:
        """Return entropy and varentropy, [b] each, at ``log_temperature`` [b]."""
        # Never 0 or infinite (nan_to_num makes that the largest number): -inf times 0 and 0 times inf are NaN.
        scale = log_temperature.neg().exp().nan_to_num(nan=1.0).clamp(min=1e-30).unsqueeze(1)
        torch.mul(self.below, scale, out=self.scaled).clamp_(min=_NO_WEIGHT)
        torch.exp(self.scaled, out=self.terms[0])
        torch.mul(self.terms[0], self.scaled, out=self.terms[1])
        torch.mul(self.terms[1], self.scaled, out=self.terms[2])
        partition, first, second = self.terms.sum(dim=-1)
        mean = first / partition
        entropy_nats = (partition.log() - mean).clamp(min=0.0)
        return entropy_nats, (second / partition - mean.square()).clamp(min=0.0)


def _solve_block(logits: Tensor, rows: ControlRows, start: Tensor) -> Solution:
    below, valid = below_largest(logits)
    tempered = _Tempered(below)
    target, low, high = rows.target_nats, rows.min_log_temperature, rows.max_log_temperature
    (low_nats, _), (high_nats, _) = tempered(low), tempered(high)
    asked = rows.controlled & (rows.mode == EXACT) & valid & target.isfinite()
    solved = asked & (high_nats - low_nats > SOLVE_TOLERANCE_NATS)
    too_low, too_high = solved & (target <= low_nats), solved & (target >= high_nats)
    inside = solved & ~too_low & ~too_high
    # Rows that are not searched for stand still at their answer and collect its readings on the way.
    resting = torch.where(too_low, low, torch.where(too_high, high, start))

    at = torch.where(inside, (low + high) / 2.0, resting)
    best, best_nats, best_varentropy = at, torch.zeros_like(target), torch.zeros_like(target)
    best_error = last_error = torch.full_like(target, math.inf)
    for _ in range(_SOLVE_STEPS):
        entropy_nats, varentropy = tempered(at)
        residual = entropy_nats - target
        error = residual.abs()
        better = ~inside | (error < best_error)
        best = torch.where(better, at, best)
        best_nats = torch.where(better, entropy_nats, best_nats)
        best_varentropy = torch.where(better, varentropy, best_varentropy)
        best_error = torch.minimum(best_error, error)
        low = torch.where(residual < 0.0, at, low)
        high = torch.where(residual < 0.0, high, at)
        newton = at - residual / varentropy.clamp(min=_SMALLEST_SLOPE)
        trusted = (newton > low) & (newton < high) & (error <= last_error / 2.0)
        last_error = error
        at = torch.where(inside, torch.where(trusted, newton, (low + high) / 2.0), resting)
    return Solution(
        log_temperature=best,
        entropy_nats=best_nats.masked_fill(~valid, 0.0),
        varentropy=best_varentropy.masked_fill(~valid, 0.0),
        saturated=(too_low & (target < low_nats)) | (too_high & (target > high_nats)),
    )
