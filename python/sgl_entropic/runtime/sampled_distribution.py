"""Entropy of the distribution that is really sampled from: after penalties, masks, bias and temperature."""

from __future__ import annotations

from typing import Any

import torch

from sgl_entropic.entropy.row_statistics import RowStatistics, row_statistics


def rewrites_logits(sampling_info: Any) -> bool:
    """Whether anything but the temperature changes the logits of this batch before sampling."""
    orchestrator = sampling_info.penalizer_orchestrator
    return bool(
        sampling_info.grammars is not None
        or sampling_info.logit_bias is not None
        or sampling_info.acc_additive_penalties is not None
        or sampling_info.acc_scaling_penalties is not None
        or (orchestrator and orchestrator.is_required)
        or sampling_info.has_custom_logit_processor
        or sampling_info.has_watermark_candidates
    )


def entropy_of_probabilities(
    probs: torch.Tensor, own: tuple[torch.Tensor, RowStatistics], sampling_info: Any
) -> torch.Tensor:
    """Entropy in nats ``[B]`` of ``probs = softmax(logits / T)``, without another exponential or logarithm per entry.

    ``own`` holds ``d = logits - max logits`` and their statistics. With ``ln p = d / T + ln max p`` the entropy is
    ``-ln max p - sum p d / T``. Rows with infinite logits come out as NaN.
    """
    relative, _ = own
    moment = torch.linalg.vecdot(probs, relative.to(probs.dtype))
    entropy = -(probs.amax(dim=-1).log() + moment / sampling_info.temperatures.view(-1))
    return torch.where(sampling_info.top_ks == 1, 0.0, entropy.clamp(min=0.0))


def sampled_entropy(logits: torch.Tensor, sampling_info: Any) -> torch.Tensor:
    """Entropy in nats ``[B]`` of the distribution that ``logits`` [B, V] and ``sampling_info`` describe."""
    if sampling_info.is_all_greedy:
        return torch.zeros(logits.shape[0], dtype=torch.float32, device=logits.device)
    statistics = row_statistics(logits, temperature=sampling_info.temperatures)
    return torch.where(sampling_info.top_ks == 1, 0.0, statistics.entropy_nats)
