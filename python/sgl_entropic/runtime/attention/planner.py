"""Makes the plan of a decode step from the batch; one in each scheduler process that prunes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sgl_entropic.attention.contribution import contribution
from sgl_entropic.attention.pruning import Reading
from sgl_entropic.config.model import AttentionConfig
from sgl_entropic.runtime.attention.cost import ReadCost
from sgl_entropic.runtime.attention.request import RequestPruning, read_of
from sgl_entropic.runtime.attention.settings import default_policy
from sgl_entropic.runtime.attention.step_plan import StepPlan, published
from sgl_entropic.runtime.request_state import RequestState, state_of
from sgl_entropic.trace.counters import Counters

Floats = NDArray[np.float32]


@dataclass(slots=True)
class Planner:
    """Decides what the rows of a batch read.

    Attributes:
        config: the server's settings.
        surprisal_nats: ``[slots]`` of the tokens in the KV slots, NaN where unknown.
        req_to_token: ``[rows, context]`` SGLang's table of slots.
        counters: what was read.
        cost: of a token of context.
        on_gpu: whether the lists go to FlashInfer, or to the compiled kernels of the CPU platform.
    """

    config: AttentionConfig
    surprisal_nats: torch.Tensor
    req_to_token: torch.Tensor
    counters: Counters
    cost: ReadCost
    on_gpu: bool = False

    def state(self) -> dict[str, Any]:
        """For ``/server_info``: what was read and what was not."""
        context, read = self.counters.context_tokens, self.counters.read_tokens
        left_out = context - read
        return {
            "enabled": True,
            "default_policy": self.config.policy or default_policy(),
            "keep_ratio": read / context if context else None,
            "kv_bytes_per_token": self.cost.bytes_per_token,
            "kv_bytes_avoided": self.cost.bytes_avoided(left_out, self.counters.choosing_bytes),
            "flops_avoided": self.cost.flops_avoided(left_out),
        }

    def plan(self, batch: Any) -> StepPlan | None:
        """The plan of a decode batch; ``None`` where all rows read everything, or the step is not one of decoding."""
        if not batch.forward_mode.is_decode() or batch.seq_lens_cpu is None:
            return None
        lengths = batch.seq_lens_cpu.tolist()
        readings: list[Reading | None] = []
        requests: list[RequestPruning | None] = []
        rows = batch.req_pool_indices_cpu.tolist()
        # Behind the requests' own rows there may be further ones of their beams, which read all.
        for row, req, length in zip(rows, batch.reqs, lengths, strict=False):
            state = state_of(req)
            pruning = state.pruning
            requests.append(pruning)
            readings.append(None if pruning is None else self._read(row, state, pruning, req, length))
        beams = [None] * (len(lengths) - len(batch.reqs))
        readings += beams
        requests += beams
        plan = StepPlan(self.config.block_tokens, lengths, readings, requests)
        return plan if plan.prunes or plan.measures else None

    def _read(self, row: int, state: RequestState, pruning: RequestPruning, req: Any, length: int) -> Reading:
        output_index = length - len(req.origin_input_ids)

        def contributed(blocks: int) -> Floats:
            return self._contribution(row, state, pruning, req, blocks)

        spikes = pruning.policy.spikes
        # SGLang has lowered what was asked for to what the model's context holds.
        left = req.sampling_params.max_new_tokens - output_index
        reading = pruning.policy.step(output_index, length, state.entropy_at, contributed, left)
        self.counters.attention_spikes += pruning.policy.spikes - spikes
        self.counters.rescored_contexts += reading.rescored
        if reading.selection is not None and not self.config.share_generated_kv:
            _withhold(req, pruning)
        pruning.note(output_index, read_of(reading, length, pruning.policy.settings, self.cost))
        return reading

    def _contribution(
        self, row: int, state: RequestState, pruning: RequestPruning, req: Any, blocks: int
    ) -> Floats:
        prompt = pruning.prompt_surprisal_nats
        if prompt is None:
            # The one time that a GPU is waited for; what is generated has been read by the host already.
            slots = self.req_to_token[row, : len(req.origin_input_ids)].long()
            prompt = self.surprisal_nats[slots].float().cpu().numpy()
            pruning.prompt_surprisal_nats = prompt
        wanted = blocks * self.config.block_tokens
        generated = [reading.surprisal_nats for reading in state.readings[: max(0, wanted - len(prompt))]]
        # A tail that is read whole hides what the host does not know yet.
        known = np.full(wanted, np.nan, dtype=np.float32)
        both = np.concatenate((prompt[:wanted], np.array(generated, dtype=np.float32)))
        known[: len(both)] = both
        return contribution(pruning.policy.settings, known, pruning.mass)


_installed: Planner | None = None


def install(planner: Planner | None) -> None:
    """Make ``planner`` that of this process; ``None`` takes it away."""
    global _installed  # noqa: PLW0603 -- one scheduler a process
    _installed = planner


def installed() -> Planner | None:
    """The process's planner; ``None`` where attention is not pruned."""
    return _installed


@contextmanager
def pruned(batch: Any) -> Iterator[None]:
    """Around a forward pass of ``batch``: its plan is there for the attention backend, and what that measured is kept."""
    plan = None if _installed is None else _installed.plan(batch)
    if plan is None or _installed is None:
        yield
    elif _installed.on_gpu:
        from sgl_entropic.runtime.gpu import plan as gpu  # noqa: PLC0415 -- nothing of it on other platforms

        with gpu.published(gpu.GpuPlan.of(plan)) as step:
            yield
        if not step.used:
            plan.not_followed()
    else:
        with published(plan):
            yield


def _withhold(req: Any, pruning: RequestPruning) -> None:
    # From here on its keys and values are not those that a request which reads all would have. Its prompt's were
    # given to the tree after the prefill.
    if not pruning.marked and not req.skip_radix_cache_insert:
        pruning.marked = req.skip_radix_cache_insert = True


def share_again(req: Any) -> None:
    """``req`` is about to be computed from its beginning, and exactly: the prefix tree may have that."""
    pruning = state_of(req).pruning if _installed is not None else None
    if pruning is None:
        return
    if pruning.marked:
        pruning.marked = req.skip_radix_cache_insert = False
    pruning.restart(len(req.output_ids))
