"""Draws tokens and takes the readings of a step in one pass over the logits, which it leaves as they are.

SGLang's PyTorch sampler writes probabilities over the logits, draws an exponential for every entry of the vocabulary where
nothing is cut, and sorts it where top-k, top-p or min-p cut. The inverse of the cumulative distribution needs one uniform
number a row, and a cut only the entries that can survive it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from sgl_entropic.runtime.seeds import overwrite
from sgl_entropic.sampling import temperature_control
from sgl_entropic.sampling.temperature_control import ControlRows, Solution
from sgl_entropic_kernels.native import READINGS, library


class Steering(NamedTuple):
    """Rows whose temperature follows a target entropy, for :func:`draw`.

    Attributes:
        controls: ``[5, B]`` float32: target in nats (NaN: the one in ``state``), gain, mode (-1 for a row that is not
            steered, else a code of ``temperature_control``), and the ends of ln T relative to the row's own.
        places: ``[B]`` int64, the rows' places in ``state``.
        state: ``[2, places]`` float32, ln T of each request's next token, and the target that its prompt gave.
        steered: ``[4, B]`` float32 out: ln T of the draw and of the next token, whether the target was out of reach, the
            target.
    """

    controls: torch.Tensor
    places: torch.Tensor
    state: torch.Tensor
    steered: torch.Tensor


def drawable(logits: torch.Tensor, sampling_info: Any) -> bool:
    """Whether :func:`draw` does what this batch asks for: no seed, no sampling mask."""
    return (
        logits.device.type == "cpu"
        and logits.dtype == torch.float32
        and logits.is_contiguous()
        and logits.shape[1] > 0
        and sampling_info.sampling_seed is None
        and sampling_info.sampling_mask_batch_indices is None
    )


def solve_log_temperature(
    logits: torch.Tensor, rows: ControlRows, start_log_temperature: torch.Tensor
) -> Solution:
    """``temperature_control.solve_log_temperature`` by the compiled kernel; other dtypes and layouts are left to that one.

    Every row is looked at; those of another mode or not controlled get the readings at their start.
    """
    if logits.dtype != torch.float32 or not logits.is_contiguous() or logits.device.type != "cpu":
        return temperature_control.solve_log_temperature(logits, rows, start_log_temperature)
    asked = rows.controlled & (rows.mode == temperature_control.EXACT) & rows.target_nats.isfinite()
    start = start_log_temperature.float()
    lowest = torch.where(asked, rows.min_log_temperature, start)
    highest = torch.where(asked, rows.max_log_temperature, start)
    target = torch.where(asked, rows.target_nats, 0.0)
    results = torch.empty(3, logits.shape[0])
    library().solve_temperature(logits, target, start, lowest, highest, results)
    log_temperature, entropy_nats, varentropy = results
    missed = (entropy_nats - target).abs() > temperature_control.SOLVE_TOLERANCE_NATS
    return Solution(
        log_temperature=torch.where(
            asked & log_temperature.isfinite(), log_temperature, start_log_temperature
        ),
        entropy_nats=entropy_nats.nan_to_num(nan=0.0),
        varentropy=varentropy.nan_to_num(nan=0.0),
        saturated=asked & missed & ((log_temperature <= lowest) | (log_temperature >= highest)),
    )


def draw(  # noqa: PLR0913 -- the columns of one batch, all by name
    logits: torch.Tensor,
    sampling_info: Any,
    own: torch.Tensor | None = None,
    *,
    measured: bool = True,
    seeds: Sequence[int | None] | None = None,
    positions: torch.Tensor | None = None,
    before: torch.Tensor | None = None,
    steering: Steering | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Tokens ``[B]`` int32 and, if ``measured``, the readings ``[5, B]`` named by :data:`READINGS`.

    The cuts are SGLang's: top-k, then top-p of the whole distribution, then min-p of its largest probability, all after
    the temperature; a top-k of 1 takes the first of the largest logits.

    Args:
        logits: ``[B, V]`` float32.
        sampling_info: SGLang's sampling parameters of the batch.
        own: ``[B, 4]`` statistics of the logits, if they are at hand.
        measured: whether the readings are wanted.
        seeds: of the rows, ``None`` for one without.
        positions: ``[B]``, of the last known tokens; needed with ``seeds``.
        before: ``[B, 4]`` statistics of the logits before penalties and masks, for a batch that has such and so no ``own``: a
            row without them has its temperature searched for by the same steps as in a batch without them.
        steering: how the temperatures follow a target entropy; its ``state`` and ``steered`` are written. Needs
            ``measured``.
    """
    rows = logits.shape[0]
    greedy = sampling_info.is_all_greedy
    uniforms = (torch.zeros if greedy else torch.rand)(rows, dtype=torch.float64)
    if seeds is not None and not greedy:
        overwrite(uniforms, seeds, positions)
    tokens = torch.empty(rows, dtype=torch.int32)
    readings = torch.empty(len(READINGS), rows) if measured else None
    library().draw(
        logits,
        sampling_info.temperatures.view(-1),
        sampling_info.top_ks,
        sampling_info.top_ps,
        sampling_info.min_ps,
        uniforms,
        tokens,
        readings,
        own,
        *(steering or (None,) * 4),
        before,
    )
    return (tokens.long() if greedy else tokens), readings
