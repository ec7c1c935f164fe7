"""Requests in columns: a million of them fit in memory and reach the other process without being copied."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


LENGTHS = ("half", "hidden", "capped", "known")
"""What a policy may know of lengths: of every second one (the workload's own draw) the length, of the rest only a limit of
two to four times it; of all only that limit; a limit that is the length, which it cannot know; of all the length."""


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests in order of arrival; every array but ``block_ids`` has one entry for each.

    Attributes:
        arrival_ms: when each arrives.
        prompt: prompt tokens.
        output: tokens it will generate, unknown to a policy unless ``ignores_eos``.
        most_new: tokens it is allowed to generate.
        client: number of the client that asks.
        ignores_eos: whether it generates exactly ``most_new``, so that a policy knows its length.
        route: number of its kind.
        block_begin: where its shared blocks begin in ``block_ids``; one entry more than there are requests.
        block_ids: ids of the blocks its prompt begins with. Equal ids are equal text from the very beginning of the prompt.
        block_tokens: tokens of a block.
        clients: clients there are.
        flow_nats: mean positive drop of entropy for each token that it generates; ``None`` leaves flows out.
    """

    arrival_ms: Floats
    prompt: Ints
    output: Ints
    most_new: Ints
    client: Ints
    ignores_eos: NDArray[np.bool_]
    route: Ints
    block_begin: Ints
    block_ids: Ints
    block_tokens: int
    clients: int = 1
    flow_nats: Floats | None = None

    def __len__(self) -> int:
        return len(self.arrival_ms)

    def blocks(self, index: int) -> tuple[int, ...]:
        """Ids of the shared blocks of a request."""
        return tuple(self.block_ids[self.block_begin[index] : self.block_begin[index + 1]].tolist())

    def at_rate(self, factor: float) -> Requests:
        """The same requests, arriving ``factor`` times as fast; infinite means all at once."""
        return replace(self, arrival_ms=self.arrival_ms / factor)

    def with_lengths(self, lengths: str) -> Requests:
        """The same requests, with what a policy may know of their lengths; one of ``LENGTHS``."""
        if lengths == "half":
            return self
        none, every = np.zeros(len(self), np.bool_), np.ones(len(self), np.bool_)
        if lengths == "hidden":
            return replace(self, ignores_eos=none, most_new=limits_of(self.output))
        return replace(self, ignores_eos=every if lengths == "known" else none, most_new=self.output)


def limits_of(output: Ints) -> Ints:
    """Limits of answers that end before them: the power of two at or above twice the length."""
    limits: Ints = np.exp2(np.ceil(np.log2(2.0 * output))).astype(np.int64)
    return limits
