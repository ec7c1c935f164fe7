"""Hooks on the worker that measure: around one forward pass, the LM head, and the sampling step.

Each is inert (calls SGLang's own function and nothing else) while no telemetry is installed, which covers processes
without a scheduler, warm-up and graph capture.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from sgl_entropic.runtime import steering
from sgl_entropic.runtime.attention.planner import pruned, share_again
from sgl_entropic.runtime.auxiliary import DeviceReadings
from sgl_entropic.runtime.gravity import meter as gravity
from sgl_entropic.runtime.prefix_boundary import give_back_boundary
from sgl_entropic.runtime.seeds import seeds_of
from sgl_entropic.runtime.step_context import StepContext
from sgl_entropic.runtime.telemetry import installed
from sgl_entropic.runtime.where_fast import fast_path

_CONTEXT = "_sgl_entropic_context"
_STEERED = "_sgl_entropic_steered"
_SEEDS = "_sgl_entropic_seeds"


def around_forward_batch_generation(
    original: Callable[..., Any], worker: Any, batch: Any, *args: Any, **kwargs: Any
) -> Any:
    """Around ``TpModelWorker.forward_batch_generation``: host facts for the hooks below; prompts that sample nothing."""
    telemetry, process = installed(), steering.installed()
    if batch is None:
        return original(worker, batch, *args, **kwargs)
    fast = fast_path()
    if fast is not None:
        fast.pending_seeds = seeds_of(batch)
    if process is not None:
        process.pending = steering.read_step(batch)
    if telemetry is None:
        return original(worker, batch, *args, **kwargs)
    with telemetry.step(batch), pruned(batch):
        context = telemetry.context
        result = original(worker, batch, *args, **kwargs)
    if batch.is_prefill_only and result.logits_output is not None:
        # Nothing is sampled, so the hook on sampling did not run.
        telemetry.settle_unsampled(batch, result.logits_output.next_token_logits, context)
        prompts = telemetry.prompt_readings(batch, context)
        if prompts:
            _append(result.logits_output, DeviceReadings(telemetry.recorder, None, prompts))
    return result


def around_forward(
    original: Callable[..., Any], runner: Any, forward_batch: Any, *args: Any, **kwargs: Any
) -> Any:
    """Around ``ModelRunner.forward``: the batch carries its facts along, since sampling may be delayed (grammars)."""
    telemetry, process = installed(), steering.installed()
    fast = fast_path()
    if fast is not None:
        setattr(forward_batch, _SEEDS, fast.pending_seeds)
        fast.pending_seeds = None
    if process is not None and process.pending is not None:
        setattr(forward_batch, _STEERED, process.pending)
        process.pending = None
    if telemetry is None or telemetry.context is None:
        return original(runner, forward_batch, *args, **kwargs)
    setattr(forward_batch, _CONTEXT, telemetry.context)
    result = original(runner, forward_batch, *args, **kwargs)
    telemetry.forget_unscored(forward_batch)
    return result


def around_logits_processor(
    original: Callable[..., Any],
    processor: Any,
    input_ids: Any,
    hidden_states: Any,
    lm_head: Any,
    metadata: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Around ``LogitsProcessor.forward``: surprisal of newly computed prompt tokens."""
    telemetry = installed()
    if telemetry is not None and telemetry.context is not None and hasattr(metadata, "out_cache_loc"):
        from sglang.srt.layers.logits_processor import LogitsMetadata  # noqa: PLC0415 -- loaded by now

        logits_metadata = LogitsMetadata.from_forward_batch(metadata)

        def logits_of(rows: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = processor._get_logits(
                rows, lm_head, logits_metadata, use_logits_buffer=False
            )
            return logits

        # A packed LM head computes the statistics without writing the logits out.
        statistics_of = getattr(getattr(lm_head, "quant_method", None), "target_statistics", None)
        telemetry.score_prompt(metadata, hidden_states, logits_of, statistics_of)
    return original(processor, input_ids, hidden_states, lm_head, metadata, *args, **kwargs)


def around_sample(
    original: Callable[..., Any],
    runner: Any,
    logits_output: Any,
    forward_batch: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Around ``ModelRunner.sample``: the model's own distribution before, the readings of the sampled tokens after."""
    process, fast = steering.installed(), fast_path()
    if fast is not None:
        fast.seeds = getattr(forward_batch, _SEEDS, None)
    facts = getattr(forward_batch, _STEERED, None)
    logits = logits_output.next_token_logits
    if process is None or facts is None or logits is None or logits.shape[0] == 0:
        return _measured(original, runner, logits_output, forward_batch, *args, **kwargs)
    with process.step(facts, forward_batch) as step:
        token_ids = _measured(original, runner, logits_output, forward_batch, *args, **kwargs)
    if step.readings is not None:
        from sglang.srt.managers.auxiliary_output import append_auxiliary_output  # noqa: PLC0415 -- loaded by now

        # In front: the trace tells of a step what its request has just been given.
        logits_output.auxiliary_device_output = append_auxiliary_output(
            steering.SteeringReadings(process, facts, step.readings), logits_output.auxiliary_device_output
        )
    return token_ids


def _measured(
    original: Callable[..., Any],
    runner: Any,
    logits_output: Any,
    forward_batch: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    telemetry = installed()
    logits = logits_output.next_token_logits
    if telemetry is None or logits is None or logits.shape[0] == 0:
        return original(runner, logits_output, forward_batch, *args, **kwargs)
    info = forward_batch.sampling_info
    measured = runner.sampler.draws(logits, info)
    telemetry.before_sampling(logits, info, measured=measured)
    token_ids = original(runner, logits_output, forward_batch, *args, **kwargs)
    context: StepContext | None = getattr(forward_batch, _CONTEXT, None)
    readings = telemetry.after_sampling(forward_batch, token_ids, context)
    meter = gravity.installed()
    if meter is not None:
        scores = meter.score(logits_output.hidden_states, forward_batch, len(token_ids), context)
        readings = replace(readings, gravity=scores)
    _append(logits_output, readings)
    return token_ids


def around_init_next_round_input(
    original: Callable[..., Any], req: Any, tree_cache: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """Around ``Req.init_next_round_input``: give back one page of a prefix hit, see :mod:`.prefix_boundary`."""
    result = original(req, tree_cache, *args, **kwargs)
    telemetry = installed()
    if telemetry is not None and telemetry.store is not None and tree_cache is not None:
        give_back_boundary(req, tree_cache)
    # A request that was retracted is computed anew, and exactly.
    share_again(req)
    return result


def _append(logits_output: Any, readings: DeviceReadings) -> None:
    from sglang.srt.managers.auxiliary_output import append_auxiliary_output  # noqa: PLC0415 -- loaded by now

    logits_output.auxiliary_device_output = append_auxiliary_output(
        logits_output.auxiliary_device_output, readings
    )
