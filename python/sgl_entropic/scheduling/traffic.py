"""Which requests resemble one another (route, limit, length of prompt), and their columns as arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from sgl_entropic.scheduling.facts import RequestFacts

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

ALL_TRAFFIC = 0
"""Number of the group that stands for every request."""
MOST_GROUPS = 255
"""Beyond these, requests are known as part of all traffic only: callers who invent routes take no more memory."""


class TrafficGroups:
    """Numbers for kinds of requests, given in the order in which they finish.

    A kind is a route, a limit of new tokens in powers of 2 and a prompt length in powers of 4: who sends a limit often
    knows how long the answer is going to be.
    """

    def __init__(self) -> None:
        self._number: dict[tuple[str, int, int], int] = {}

    def __len__(self) -> int:
        return len(self._number) + 1

    def of(self, request: RequestFacts) -> int:
        """Return the group of ``request``; ``ALL_TRAFFIC`` when none of its kind has finished."""
        return self._number.get(_kind(request), ALL_TRAFFIC)

    def observed(self, request: RequestFacts) -> int:
        """Return the group of a finished ``request``, a new one if it is the first."""
        kind = _kind(request)
        if kind not in self._number and len(self._number) < MOST_GROUPS:
            self._number[kind] = len(self._number) + 1
        return self._number.get(kind, ALL_TRAFFIC)


def _kind(request: RequestFacts) -> tuple[str, int, int]:
    return request.route, request.max_new_tokens.bit_length(), request.prompt_tokens.bit_length() // 2


@dataclass(frozen=True, slots=True)
class Columns:
    """What estimates need of n requests; arrays [n], tokens in float64, NaN where a flow or surprisal is unknown."""

    group: IntArray
    arrival: FloatArray
    generated: FloatArray
    remaining: FloatArray
    context: FloatArray
    cached: FloatArray
    ignores_eos: NDArray[np.bool_]
    flow_nats: FloatArray
    surprisal_nats: FloatArray

    @classmethod
    def of(cls, requests: Sequence[RequestFacts], groups: TrafficGroups) -> Columns:
        """Read the columns of ``requests``."""
        rows = [
            (
                groups.of(request),
                request.arrival,
                request.generated_tokens,
                request.most_remaining_tokens,
                request.prompt_tokens + request.generated_tokens,
                request.cached_tokens,
                request.ignores_eos,
                math.nan if request.flow_nats is None else request.flow_nats,
                math.nan if request.prefix_surprisal_nats is None else request.prefix_surprisal_nats,
            )
            for request in requests
        ]
        table = np.array(rows, dtype=np.float64).reshape(len(rows), 9).T
        return cls(
            group=table[0].astype(np.int64),
            arrival=table[1],
            generated=table[2],
            remaining=table[3],
            context=table[4],
            cached=table[5],
            ignores_eos=table[6] > 0.0,
            flow_nats=table[7],
            surprisal_nats=table[8],
        )

    def take(self, order: IntArray) -> Columns:
        """Return the columns of the requests at ``order``, in that order."""
        return Columns(*(getattr(self, field.name)[order] for field in fields(self)))

    @property
    def uncached(self) -> FloatArray:
        """Tokens to be computed before the next is generated, [n]."""
        return np.maximum(1.0, self.context - self.cached)

    @property
    def private(self) -> FloatArray:
        """Tokens whose KV nobody else holds, [n]."""
        return np.maximum(0.0, self.context - self.cached)
