"""SGLang's sampler, with one look at the distribution it is about to sample from."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.sampler import Sampler

from sgl_entropic.runtime.one_thread import one_thread
from sgl_entropic.runtime.sampled_distribution import (
    entropy_of_probabilities,
    rewrites_logits,
    sampled_entropy,
)
from sgl_entropic.runtime.telemetry import installed
from sgl_entropic.runtime.where_fast import fast_path


class EntropicSampler(Sampler):
    """Measures the entropy after penalties, grammar mask, logit bias, custom processors and temperature.

    Before top-k, top-p and min-p: those cut the tail of this distribution. A row that always takes the best token
    (temperature 0, or top-k 1) is sampled from a point mass, whose entropy is 0.
    """

    def _preprocess_logits(self, logits: torch.Tensor, sampling_info: Any) -> torch.Tensor:
        logits = super()._preprocess_logits(logits, sampling_info)
        telemetry = installed()
        if telemetry is not None and (sampling_info.is_all_greedy or rewrites_logits(sampling_info)):
            telemetry.sampled_entropy = sampled_entropy(logits, sampling_info)
        return logits

    def _sample_from_probs(self, probs: torch.Tensor, sampling_info: Any, *args: Any, **kwargs: Any) -> Any:
        telemetry = installed()
        if telemetry is not None and telemetry.sampled_entropy is None and telemetry.own is not None:
            # Only the temperature stands between the model's own logits and these probabilities.
            with one_thread(probs.device):
                telemetry.sampled_entropy = entropy_of_probabilities(probs, telemetry.own, sampling_info)
        simple = kwargs.get("simple_sampling_case", args[1] if len(args) > 1 else False)
        if simple and _drawn_by_cdf(probs, sampling_info):
            from sgl_entropic.runtime.cpu.sampling import sample  # noqa: PLC0415 -- the CPU platform only

            fast_path().cdf_sampled_rows += probs.shape[0]
            return sample(probs), None
        return super()._sample_from_probs(probs, sampling_info, *args, **kwargs)


def _drawn_by_cdf(probs: torch.Tensor, sampling_info: Any) -> bool:
    """Whether the CPU fast path draws from an uncut distribution: where no request brought a seed or asked for masks."""
    return (
        fast_path() is not None
        and probs.device.type == "cpu"
        and sampling_info.sampling_seed is None
        and sampling_info.sampling_mask_batch_indices is None
    )
