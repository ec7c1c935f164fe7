"""Seeds of single requests: a token's random number is a function of the seed and the token's place, and of nothing else.

Stock SGLang looks at ``sampling_seed`` (``seed`` on the OpenAI routes) under ``--enable-deterministic-inference`` only. The
CPU fast path draws by inverting the cumulative distribution, so that one number decides a token, and that number can come
from the request: its text is then the same alone, among others and after a retraction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_MASK = (1 << 64) - 1


def seeds_of(batch: Any) -> tuple[int | None, ...] | None:
    """The seeds of a ``ScheduleBatch``, aligned with its requests; ``None`` where no request has one.

    The choices of a request with ``n`` above 1 would all be alike, so its seed is left aside.
    """
    seeds = tuple(
        params.sampling_seed if params.n == 1 else None
        for params in (req.sampling_params for req in batch.reqs)
    )
    return seeds if any(seed is not None for seed in seeds) else None


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) for the token that follows ``position``; SplitMix64 (Steele, Lea and Flood, 2014)."""
    return (_mix(_mix(seed & _MASK) + (position + 1) * 0x9E3779B97F4A7C15) >> 11) * 2.0**-53


def overwrite(uniforms: Any, seeds: Sequence[int | None], positions: Any) -> None:
    """Put the numbers of seeded rows into ``uniforms`` [B] float64; ``positions`` [B] are of the last known tokens."""
    places = positions.tolist()
    for row, seed in enumerate(seeds):
        if seed is not None:
            uniforms[row] = uniform(seed, places[row])


def _mix(value: int) -> int:
    value &= _MASK
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)
