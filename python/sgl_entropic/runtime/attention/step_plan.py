"""What every row of the coming decode step reads, and its way to the attention backend and back.

Made where the batch is at hand, consumed by the backend in the same call of the same thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgl_entropic.attention.pruning import Reading
from sgl_entropic.attention.selection import QueryChoice, Selection
from sgl_entropic.runtime.attention.request import RequestPruning

Floats = NDArray[np.float32]


@dataclass(slots=True)
class StepPlan:
    """The rows of one decode batch in order; rows that a backend adds are padding and read all.

    Attributes:
        block_tokens: tokens of a block.
        lengths: tokens of each row's context, the newest included.
        readings: what each row reads; ``None`` where pruning was not asked for.
        requests: whose rows want to know what attention their blocks receive.
        mass: ``[layers, rows, blocks]``, set by a backend that measures it.
    """

    block_tokens: int
    lengths: list[int]
    readings: list[Reading | None]
    requests: list[RequestPruning | None]
    mass: Floats | None = field(default=None, repr=False)

    @property
    def prunes(self) -> bool:
        """Whether any row leaves something out."""
        return any(reading is not None and reading.selection is not None for reading in self.readings)

    @property
    def measures(self) -> bool:
        """Whether the attention that blocks receive is wanted."""
        return any(reading is not None and reading.reason == "measure" for reading in self.readings)

    def masks(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """``kept [layers, rows, blocks]`` (one layer where all are alike) and ``tail [rows]``, 0 for rows that read all."""
        selections = self.selections()
        given = [selection for selection in selections if isinstance(selection, Selection)]
        layers = max((selection.kept.shape[0] for selection in given), default=1)
        width = max((selection.kept.shape[1] for selection in given), default=0)
        # Of a row that chooses by its query only the tail is said, and the width covers what is before it.
        wide = max((s.blocks for s in selections if isinstance(s, QueryChoice)), default=0)
        kept = np.zeros((layers, len(selections), max(width, wide)), dtype=np.uint8)
        tail = np.zeros(len(selections), dtype=np.int64)
        for row, selection in enumerate(selections):
            if isinstance(selection, Selection):
                kept[:, row, : selection.kept.shape[1]] = selection.kept
                tail[row] = selection.tail_start
            elif selection is not None:
                tail[row] = selection.blocks * self.block_tokens
        return kept, tail

    def selections(self) -> list[Selection | QueryChoice | None]:
        """What each row reads; ``None`` is all."""
        return [None if reading is None else reading.selection for reading in self.readings]

    def choices(self, keys_of: Callable[[RequestPruning], Any]) -> list[tuple[Any, ...] | None] | None:
        """What the compiled decoder takes of rows that choose by their query; ``None`` where there are none."""
        found: list[tuple[Any, ...] | None] = []
        for selection, request in zip(self.selections(), self.requests, strict=True):
            if isinstance(selection, QueryChoice):
                assert request is not None, "a row that chooses is a request's"
                shares = (selection.blocks, selection.budget, selection.sinks, selection.recent)
                found.append((keys_of(request), *shares, selection.bonus, selection.tilt))
            else:
                found.append(None)
        return found if any(found) else None

    def not_followed(self) -> None:
        """The backend read everything after all: say so."""
        for request, length in zip(self.requests, self.lengths, strict=True):
            if request is not None:
                request.read_all(length)

    def deliver(self) -> None:
        """Hand the measured mass to the requests that wanted it."""
        if self.mass is None:
            return
        for row, (reading, request) in enumerate(zip(self.readings, self.requests, strict=True)):
            if reading is not None and reading.reason == "measure" and request is not None:
                request.measured(self.mass[:, row, : -(-self.lengths[row] // self.block_tokens)].copy())


_current: StepPlan | None = None


@contextmanager
def published(plan: StepPlan) -> Iterator[None]:
    """Put ``plan`` in force for the forward pass inside, and hand on what that measured."""
    global _current  # noqa: PLW0603 -- one forward pass at a time in a scheduler process
    _current = plan
    try:
        yield
    finally:
        _current = None
    plan.deliver()


def current() -> StepPlan | None:
    """The plan of this forward pass."""
    return _current
