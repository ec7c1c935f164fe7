"""Statistics that the LM head computes in the same pass over the weights as the logits, for those who ask afterwards."""

from __future__ import annotations

from typing import Any

import torch

from sgl_entropic.entropy.row_statistics import RowStatistics
from sgl_entropic_kernels.native import STATISTICS, library


class HeadStatistics:
    """Remembers the statistics of the latest logits.

    Attributes:
        usable: whether the logits are what is sampled from: neither scaled nor capped afterwards.
        recalled: how often they answered in place of another pass over the logits.
    """

    def __init__(self, *, usable: bool) -> None:
        self.usable = usable
        self.recalled = 0
        # The tensor itself is kept, so that its memory cannot become another one's while it is compared.
        self._latest: tuple[torch.Tensor, torch.Tensor] | None = None

    def logits(self, hidden: torch.Tensor, weight: Any) -> torch.Tensor:
        """Logits [rows, vocab] of ``hidden`` [rows, k] float32."""
        logits = torch.empty(hidden.shape[0], weight.n, dtype=torch.float32)
        statistics = torch.empty(hidden.shape[0], len(STATISTICS), dtype=torch.float32)
        library().lm_head(hidden, weight, logits, statistics)
        self._latest = (logits, statistics) if self.usable else None
        return logits

    def recall(self, logits: torch.Tensor) -> RowStatistics | None:
        """Statistics of ``logits`` if they are the latest ones and their rows ordinary; else ``None``.

        Nothing may have written to them since: the telemetry asks before the sampler touches them.
        """
        statistics = self.recall_columns(logits)
        if statistics is None or not bool(torch.isfinite(statistics).all()):
            return None
        self.recalled += 1
        return _row_statistics(statistics)

    def recall_columns(self, logits: torch.Tensor, *, once: bool = True) -> torch.Tensor | None:
        """The same as ``[rows, 4]``; rows that are not ordinary are not finite. Not counted.

        Unless ``once``, they may be asked for again.
        """
        if self._latest is None:
            return None
        latest, statistics = self._latest
        if once:
            self._latest = None
        if logits.data_ptr() != latest.data_ptr() or logits.shape != latest.shape:
            return None
        return statistics

    def of_targets(
        self, hidden: torch.Tensor, weight: Any, targets: torch.Tensor
    ) -> tuple[RowStatistics, torch.Tensor] | None:
        """Statistics of each row and the logit of one target each, without keeping the logits.

        ``None`` when a row is not ordinary (NaN or infinity) or a target not in the vocabulary: the logits tell then.

        Args:
            hidden: ``[rows, k]`` float32.
            weight: the packed LM head.
            targets: ``[rows]`` int64.
        """
        if not self.usable or hidden.dtype != torch.float32 or not hidden.is_contiguous():
            return None
        if not bool(((targets >= 0) & (targets < weight.n)).all()):
            return None
        statistics = torch.empty(hidden.shape[0], len(STATISTICS), dtype=torch.float32)
        taken = torch.empty(hidden.shape[0], dtype=torch.float32)
        library().lm_head(hidden, weight, None, statistics, targets.contiguous(), taken)
        if not bool(torch.isfinite(statistics).all()):
            return None
        return _row_statistics(statistics), taken


def _row_statistics(columns: torch.Tensor) -> RowStatistics:
    max_logit, log_sum_exp, entropy_nats, varentropy = columns.unbind(1)
    return RowStatistics(
        max_logit=max_logit,
        log_partition=log_sum_exp - max_logit,
        entropy_nats=entropy_nats,
        varentropy=varentropy,
        valid=torch.ones_like(max_logit, dtype=torch.bool),
    )
