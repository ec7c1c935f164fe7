"""Mean surprisal of the blocks of a trace, which the trace itself does not hold."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np

from sgl_entropic.eviction.arrays import FloatArray
from sgl_entropic.replay.trace import Trace

_MEDIAN_NATS = 2.0
_SPREAD = 0.5


def synthetic(trace: Trace, seed: int) -> FloatArray:
    """Log-normal around 2 nats, drawn for each id without regard to its reuse [node]."""
    ids, place = np.unique(np.array(trace.hash_id, dtype=np.int64), return_inverse=True)
    drawn = _MEDIAN_NATS * np.random.default_rng(seed).lognormal(0.0, _SPREAD, len(ids))
    values: FloatArray = drawn[place]
    return values


def read(path: Path, trace: Trace) -> FloatArray:
    """From JSON lines ``{"hash_id": id, "surprisal_nats": mean}`` [node]; NaN for ids that are not listed.

    Raises:
        ValueError: a line is malformed; the text has its number.
        OSError: the file cannot be read.
    """
    known: dict[int, float] = {}
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                hash_id, nats = int(row["hash_id"]), float(row["surprisal_nats"])
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(
                    f'{path}, line {number}: {{"hash_id": id, "surprisal_nats": mean}} is needed'
                ) from error
            if not (math.isfinite(nats) and nats >= 0):
                raise ValueError(f"{path}, line {number}: surprisal_nats is {nats}: at least 0 is needed")
            known[hash_id] = nats
    return np.array([known.get(one, math.nan) for one in trace.hash_id])


def shuffled(surprisal_nats: FloatArray, seed: int) -> FloatArray:
    """The same values, each at a node drawn at random: the placebo."""
    return np.random.default_rng(seed).permutation(surprisal_nats)
