"""How fast this machine reads memory: what a model whose weights are read once a token cannot exceed."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

BUFFER_BYTES = 1 << 30
_FLOAT_BYTES = 4
_PIECE_FLOATS = 1 << 20


def _read(part: np.ndarray) -> float:
    # A dot product of a block with itself reads each byte from memory once and lets other threads run meanwhile.
    pieces = (part[at : at + _PIECE_FLOATS] for at in range(0, len(part), _PIECE_FLOATS))
    return float(sum(float(np.dot(piece, piece)) for piece in pieces))


def read_bytes_per_s(threads: int | None = None, buffer_bytes: int = BUFFER_BYTES, passes: int = 5) -> float:
    """The best of ``passes`` streaming reads of a buffer far larger than the caches, one part a thread.

    The best and not the median: it is a divisor, and a pass that something disturbed would flatter the share.
    """
    workers = threads or len(os.sched_getaffinity(0))
    data = np.ones(buffer_bytes // _FLOAT_BYTES, np.float32)
    parts = np.array_split(data, workers)
    best_s = float("inf")
    with ThreadPoolExecutor(workers) as pool:
        for _ in range(passes):
            begin = time.perf_counter()
            total = sum(pool.map(_read, parts))
            best_s = min(best_s, time.perf_counter() - begin)
            assert total > 0
    return data.nbytes / best_s
