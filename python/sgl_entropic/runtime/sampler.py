"""SGLang's sampler, with one look at the distribution it is about to sample from."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.sampler import SGLANG_RETURN_ORIGINAL_LOGPROB, Sampler

from sgl_entropic.runtime.one_thread import one_thread
from sgl_entropic.runtime.sampled_distribution import (
    entropy_of_probabilities,
    rewrites_logits,
    sampled_entropy,
)
from sgl_entropic.runtime.steering import Step
from sgl_entropic.runtime.steering import installed as steering
from sgl_entropic.runtime.telemetry import installed
from sgl_entropic.runtime.where_fast import fast_path


class EntropicSampler(Sampler):
    """Measures the entropy after penalties, grammar mask, logit bias, custom processors and temperature.

    Before top-k, top-p and min-p: those cut the tail of this distribution. A row that always takes the best token
    (temperature 0, or top-k 1) is sampled from a point mass, whose entropy is 0.
    """

    def draws(self, logits: torch.Tensor, sampling_info: Any) -> bool:
        """Whether the CPU fast path draws from ``logits`` [B, V] and leaves them as they are."""
        fast = fast_path()
        return (
            fast is not None
            and not self.enable_deterministic
            and self.rl_on_policy_target is None
            and not sampling_info.has_watermark_candidates
            and fast.draws(logits, sampling_info)
        )

    def forward(
        self,
        logits_output: Any,
        sampling_info: Any,
        return_logprob: bool,  # noqa: FBT001 -- SGLang's signature
        top_logprobs_nums: Any,
        token_ids_logprobs: Any,
        positions: torch.Tensor,
        **kwargs: Any,
    ) -> Any:
        """SGLang's forward, or one call of the CPU fast path that draws and measures."""
        logits = logits_output.next_token_logits
        step = steered_step()
        if step is not None:
            sampling_info = step.own_copy(sampling_info)
        if not self.draws(logits, sampling_info):
            return super().forward(
                logits_output,
                sampling_info,
                return_logprob,
                top_logprobs_nums,
                token_ids_logprobs,
                positions,
                **kwargs,
            )
        telemetry = installed()
        logits = super()._preprocess_logits(logits, sampling_info)
        steering = None if step is None else step.fused(sampling_info)
        if step is not None and steering is None:
            step.steer(logits, sampling_info)
        own = None if telemetry is None else telemetry.own_columns
        measured = telemetry is not None or step is not None
        tokens, readings = fast_path().draw(
            logits,
            sampling_info,
            own,
            measured=measured,
            positions=positions,
            before=None if telemetry is None or steering is None else telemetry.columns_before,
            steering=steering,
        )
        if step is not None and steering is None:
            step.settle(readings[3], readings[4], readings[1])
        elif step is not None and return_logprob:
            step.show_temperatures(sampling_info)
        if telemetry is not None:
            telemetry.readings = readings
        if return_logprob:
            found = self.output_logprob_processor.compute_logprobs(
                _logprobs(logits, sampling_info), top_logprobs_nums, token_ids_logprobs, tokens
            )
            found.write_output_to(logits_output)
        return tokens

    def _preprocess_logits(self, logits: torch.Tensor, sampling_info: Any) -> torch.Tensor:
        logits = super()._preprocess_logits(logits, sampling_info)
        step = steered_step()
        # Once: SGLang comes here a second time for the log-probabilities of watermarked text.
        if step is not None and step.readings is None:
            step.steer(logits, sampling_info)
            step.settle_from_logits(logits, sampling_info)
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
        return super()._sample_from_probs(probs, sampling_info, *args, **kwargs)


def steered_step() -> Step | None:
    """The step that is being sampled, if a request in it is steered."""
    process = steering()
    return None if process is None else process.active()


def _logprobs(logits: torch.Tensor, sampling_info: Any) -> torch.Tensor:
    """Log-probabilities ``[B, V]`` as SGLang's own sampler gives them, by the same operations."""
    if sampling_info.is_all_greedy or SGLANG_RETURN_ORIGINAL_LOGPROB:
        return torch.log_softmax(logits, dim=-1)
    return torch.log(torch.softmax(logits / sampling_info.temperatures, dim=-1))
