"""Small traces, and every policy of the tool made for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from sgl_entropic.eviction import EvictionSettings
from sgl_entropic.replay import arms, surprisal
from sgl_entropic.replay.policy import Policy
from sgl_entropic.replay.prefill import PrefillCost
from sgl_entropic.replay.trace import Trace, build

COST = PrefillCost(10.0, 1.0, 0.01)


def _trace_of(*paths: Sequence[int], seconds: int = 10) -> Trace:
    """Requests of whole blocks of 4 tokens, one every ``seconds``."""
    return build(
        [
            {
                "timestamp": 1000 * seconds * at,
                "input_length": 4 * len(path),
                "output_length": 1,
                "hash_ids": [*path],
            }
            for at, path in enumerate(paths)
        ],
        4,
    )


def _makers(trace: Trace) -> dict[str, Callable[[], Policy]]:
    """All policies."""
    settings = arms.ArmSettings(
        COST, tlru_threshold_tokens=4, gravity=1.0, eviction=EvictionSettings(surprisal_weight=0.5)
    )
    return arms.factories(trace, surprisal.synthetic(trace, 0), settings)


@pytest.fixture(scope="session")
def trace_of() -> Callable[..., Trace]:
    """Makes a trace of paths."""
    return _trace_of


@pytest.fixture(scope="session")
def makers() -> Callable[[Trace], dict[str, Callable[[], Policy]]]:
    """Makes the makers of all policies for a trace."""
    return _makers
