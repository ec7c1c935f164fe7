"""Draws tokens and takes the readings of a step in one pass over the logits, which it leaves as they are.

SGLang's PyTorch sampler writes probabilities over the logits, draws an exponential for every entry of the vocabulary where
nothing is cut, and sorts it where top-k, top-p or min-p cut. The inverse of the cumulative distribution needs one uniform
number a row, and a cut only the entries that can survive it.
"""

from __future__ import annotations

from typing import Any

import torch

from sgl_entropic_kernels.native import READINGS, library


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


def draw(
    logits: torch.Tensor, sampling_info: Any, own: torch.Tensor | None = None, *, measured: bool = True
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Tokens ``[B]`` int32 and, if ``measured``, the readings ``[5, B]`` named by :data:`READINGS`.

    The cuts are SGLang's: top-k, then top-p of the whole distribution, then min-p of its largest probability, all after
    the temperature; a top-k of 1 takes the first of the largest logits.

    Args:
        logits: ``[B, V]`` float32.
        sampling_info: SGLang's sampling parameters of the batch.
        own: ``[B, 4]`` statistics of the logits, if they are at hand.
        measured: whether the readings are wanted.
    """
    rows = logits.shape[0]
    greedy = sampling_info.is_all_greedy
    uniforms = (torch.zeros if greedy else torch.rand)(rows, dtype=torch.float64)
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
    )
    return (tokens.long() if greedy else tokens), readings
