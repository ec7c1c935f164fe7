"""Exact entropy, varentropy and surprisal of whole rows of logits, with one exponential per entry.

With ``d = z - max z`` over the row::

    Z = sum exp(d)       E1 = sum exp(d) d / Z       E2 = sum exp(d) d^2 / Z
    entropy     ln Z - E1      = -sum p ln p
    varentropy  E2 - E1^2      = Var(-ln p) = dH / d(ln T), both of the tempered distribution
    surprisal   ln Z - d[x]    = -ln p[x]

Rows that are not ordinary (the float64 definition is ``sgl_entropic_kernels.reference``):

===================  =======================================================================================
row                  reading
===================  =======================================================================================
``-inf`` entry       an illegal token: probability 0, surprisal ``+inf``
one legal token      entropy 0, varentropy 0
k entries ``+inf``   the limit, uniform over those k: entropy ln k, varentropy 0, surprisal ln k;
                     surprisal ``+inf`` for the others
NaN anywhere         no distribution: ``valid`` is False and every number is 0;
                     likewise without any legal token, and for an empty vocabulary
===================  =======================================================================================

Nothing here waits for the device, depends on the data for its shapes, or writes to its inputs.
"""

from __future__ import annotations

import math
import threading
from typing import NamedTuple

import torch
from torch import Tensor

# Entries handled at once; two temporaries of this size live at a time. On a CPU they should stay in cache: of 256
# rows of 49152, each costs 0.08 ms in blocks of 2^20 entries and 0.23 ms in one block (one AVX-512 core). An
# accelerator wants few launches instead.
_BLOCK_ENTRIES_CPU = 1 << 20
_BLOCK_ENTRIES_ACCELERATOR = 1 << 25


class RowStatistics(NamedTuple):
    """Statistics of B rows, each a [B] tensor: float32, or float64 for float64 logits; ``valid`` is bool.

    The normaliser is kept in two parts because their sum loses the small one when logits are huge.
    """

    max_logit: Tensor
    """Largest logit (over the temperature); ``+inf`` for a row that contains ``+inf``."""
    log_partition: Tensor
    """ln sum exp(z - max_logit), from 0 to ln V."""
    entropy_nats: Tensor
    varentropy: Tensor
    """Variance of the surprisal, nats squared, never negative."""
    valid: Tensor
    """False where the row is no distribution; report such a reading as null."""

    @property
    def log_normalizer(self) -> Tensor:
        """``ln Z = ln sum exp(z)``, shape [B]."""
        return self.max_logit + self.log_partition


def row_statistics(logits: Tensor, temperature: Tensor | None = None) -> RowStatistics:
    """Return the statistics of each row of ``logits``.

    Args:
        logits: [B, V] float16, bfloat16, float32 or float64; read only. B and V may be 0.
        temperature: [B] or [B, 1]; the statistics are then those of ``logits / temperature``. 0 is the limit,
            uniform over the largest logits; a negative, infinite or NaN value makes its row invalid.

    Raises:
        ValueError: a wrong shape.
        TypeError: logits that are not floating point.
    """
    _require_rows(logits)
    rows, vocab_size = logits.shape
    scale = None if temperature is None else _column(temperature, rows, logits)
    if vocab_size == 0:
        return _no_distribution(logits)
    entries = _BLOCK_ENTRIES_CPU if logits.device.type == "cpu" else _BLOCK_ENTRIES_ACCELERATOR
    step = max(1, entries // vocab_size)
    if rows <= step:
        return _block_statistics(logits, scale)
    blocks = [
        _block_statistics(logits[at : at + step], None if scale is None else scale[at : at + step])
        for at in range(0, rows, step)
    ]
    return RowStatistics(*(torch.cat(column) for column in zip(*blocks, strict=True)))


def token_surprisal(logits: Tensor, statistics: RowStatistics, token_ids: Tensor) -> Tensor:
    """Return ``-ln p`` of one token per row, shape [B], in nats.

    ``statistics`` must be those of the same ``logits`` [B, V] without a temperature. ``token_ids`` [B] are
    integers; an id outside the vocabulary has probability 0, thus surprisal ``+inf`` like an illegal token.
    Rows that are no distribution read 0: look at ``statistics.valid``.
    """
    _require_rows(logits)
    vocab_size = logits.shape[1]
    if vocab_size == 0:
        return torch.zeros_like(statistics.log_partition)
    index = token_ids.to(torch.int64)
    taken = logits.gather(1, index.clamp(0, vocab_size - 1).unsqueeze(1)).squeeze(1)
    below = taken.to(_accumulation_dtype(logits)) - statistics.max_logit
    below.nan_to_num_(nan=0.0, neginf=-math.inf)  # NaN: +inf - +inf, a token in the limit set
    surprisal = statistics.log_partition - below
    surprisal.masked_fill_((index < 0) | (index >= vocab_size), math.inf)
    return surprisal.masked_fill_(~statistics.valid, 0.0)


def _block_statistics(logits: Tensor, scale: Tensor | None) -> RowStatistics:
    """Compute one block [b, V] whose temporaries fit; ``scale`` is the temperature [b, 1]."""
    entries = logits.to(_accumulation_dtype(logits))
    largest = entries.amax(dim=-1, keepdim=True)
    shifted, weights = _scratch(entries)
    torch.sub(entries, largest, out=shifted)
    max_logit = largest.squeeze(1)
    valid = max_logit > -math.inf  # False for NaN too, which amax hands on
    if scale is not None:
        shifted.mul_(scale.reciprocal())
        max_logit = (largest / scale).nan_to_num(nan=0.0, posinf=math.inf, neginf=-math.inf).squeeze(1)
        valid &= ((scale >= 0.0) & (scale < math.inf)).squeeze(1)
    # In a valid row NaN is +inf - +inf or 0 / 0, an entry of the limit set; -inf becomes the lowest finite
    # number, whose exponential is exactly 0 and, unlike -inf, stays 0 when multiplied.
    shifted.nan_to_num_(nan=0.0)
    torch.exp(shifted, out=weights)
    partition = weights.sum(dim=-1)
    first_moment = weights.mul_(shifted).sum(dim=-1).div_(partition)
    second_moment = weights.mul_(shifted).sum(dim=-1).div_(partition)
    log_partition = partition.log_()
    entropy_nats = (log_partition - first_moment).clamp_(min=0.0)
    varentropy = second_moment.sub_(first_moment.square()).clamp_(min=0.0)
    invalid = ~valid
    return RowStatistics(
        max_logit=max_logit.masked_fill(invalid, 0.0),
        log_partition=log_partition.masked_fill_(invalid, 0.0),
        entropy_nats=entropy_nats.masked_fill_(invalid, 0.0),
        varentropy=varentropy.masked_fill_(invalid, 0.0),
        valid=valid,
    )


_kept = threading.local()


def _scratch(entries: Tensor) -> tuple[Tensor, Tensor]:
    """Two buffers like ``entries``; on a CPU they are kept, since fresh pages cost more than the arithmetic."""
    if entries.device.type != "cpu" or type(entries) is not Tensor:
        return torch.empty_like(entries), torch.empty_like(entries)
    size = entries.numel()
    kept: Tensor | None = getattr(_kept, "buffers", None)
    if kept is None or kept.dtype != entries.dtype or kept.shape[1] < size:
        kept = _kept.buffers = torch.empty(2, size, dtype=entries.dtype)
    return kept[0, :size].view(entries.shape), kept[1, :size].view(entries.shape)


def _accumulation_dtype(logits: Tensor) -> torch.dtype:
    return torch.float64 if logits.dtype == torch.float64 else torch.float32


def _no_distribution(logits: Tensor) -> RowStatistics:
    """Statistics of rows over an empty vocabulary."""
    zeros = logits.new_zeros(4, logits.shape[0], dtype=_accumulation_dtype(logits))
    return RowStatistics(zeros[0], zeros[1], zeros[2], zeros[3], zeros[0].to(torch.bool))


def _require_rows(logits: Tensor) -> None:
    if logits.dim() != 2:
        raise ValueError(f"logits must have shape [rows, vocab], not {list(logits.shape)}")
    if not logits.dtype.is_floating_point:
        raise TypeError(f"logits must be floating point, not {logits.dtype}")


def _column(temperature: Tensor, rows: int, logits: Tensor) -> Tensor:
    """Return the temperature as [B, 1] in the dtype of the accumulation."""
    if temperature.shape not in ((rows,), (rows, 1)):
        shape = list(temperature.shape)
        raise ValueError(f"temperature must have shape [{rows}] or [{rows}, 1], not {shape}")
    return temperature.reshape(rows, 1).to(_accumulation_dtype(logits))
