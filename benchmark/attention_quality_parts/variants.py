"""Policies at shares of the context, as the server would run them, with budgets that make the realised shares equal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from sgl_entropic.attention.pruning import LAG_TOKENS, Pruning, Reading
from sgl_entropic.attention.selection import whole_blocks
from sgl_entropic.attention.settings import POLICIES, RECENT_SHARES, AttentionSettings, Policy
from sgl_entropic.runtime.attention.request import RequestPruning

Floats = NDArray[np.float32]
FIRST_INDEX = LAG_TOKENS + 1
"""Output index of the first teacher-forced step: late enough that an entropy is known, and a step before it."""
ENTROPY_NATS = 1.0
"""Of every step: between the least share and the largest, which are the same, it changes nothing."""
TOLERANCE = 0.05
"""How far a realised share may lie from the nominal one, as a share of it; a block of 16 tokens is 3 % of 0.25 of 2,000."""
_STEP = 0.0005


class KeepError(RuntimeError):
    """A variant reads another share of its contexts than it should."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A policy and the share of the context that it may read; 1 and any policy: everything."""

    policy: Policy
    keep: float

    @property
    def name(self) -> str:
        """As in tables and samples."""
        return f"{self.policy} {self.keep:g}"


def every(keeps: list[float]) -> list[Variant]:
    """All policies at all shares."""
    return [Variant(policy, keep) for keep in keeps for policy in POLICIES]


class Course:
    """One request's pruning through its teacher-forced steps, which begin after ``context`` tokens.

    Attributes:
        request: as the server holds it.
        settings: of its pruning.
    """

    def __init__(self, policy: Policy, ratio: float, context: int) -> None:
        self.settings = AttentionSettings(
            policy=policy,
            min_keep_ratio=ratio,
            max_keep_ratio=ratio,
            recent_share=RECENT_SHARES[policy],
        )
        self.request = RequestPruning(Pruning(self.settings))
        self._context, self._steps = context, 0
        self._read, self._of = 0.0, 0

    def measure(self, mass: Floats) -> None:
        """Take in what the blocks received in the step of the context's last token, where the policy asks for it."""
        if not self.request.policy.needs_mass:
            return
        reading = self.request.policy.step(FIRST_INDEX - 1, self._context, _entropy_at, _never)
        if reading.reason == "measure":
            self.request.measured(mass)

    def step(self, contributed: Callable[[int], Floats]) -> Reading:
        """What the next step reads."""
        self._steps += 1
        index, length = FIRST_INDEX + self._steps - 1, self._context + self._steps
        reading = self.request.policy.step(index, length, _entropy_at, contributed)
        selection = reading.selection
        self._read += length if selection is None else selection.tokens(length, self.settings.block_tokens)
        self._of += length
        return reading

    def realised(self) -> float:
        """Share of the contexts that the steps so far read."""
        return self._read / self._of


def realised_keep(policy: Policy, ratio: float, context: int, steps: int) -> float:
    """Share of the contexts that ``steps`` steps read; it does not depend on which blocks are chosen."""
    course = Course(policy, ratio, context)
    course.measure(np.zeros((1, whole_blocks(context, course.settings)), np.float32))
    for _ in range(steps):
        course.step(lambda blocks: np.zeros((1, blocks), np.float32))
    return course.realised()


@cache
def budget(variant: Variant, context: int, steps: int) -> float:
    """The largest ratio that makes the realised share of ``steps`` steps at most the nominal one.

    What is read grows between two choices of blocks, and the policy that measures attention reads all when it does.

    Raises:
        KeepError: none comes near it.
    """
    if variant.keep >= 1.0:
        return 1.0
    ratio = variant.keep
    while ratio > 0 and realised_keep(variant.policy, ratio, context, steps) > variant.keep:
        ratio -= _STEP
    check(variant, realised_keep(variant.policy, max(ratio, 0.0), context, steps))
    return ratio


def check(variant: Variant, realised: float) -> None:
    """Nothing, or an error.

    Raises:
        KeepError: ``realised`` is further from the variant's share than ``TOLERANCE``, or beyond it.
    """
    if not (1 - TOLERANCE) * variant.keep <= realised <= variant.keep + 1e-6:
        raise KeepError(f"{variant.name}: {realised:.4f} of the contexts would be read")


def _entropy_at(_index: int) -> float:
    return ENTROPY_NATS


def _never(_blocks: int) -> Floats:
    raise AssertionError("blocks are chosen before the attention that they receive is known")
