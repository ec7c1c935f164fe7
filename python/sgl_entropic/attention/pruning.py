"""From a request's entropies to what each of its decode steps reads: plain state, no tensors, no clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from sgl_entropic.attention.keep_ratio import keep_ratio
from sgl_entropic.attention.selection import (
    Floats,
    QueryChoice,
    Selection,
    choice_by_query,
    select,
    whole_blocks,
)
from sgl_entropic.attention.settings import AttentionSettings

LAG_TOKENS = 2
"""A step knows the readings of all tokens but the last one it follows: the host is one step behind the device. Always
reckoning with that makes a request's decisions the same alone and among others, with overlapped scheduling and without."""

Reason = Literal["short", "unknown", "spike", "ratio", "measure", "kept"]


@dataclass(frozen=True, slots=True)
class Reading:
    """What one decode step reads.

    Attributes:
        selection: the blocks that are read, or how each KV head of each layer chooses them; ``None`` reads all.
        reason: ``short`` context, ``unknown`` entropy, ``spike`` or ``ratio`` of 1: dense. ``measure``: dense, and the
            attention that each block receives is wanted. ``kept``: the selection.
        rescored: whether the selection is new.
    """

    selection: Selection | QueryChoice | None
    reason: Reason
    rescored: bool = False


class Pruning:
    """One request's pruning, step by step.

    Attributes:
        settings: of the request.
        needs_mass: whether blocks are chosen by the attention they received.
        by_query: whether each KV head of each layer and step chooses by its query.
        spikes: times that an entropy spike brought the whole context back.
    """

    def __init__(self, settings: AttentionSettings) -> None:
        self.settings = settings
        self.needs_mass = settings.policy == "attention"
        self.by_query = settings.policy in ("quest", "mixed")
        self.spikes = 0
        self._selection: Selection | QueryChoice | None = None
        self._scored_at: int | None = None
        self._measured_at: int | None = None
        self._released = False

    def restart(self) -> None:
        """Forget what is read: the request begins again, maybe with fewer tokens."""
        self._selection = self._scored_at = self._measured_at = None
        self._released = False

    def step(
        self,
        output_index: int,
        length: int,
        entropy_at: Callable[[int], float | None],
        contribution: Callable[[int], Floats],
        steps_left: int | None = None,
    ) -> Reading:
        """Decide what the step that computes output token ``output_index`` reads.

        Args:
            output_index: of the token to come; asked for in ascending order, as steps run.
            length: tokens of the context, the newest one (whose key and value this step writes) included.
            entropy_at: entropy in nats of an output token by its index; ``None`` is unknown. None later than
                ``output_index - LAG_TOKENS`` is asked for.
            contribution: gives ``[layers, blocks]`` for so many first blocks of the context; one layer where each step
                chooses by its query.
            steps_left: steps that the answer may still take, this one included; ``None`` where nobody knows.
        """
        known = output_index - LAG_TOKENS
        entropy = entropy_at(known) if known >= 0 else None
        if (reason := self._reads_all(length, entropy)) is not None:
            self._selection = self._scored_at = None
            return Reading(None, reason)
        settings = self.settings
        if self._scored_at is not None and output_index < self._scored_at + settings.score_interval_steps:
            return Reading(self._selection, "ratio" if self._selection is None else "kept")
        since = max(0, known + 1 - settings.score_interval_steps)
        recent = [value for index in range(since, known + 1) if (value := entropy_at(index)) is not None]
        ratio = keep_ratio(sum(recent) / len(recent), settings)
        if ratio < 1.0 and self.needs_mass and self._measured_at != output_index - 1:
            self._measured_at = output_index
            return Reading(None, "measure")
        self._scored_at, self._selection = output_index, None
        if ratio < 1.0:
            self._selection = self._choose(
                contribution(whole_blocks(length, settings)), length, ratio, steps_left
            )
        return Reading(self._selection, "ratio" if self._selection is None else "kept", rescored=True)

    def _choose(
        self, contribution: Floats, length: int, ratio: float, steps_left: int | None
    ) -> Selection | QueryChoice | None:
        if self.by_query:
            choice = choice_by_query(contribution[0], length, ratio, self.settings, steps_left)
            return None if choice.budget == choice.blocks else choice
        chosen = select(contribution, length, ratio, self.settings, steps_left)
        return None if chosen.kept.all() else chosen

    def _reads_all(self, length: int, entropy: float | None) -> Reason | None:
        settings = self.settings
        if length < settings.min_context_tokens or whole_blocks(length, settings) == 0:
            return "short"
        if entropy is None:
            return "unknown"
        return "spike" if self._spikes(entropy) else None

    def _spikes(self, entropy: float) -> bool:
        settings = self.settings
        if self._released:
            self._released = entropy >= settings.calm_share * settings.spike_entropy_nats
        elif entropy > settings.spike_entropy_nats:
            self._released = True
            self.spikes += 1
        return self._released
