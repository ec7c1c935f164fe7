"""SGLang's sampler, with one look at the distribution it is about to sample from."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.sampler import Sampler

from sgl_entropic.entropy.row_statistics import row_statistics
from sgl_entropic.runtime.telemetry import installed


class EntropicSampler(Sampler):
    """Measures the entropy after penalties, grammar mask, logit bias, custom processors and temperature.

    Before top-k, top-p and min-p: those cut the tail of this distribution. A row that always takes the best token
    (temperature 0, or top-k 1) is sampled from a point mass, whose entropy is 0.
    """

    def _preprocess_logits(self, logits: torch.Tensor, sampling_info: Any) -> torch.Tensor:
        logits = super()._preprocess_logits(logits, sampling_info)
        telemetry = installed()
        if telemetry is not None:
            telemetry.sampled_entropy = sampled_entropy(logits, sampling_info)
        return logits


def sampled_entropy(logits: torch.Tensor, sampling_info: Any) -> torch.Tensor:
    """Entropy in nats ``[B]`` of the distribution that ``logits`` [B, V] and ``sampling_info`` describe."""
    if sampling_info.is_all_greedy:
        return torch.zeros(logits.shape[0], dtype=torch.float32, device=logits.device)
    statistics = row_statistics(logits, temperature=sampling_info.temperatures)
    return torch.where(sampling_info.top_ks == 1, 0.0, statistics.entropy_nats)
