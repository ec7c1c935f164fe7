"""Who keeps its KV when the pool is full."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sgl_entropic.runtime.scheduling.seat import seat


def around_retraction_order(original: Callable[[list[Any]], list[int]], reqs: list[Any]) -> list[int]:
    """Around ``ScheduleBatch._get_decode_retraction_order``: indices from most to least worth keeping.

    A policy that the user named for retraction stays in force.
    """
    here = seat()
    if here is None or not here.chooses_retractions:
        return original(reqs)
    return here.retraction_order(reqs) or original(reqs)
