"""From a contribution of each block to the blocks that are read."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sgl_entropic.attention.settings import LAYER_TILTS, AttentionSettings

Floats = NDArray[np.float32]
Mask = NDArray[np.bool_]
Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Selection:
    """What a request reads of its context.

    Attributes:
        kept: ``[layers, blocks]`` blocks that are read, over the tokens before ``tail_start``; one layer stands for all.
        tail_start: first token of the tail, a multiple of the block; the tail is read whole, however long it grows.
    """

    kept: Mask
    tail_start: int

    def positions(self, length: int, block_tokens: int, layer: int = 0) -> Indices:
        """Positions of the tokens that are read of ``length``, ascending."""
        inside = np.flatnonzero(np.repeat(self.kept[layer], block_tokens))
        return np.concatenate((inside, np.arange(self.tail_start, length, dtype=np.int64)))

    def tokens(self, length: int, block_tokens: int) -> float:
        """Tokens that are read of ``length``, the mean over layers."""
        blocks: float = int(np.count_nonzero(self.kept)) / len(self.kept)
        return blocks * block_tokens + (length - self.tail_start)


@dataclass(frozen=True, slots=True)
class QueryChoice:
    """What a request reads where each KV head of each layer and step chooses by its query.

    Attributes:
        blocks: first blocks of the context, from which is chosen; the tail behind them is read whole.
        budget: blocks that a KV head reads, the mean over layers.
        sinks: first ones, always among them.
        recent: last ones, likewise.
        bonus: ``[blocks]`` added to the logarithm of the attention that a block is likely to receive; NaN: always read.
        tilt: share of the budget that the last layer reads more and the first one less, those between in a line.
    """

    blocks: int
    budget: int
    sinks: int
    recent: int
    bonus: Floats
    tilt: float = 0.0

    def tokens(self, length: int, block_tokens: int) -> float:
        """Tokens that are read of ``length``, the mean over layers."""
        return float(length - (self.blocks - self.budget) * block_tokens)


def whole_blocks(length: int, settings: AttentionSettings) -> int:
    """Blocks that may be left out or kept: those before the tail, which holds the last ``recent_tokens``."""
    return max(0, length - settings.recent_tokens) // settings.block_tokens


def sink_blocks(settings: AttentionSettings) -> int:
    """Blocks that hold the first ``sink_tokens``."""
    return math.ceil(settings.sink_tokens / settings.block_tokens)


def block_budget(
    length: int, ratio: float, settings: AttentionSettings, steps_left: int | None = None
) -> int:
    """Blocks to keep before the tail.

    As many as make at most ``ratio`` of the context on the mean of the steps until blocks are chosen anew or the answer ends:
    the tail grows by a token a step, which counts. More where that is less than ``min_keep_ratio`` of ``length``, since the
    answer may end sooner than it has to; a share only rises as the tail grows. The sinks are kept in any case.

    Args:
        length: tokens of the context in the first of these steps.
        ratio: share of the context to keep.
        settings: of the request.
        steps_left: steps that the answer may still take, the first of these included; ``None`` where nobody knows.
    """
    blocks, size = whole_blocks(length, settings), settings.block_tokens
    tail = length - blocks * size
    steps = settings.score_interval_steps
    if steps_left is not None:
        steps = max(1, min(steps, steps_left))
    grown = (steps - 1) / 2
    # A rounding error does not make a share that is reached exactly one that is exceeded, or missed.
    most = math.floor((ratio * (length + grown) - tail - grown) / size + 1e-9)
    least = math.ceil((settings.min_keep_ratio * length - tail) / size - 1e-9)
    return min(blocks, max(most, least, sink_blocks(settings)))


def choice_by_query(
    bonus: Floats, length: int, ratio: float, settings: AttentionSettings, steps_left: int | None = None
) -> QueryChoice:
    """The shares of ``ratio`` of ``length`` tokens, for a kernel that chooses the blocks itself.

    Args:
        bonus: ``[blocks]`` as :func:`whole_blocks` says.
        length: tokens of the context.
        ratio: share of ``length`` to keep.
        settings: of the request.
        steps_left: as :func:`block_budget` says.
    """
    budget, sinks, recent = _shares(length, ratio, settings, steps_left)
    assert len(bonus) == whole_blocks(length, settings)
    return QueryChoice(len(bonus), budget, sinks, recent, bonus, LAYER_TILTS.get(settings.policy, 0.0))


def select(
    contribution: Floats,
    length: int,
    ratio: float,
    settings: AttentionSettings,
    steps_left: int | None = None,
) -> Selection:
    """Keep the sinks, the most recent blocks, and the blocks of largest contribution, within ``ratio`` of ``length``.

    Args:
        contribution: ``[layers, blocks]`` with as many blocks as :func:`whole_blocks` says; NaN, unknown, counts as the
            largest.
        length: tokens of the context.
        ratio: share of ``length`` to keep.
        settings: of the request.
        steps_left: as :func:`block_budget` says.

    Ties go to the later block. With all that has to be kept beyond the ratio, that is kept and no more.
    """
    layers, blocks = contribution.shape
    assert blocks == whole_blocks(length, settings)
    budget, sinks, recent = _shares(length, ratio, settings, steps_left)
    first_recent = blocks - recent
    kept = np.zeros((layers, blocks), dtype=np.bool_)
    kept[:, :sinks] = True
    kept[:, first_recent:] = True
    rest = budget - sinks - recent
    if rest > 0:
        inner = np.where(np.isnan(contribution), np.inf, contribution)[:, sinks:first_recent]
        # Reversed, so that a stable sort puts the later of two equal blocks first.
        order = np.argsort(-inner[:, ::-1], axis=1, kind="stable")[:, :rest]
        chosen = inner.shape[1] - 1 - order
        np.put_along_axis(kept[:, sinks:first_recent], chosen, values=True, axis=1)
    return Selection(kept, blocks * settings.block_tokens)


def _shares(
    length: int, ratio: float, settings: AttentionSettings, steps_left: int | None
) -> tuple[int, int, int]:
    """Blocks before the tail: to keep in all, first ones, last ones."""
    blocks, size = whole_blocks(length, settings), settings.block_tokens
    budget, sinks = block_budget(length, ratio, settings, steps_left), min(sink_blocks(settings), blocks)
    tail = length - blocks * size
    recent = math.ceil(settings.recent_share * (budget * size + tail) / size) - tail // size
    return budget, sinks, min(max(recent, 0), budget - sinks)
