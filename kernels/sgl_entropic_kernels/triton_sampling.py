"""The temperature that holds an entropy, its readings and the next temperature: one Triton kernel for a GPU.

With ``u = ln T``, ``H`` and ``V`` entropy and varentropy of ``softmax(z / T)``, ``e = H - target``::

    fixed    drawn at u;  u' = clip(u - gain e, lo, hi)
    newton   drawn at u;  u' = clip(u - gain e / max(V, 0.1), lo, hi)
    exact    drawn at the u in [lo, hi] where H(u) = target, or at the nearest bound; u' = u

The law, its tolerances and which rows stand still are those of ``temperature_control.py`` in the serving package, whose
tensor operations are dozens of launches for each sweep over the logits where this is one launch for all of them. Source
of the law: arXiv 2603.03310 with the stabilising sign. What a row means in float64: ``reference.one_row`` and
``reference_sampling.entropy_at``.

Importing this module needs Triton, which PyTorch brings on Linux; nothing else in the package imports it. What has run
so far is Triton's interpreter (``TRITON_INTERPRET=1``, set before Triton is imported) and its compiler, on no GPU.
"""

# The kernels. Their scalars are float32 unless said otherwise; a name in capitals is fixed at compilation.
#
# Launch geometry: one program for each row, grid (B,). All that a row needs are sums over it, so programs share nothing,
# a row alone has the bits of the row in a batch, and a search that is over for one row does not wait for another. A row
# split among programs would need all of them to meet after each of up to 17 sweeps, which one launch cannot promise. The
# price is a batch smaller than the GPU has processors, which leaves the others idle.
#
# A program reads its row in blocks of a power of two. 8192 entries by 16 warps are 16 a thread and with three sums 64
# registers, and up to 32 KiB under way: about what one processor has to ask for ahead to keep its share of the second
# level cache busy, where the row lies after the first sweep (a whole one, 512 KiB for 128 Ki tokens, fits in no
# processor's own memory). Each lane sums for itself over all blocks, and one tree adds the lanes: 8192 short sums lose
# less than a long one, and lanes meet once a sweep. The compiler takes 80 to 95 registers a thread (sm_80 to sm_100) and
# spills none. The sizes are reasoned, not measured.

from __future__ import annotations

from typing import NamedTuple

import torch
import triton  # type: ignore[import-untyped]  # ships no types
import triton.language as tl  # type: ignore[import-untyped]  # likewise
from torch import Tensor

FIXED, NEWTON, EXACT = range(3)
"""Values of ``mode``."""

STEPS = 14
"""Temperatures that the search of mode exact tries: seven suffice for rows of a language model, the worst known take eleven."""

_LARGEST_BLOCK = 8192
_ENTRIES_A_THREAD = 16
_WARP = 32

# Those of temperature_control.py, which these kernels may not import.
_NEWTON = tl.constexpr(NEWTON)
_EXACT = tl.constexpr(EXACT)
_FORCED_VARENTROPY = tl.constexpr(0.01)
_NEWTON_VARENTROPY_FLOOR = tl.constexpr(0.1)
_SOLVE_TOLERANCE_NATS = tl.constexpr(1e-3)
_SMALLEST_SLOPE = tl.constexpr(1e-6)
_NO_WEIGHT = tl.constexpr(-120.0)  # exp of it is 0 in float32, and products with it are finite
_SMALLEST_SCALE = tl.constexpr(1e-30)  # 1 / T is never 0 or infinite: -inf times 0 and 0 times inf are NaN
_LARGEST_SCALE = tl.constexpr(3.4028234663852886e38)
_INF = tl.constexpr(float("inf"))

_COLUMNS = {
    "log_temperature": torch.float32,
    "target_nats": torch.float32,
    "gain": torch.float32,
    "mode": torch.int32,
    "min_log_temperature": torch.float32,
    "max_log_temperature": torch.float32,
    "controlled": torch.bool,
}


class Step(NamedTuple):
    """What one step says of B rows; every field is a [B] tensor, float32 but for ``saturated``."""

    used_log_temperature: Tensor
    """``ln T`` to draw this token at."""
    entropy_nats: Tensor
    """Of ``softmax(z / T)`` at that temperature; 0 for a row that is no distribution."""
    varentropy: Tensor
    """Likewise, nats squared."""
    next_log_temperature: Tensor
    """``ln T`` of the next token; in mode exact the one used."""
    saturated: Tensor
    """bool; True where the target of mode exact lies outside what [min, max] can reach, and the nearest bound is used."""


def step(  # noqa: PLR0913, PLR0917 -- one tensor for each thing that a row may ask for
    logits: Tensor,
    log_temperature: Tensor,
    target_nats: Tensor,
    gain: Tensor,
    mode: Tensor,
    min_log_temperature: Tensor,
    max_log_temperature: Tensor,
    controlled: Tensor,
    steps: int = STEPS,
) -> Step:
    """Return the temperatures of this token and of the next, and the readings of all rows: one launch, nothing waited for.

    ``log_temperature`` is handed on bit for bit, in ``used`` unless mode exact finds another, and in ``next`` unless one
    of the laws moves it: where ``controlled`` is False; for a row that is no distribution (NaN, no legal token); for a
    greedy row (``-inf``); for a target that is not finite. Mode exact also keeps it where the whole range changes the
    entropy by less than 1e-3 nats (one legal token, all equal): give it the request's own, not the last one used, and
    the row carries no history. The laws also keep it where the row before any temperature is forced (varentropy below
    0.01).

    Args:
        logits: [B, V] float32, float16 or bfloat16, before any temperature; rows may lie apart. ``-inf`` is an illegal
            token; entries at ``+inf`` share all probability.
        log_temperature: [B] float32, ``ln T`` of this token before mode exact has its say.
        target_nats: [B] float32, entropy to hold.
        gain: [B] float32, ``u`` per nat of error (fixed), or share of Newton's step (newton); unused by exact.
        mode: [B] int32, FIXED, NEWTON or EXACT.
        min_log_temperature: [B] float32, finite and not above the largest where ``controlled``.
        max_log_temperature: [B] float32.
        controlled: [B] bool; False leaves the row to its own temperature.
        steps: temperatures that mode exact tries between its bounds. Always so many, so that the time of a step depends
            on which rows search, not on how hard they find it.

    Raises:
        TypeError: a dtype or layout other than these; nothing is converted.
        ValueError: sizes that do not match, no column, another device, or no step.
    """
    columns = (log_temperature, target_nats, gain, mode, min_log_temperature, max_log_temperature, controlled)
    _check(logits, dict(zip(_COLUMNS, columns, strict=True)), steps)
    rows, vocab_size = logits.shape
    numbers = torch.empty((4, rows), dtype=torch.float32, device=logits.device)
    saturated = torch.empty_like(controlled)
    used, entropy_nats, varentropy, after = numbers.unbind()
    if rows:
        block = min(triton.next_power_of_2(vocab_size), _LARGEST_BLOCK)
        # Triton launches on the current device, whatever the tensors are on; on a CPU this does nothing.
        with torch.cuda.device_of(logits):  # type: ignore[no-untyped-call]
            _step_kernel[(rows,)](
                logits,
                logits.stride(0),
                vocab_size,
                *columns,
                steps,
                numbers,
                saturated,
                BLOCK=block,
                num_warps=max(1, block // (_ENTRIES_A_THREAD * _WARP)),
            )
    return Step(used, entropy_nats, varentropy, after, saturated)


def _check(logits: Tensor, columns: dict[str, Tensor], steps: int) -> None:
    if logits.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise TypeError(f"logits must be float32, float16 or bfloat16, not {logits.dtype}")
    if logits.dim() != 2 or logits.shape[1] == 0:
        raise ValueError(f"logits must be [B, V] with at least one column, not {list(logits.shape)}")
    if logits.stride(1) != 1:
        raise TypeError(f"entries of a row of logits must lie side by side, not {logits.stride(1)} apart")
    if steps < 1:
        raise ValueError(f"steps must be at least 1, not {steps}")
    for name, column in columns.items():
        if column.dtype != _COLUMNS[name]:
            raise TypeError(f"{name} must be {_COLUMNS[name]}, not {column.dtype}")
        if column.shape != logits.shape[:1]:
            raise ValueError(f"{name} must be [B] = {list(logits.shape[:1])}, not {list(column.shape)}")
        if not column.is_contiguous():
            raise TypeError(f"{name} must be contiguous")
        if column.device != logits.device:
            raise ValueError(f"{name} must be on {logits.device} like logits, not on {column.device}")


@triton.jit  # type: ignore[untyped-decorator]  # Triton ships no types
def _step_kernel(  # noqa: PLR0913, PLR0917 -- pointers, one for each tensor
    logits: tl.tensor,
    row_stride: tl.tensor,
    vocab_size: tl.tensor,
    log_temperatures: tl.tensor,
    targets: tl.tensor,
    gains: tl.tensor,
    modes: tl.tensor,
    lowest: tl.tensor,
    highest: tl.tensor,
    controls: tl.tensor,
    steps: tl.tensor,
    numbers: tl.tensor,
    saturations: tl.tensor,
    BLOCK: tl.constexpr,  # noqa: N803
) -> None:
    """One row; ``numbers`` is [4, B] in the order of ``Step``."""
    r = tl.program_id(0)
    rows = tl.num_programs(0)
    row = logits + r.to(tl.int64) * row_stride  # entries of a batch may be more than 2^31
    start, target = tl.load(log_temperatures + r), tl.load(targets + r)
    low, high = tl.load(lowest + r), tl.load(highest + r)
    mode = tl.load(modes + r)

    largest, valid = _largest(row, vocab_size, BLOCK)
    steered = tl.load(controls + r) & valid
    used = start
    saturated = steered & False
    # Branches are of the whole program: a row that does not search costs one sweep, not seventeen.
    if steered & (mode == _EXACT) & (tl.abs(target) < _INF):
        used, saturated = _solve(row, vocab_size, largest, start, target, low, high, steps, BLOCK)
    entropy_nats, varentropy = _readings(row, vocab_size, largest, used, BLOCK)

    after = used
    if steered & (mode != _EXACT):
        # Told by the row itself: a temperature that is low enough makes every row look forced, and would stay there.
        _, own_varentropy = _readings(row, vocab_size, largest, tl.full([], 0.0, tl.float32), BLOCK)
        slope = tl.where(mode == _NEWTON, tl.maximum(varentropy, _NEWTON_VARENTROPY_FLOOR), 1.0)
        proposed = used - tl.load(gains + r) * (entropy_nats - target) / slope
        moves = (own_varentropy >= _FORCED_VARENTROPY) & (tl.abs(proposed) < _INF)  # False for NaN
        after = tl.where(moves, tl.minimum(tl.maximum(proposed, low), high), used)

    tl.store(numbers + r, used)
    tl.store(numbers + rows + r, tl.where(valid, entropy_nats, 0.0))
    tl.store(numbers + 2 * rows + r, tl.where(valid, varentropy, 0.0))
    tl.store(numbers + 3 * rows + r, after)
    tl.store(saturations + r, saturated)


@triton.jit  # type: ignore[untyped-decorator]  # Triton ships no types
def _largest(row: tl.tensor, vocab_size: tl.tensor, BLOCK: tl.constexpr) -> tl.tensor:  # noqa: N803
    """The largest logit, and whether the row is a distribution. A maximum on a GPU passes over NaN: it is looked for."""
    lanes = tl.arange(0, BLOCK)
    largest = tl.full([BLOCK], float("-inf"), tl.float32)
    ordered = tl.full([BLOCK], 1, tl.int32)
    for at in range(0, vocab_size, BLOCK):
        z = tl.load(row + at + lanes, mask=at + lanes < vocab_size, other=float("-inf")).to(tl.float32)
        ordered = tl.where(z <= _INF, ordered, 0)
        largest = tl.maximum(largest, z)
    top = tl.max(largest, axis=0)
    return top, (tl.min(ordered, axis=0) == 1) & (top > float("-inf"))


@triton.jit  # type: ignore[untyped-decorator]  # Triton ships no types
def _readings(
    row: tl.tensor,
    vocab_size: tl.tensor,
    largest: tl.tensor,
    log_temperature: tl.tensor,
    BLOCK: tl.constexpr,  # noqa: N803
) -> tl.tensor:
    """Entropy and varentropy at a temperature: one sweep. Meaningless, and harmless, for a row that is no distribution."""
    scale = tl.exp(-log_temperature)
    scale = tl.where(scale <= _INF, scale, 1.0)  # NaN
    scale = tl.minimum(tl.maximum(scale, _SMALLEST_SCALE), _LARGEST_SCALE)
    lanes = tl.arange(0, BLOCK)
    partition = tl.zeros([BLOCK], tl.float32)
    first = tl.zeros([BLOCK], tl.float32)
    second = tl.zeros([BLOCK], tl.float32)
    for at in range(0, vocab_size, BLOCK):
        z = tl.load(row + at + lanes, mask=at + lanes < vocab_size, other=float("-inf")).to(tl.float32)
        below = tl.where(z == largest, 0.0, z - largest)  # not inf - inf
        scaled = tl.maximum(below * scale, _NO_WEIGHT)
        weight = tl.exp(scaled)
        partition += weight
        first += weight * scaled
        second += weight * scaled * scaled
    mass = tl.sum(partition, axis=0)
    mean = tl.sum(first, axis=0) / mass
    varentropy = tl.sum(second, axis=0) / mass - mean * mean
    return tl.maximum(tl.log(mass) - mean, 0.0), tl.maximum(varentropy, 0.0)


@triton.jit  # type: ignore[untyped-decorator]  # Triton ships no types
def _solve(  # noqa: PLR0913, PLR0917 -- what one row asks for
    row: tl.tensor,
    vocab_size: tl.tensor,
    largest: tl.tensor,
    start: tl.tensor,
    target: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    steps: tl.tensor,
    BLOCK: tl.constexpr,  # noqa: N803
) -> tl.tensor:
    """``ln T`` at which the entropy is the target's, and whether the nearest bound had to do.

    Newton's method between brackets: a step that leaves them or does not halve the error is replaced by a bisection.
    """
    low_nats, _low_slope = _readings(row, vocab_size, largest, low, BLOCK)
    high_nats, _high_slope = _readings(row, vocab_size, largest, high, BLOCK)
    steerable = high_nats - low_nats > _SOLVE_TOLERANCE_NATS
    used = tl.where(target <= low_nats, low, high)
    used = tl.where(steerable, used, start)
    saturated = steerable & ((target < low_nats) | (target > high_nats))
    if steerable & (target > low_nats) & (target < high_nats):
        at = (low + high) * 0.5
        best_error = tl.full([], float("inf"), tl.float32)
        last_error = best_error
        for _step in range(steps):
            entropy_nats, slope = _readings(row, vocab_size, largest, at, BLOCK)
            residual = entropy_nats - target
            error = tl.abs(residual)
            used = tl.where(error < best_error, at, used)
            best_error = tl.minimum(best_error, error)
            low = tl.where(residual < 0.0, at, low)
            high = tl.where(residual < 0.0, high, at)
            newton = at - residual / tl.maximum(slope, _SMALLEST_SLOPE)
            trusted = (newton > low) & (newton < high) & (error <= last_error * 0.5)
            last_error = error
            at = tl.where(trusted, newton, (low + high) * 0.5)
    return used, saturated
