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
from sgl_entropic.runtime.attention.step_plan import StepPlan, publish
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
    """

    config: AttentionConfig
    surprisal_nats: torch.Tensor
    req_to_token: torch.Tensor
    counters: Counters
    cost: ReadCost

    def state(self) -> dict[str, Any]:
        """For ``/server_info``: what was read and what was not."""
        context, read = self.counters.context_tokens, self.counters.read_tokens
        left_out, scored = context - read, self.counters.scored_blocks
        return {
            "enabled": True,
            "default_policy": self.config.policy or default_policy(),
            "keep_ratio": read / context if context else None,
            "kv_bytes_per_token": self.cost.bytes_per_token,
            "kv_bytes_avoided": self.cost.bytes_avoided(left_out, scored),
            "flops_avoided": self.cost.flops_avoided(left_out),
        }

    def plan(self, batch: Any) -> StepPlan | None:
        """The plan of a decode batch; ``None`` where all rows read everything, or the step is not one of decoding."""
        if not batch.forward_mode.is_decode() or batch.seq_lens_cpu is None:
            return None
        lengths = batch.seq_lens_cpu.tolist()
        readings: list[Reading | None] = []
        requests: list[RequestPruning | None] = []
        for row, (req, length) in enumerate(zip(batch.reqs, lengths, strict=True)):
            state = state_of(req)
            pruning = state.pruning
            requests.append(pruning)
            readings.append(None if pruning is None else self._read(batch, row, state, pruning, req, length))
        plan = StepPlan(self.config.block_tokens, lengths, readings, requests)
        return plan if plan.prunes or plan.measures else None

    def _read(
        self, batch: Any, row: int, state: RequestState, pruning: RequestPruning, req: Any, length: int
    ) -> Reading:
        output_index = length - len(req.origin_input_ids)

        def contributed(blocks: int) -> Floats:
            return self._contribution(batch, row, pruning, blocks)

        spikes = pruning.policy.spikes
        reading = pruning.policy.step(output_index, length, state.entropy_at, contributed)
        self.counters.attention_spikes += pruning.policy.spikes - spikes
        self.counters.rescored_contexts += reading.rescored
        if reading.selection is not None and not self.config.share_generated_kv:
            _withhold(req, pruning)
        pruning.note(output_index, read_of(reading, length, pruning.policy.settings))
        return reading

    def _contribution(self, batch: Any, row: int, pruning: RequestPruning, blocks: int) -> Floats:
        block = self.config.block_tokens
        slots = self.req_to_token[batch.req_pool_indices_cpu[row], : blocks * block].long()
        surprisal = self.surprisal_nats[slots].float().cpu().numpy()
        return contribution(pruning.policy.settings, surprisal, pruning.mass)


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
    if plan is None:
        yield
        return
    publish(plan)
    try:
        yield
    finally:
        publish(None)
    plan.deliver()


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
    pruning.keys = None
