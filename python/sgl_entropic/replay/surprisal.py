"""Mean surprisal of the blocks of a trace, which the trace itself does not hold."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from sgl_entropic.eviction.arrays import FloatArray
from sgl_entropic.replay import jsonlines
from sgl_entropic.replay.trace import Trace

_FIELDS = ("hash_id", "surprisal_nats")
_MEDIAN_NATS = 2.0
_SPREAD = 0.5


def synthetic(trace: Trace, seed: int) -> FloatArray:
    """Log-normal around 2 nats, drawn for each id without regard to its reuse [node]."""
    # Ids are numbered as they come: they may be hashes that no machine integer holds.
    places: dict[int, int] = {}
    place = [places.setdefault(one, len(places)) for one in trace.hash_id]
    drawn = _MEDIAN_NATS * np.random.default_rng(seed).lognormal(0.0, _SPREAD, len(places))
    values: FloatArray = drawn[np.array(place, dtype=np.int64)]
    return values


def unknown(trace: Trace) -> FloatArray:
    """NaN for all [node]."""
    return np.full(len(trace.hash_id), math.nan)


def read(path: Path, trace: Trace) -> FloatArray:
    """From JSON lines ``{"hash_id": id, "surprisal_nats": mean}`` [node]; NaN for ids that are not listed.

    Raises:
        ValueError: a line is malformed, and the text has its number; or no id is of the trace.
        OSError: the file cannot be opened.
    """
    known = dict(jsonlines.read(path, _row))
    if known.keys().isdisjoint(trace.hash_id):
        raise ValueError(f"{path} holds no hash_id of the trace")
    return np.array([known.get(one, math.nan) for one in trace.hash_id])


def _row(row: dict[str, Any]) -> tuple[int, float]:
    missing = [field for field in _FIELDS if field not in row]
    if missing:
        raise ValueError(f'no {", ".join(missing)}: {{"hash_id": id, "surprisal_nats": mean}} is needed')
    return jsonlines.identifier(row["hash_id"], "hash_id"), jsonlines.number(row, "surprisal_nats")


def shuffled(surprisal_nats: FloatArray, seed: int) -> FloatArray:
    """The same values, each at a node drawn at random: the placebo."""
    return np.random.default_rng(seed).permutation(surprisal_nats)
