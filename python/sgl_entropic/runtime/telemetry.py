"""Measures every sampling step on the device and hands the numbers to the scheduler without an extra synchronisation.

The functions here run in the scheduler process on SGLang's forward stream, in stream order, so per-slot and per-request
state on the device needs no lock and has no lag. What the host learns travels in SGLang's own auxiliary output.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch

from sgl_entropic.config import EntropicConfig
from sgl_entropic.entropy.row_statistics import RowStatistics, row_statistics, token_surprisal
from sgl_entropic.runtime.auxiliary import DeviceReadings
from sgl_entropic.runtime.one_thread import one_thread
from sgl_entropic.runtime.prompt_scoring import ExtendLayout, TargetStatistics, first_tokens, score
from sgl_entropic.runtime.sampled_distribution import rewrites_logits, sampled_entropy
from sgl_entropic.runtime.slots import SlotStore
from sgl_entropic.runtime.step_context import StepContext, read_rows
from sgl_entropic.trace.counters import Counters

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sgl_entropic.runtime.recorder import Recorder


# Stands for -inf in a copy of the logits; a surprisal of this size is infinite.
_ILLEGAL_LOGIT = -1e30


@dataclass(slots=True)
class Telemetry:
    """All that the measuring hooks share in one scheduler process.

    Attributes:
        config: the validated configuration.
        store: per-slot readings, or ``None`` when ``telemetry.prompt_surprisal`` is off.
        req_to_token: ``[rows, context]`` SGLang's table of KV slots.
        tree_cache: SGLang's prefix cache.
        recorder: receives the readings on the host.
        counters: what was measured.
        recall: statistics of the logits at hand that their producer has computed already, if any.
        recall_columns: the same as ``[B, 4]``, for a sampler that measures as it draws; with ``once=False`` they can be
            recalled again.
        own: the model's own logits and their statistics, from before sampling until after.
        own_columns: or these alone, where the sampler leaves the logits as they are and measures by itself.
        columns_before: the same where penalties or masks change the logits: of those before.
        sampled_entropy: of the distribution sampled from, ``[B]``, if the sampler has taken it.
        readings: ``[5, B]`` of the tokens drawn, from such a sampler.
    """

    config: EntropicConfig
    store: SlotStore | None
    req_to_token: torch.Tensor
    tree_cache: Any
    recorder: Recorder
    counters: Counters
    context: StepContext | None = None
    scored: bool = False
    recall: Callable[[torch.Tensor], RowStatistics | None] = field(default=lambda _: None, repr=False)
    recall_columns: Callable[..., torch.Tensor | None] = field(default=lambda _, **__: None, repr=False)
    own: tuple[torch.Tensor, RowStatistics] | None = field(default=None, repr=False)
    own_columns: torch.Tensor | None = field(default=None, repr=False)
    columns_before: torch.Tensor | None = field(default=None, repr=False)
    readings: torch.Tensor | None = field(default=None, repr=False)
    sampled_entropy: torch.Tensor | None = field(default=None, repr=False)

    @contextmanager
    def step(self, batch: Any) -> Iterator[None]:
        """Make the host facts of ``batch`` known to the hooks below for the duration of its forward pass."""
        extend = batch is not None and batch.forward_mode.is_extend()
        self.context = read_rows(batch, self.tree_cache) if extend else None
        self.scored = False
        try:
            yield
        finally:
            self.context = None

    def score_prompt(
        self,
        forward_batch: Any,
        hidden_states: torch.Tensor,
        logits_of: Callable[[torch.Tensor], torch.Tensor],
        statistics_of: TargetStatistics | None = None,
    ) -> None:
        """Score the new tokens of an extend batch; called where the model hands its hidden states to the LM head."""
        context, store = self.context, self.store
        if context is None or store is None:
            return
        lens = list(forward_batch.extend_seq_lens_cpu)[: len(context.rows)]
        total = sum(lens)
        slots = forward_batch.out_cache_loc[:total]
        rows = forward_batch.req_pool_indices[: len(lens)]
        self.scored = True
        first_tokens(store, context.rows, rows)
        starts = torch.tensor([0, *accumulate(lens[:-1])], device=slots.device)
        store.settle(slots[starts], rows)
        # Sampling writes the last rows' entropy; where nothing is sampled, it stays unknown.
        ends = torch.tensor(list(accumulate(lens)), device=slots.device)
        store.entropy_nats[slots[ends - 1]] = float("nan")
        layout = ExtendLayout.of(lens, context.rows)
        score(
            store,
            layout,
            hidden_states=hidden_states[:total],
            input_ids=forward_batch.input_ids[:total],
            slots=slots,
            request_rows=rows,
            logits_of=logits_of,
            chunk_rows=self.config.telemetry.prompt_chunk_rows,
            statistics_of=statistics_of,
        )
        self.counters.scored_prompt_tokens += len(layout.rows)
        for prefix, fact in zip(forward_batch.extend_prefix_lens_cpu, context.rows, strict=False):
            if fact.fresh:
                self.counters.inherited_prompt_tokens += prefix
                self.counters.boundary_recomputed_tokens += fact.recomputed_tokens

    def forget_unscored(self, forward_batch: Any) -> None:
        """Mark the slots of an extend batch unknown if it was not scored, lest they keep what lay there before.

        That happens where the LM head runs inside a captured prefill graph, which calls no hook.
        """
        context, store = self.context, self.store
        if context is None or store is None or self.scored:
            return
        lens = list(forward_batch.extend_seq_lens_cpu)[: len(context.rows)]
        unknown = float("nan")
        slots = forward_batch.out_cache_loc[: sum(lens)]
        store.surprisal_nats[slots] = unknown
        store.entropy_nats[slots] = unknown
        store.pending_surprisal_nats[forward_batch.req_pool_indices[: len(lens)]] = unknown
        self.counters.unscored_prompt_tokens += sum(lens)

    def settle_unsampled(self, batch: Any, logits: torch.Tensor | None, context: StepContext | None) -> None:
        """Entropy after the last new tokens of a ``ScheduleBatch`` that samples nothing; ``logits`` [B, V] follow them."""
        if (
            self.store is None
            or context is None
            or logits is None
            or logits.shape[0] != len(batch.extend_lens)
        ):
            return
        ends = torch.tensor(list(accumulate(batch.extend_lens)), device=logits.device)
        statistics = row_statistics(logits)
        entropy = torch.where(statistics.valid, statistics.entropy_nats, float("nan"))
        self.store.entropy_nats[batch.out_cache_loc[ends - 1]] = entropy

    def before_sampling(self, logits: torch.Tensor, sampling_info: Any, *, measured: bool = False) -> None:
        """Take the statistics of the model's own distribution while ``logits`` [B, V] are still untouched.

        Args:
            logits: of the step, before penalties, masks and biases.
            sampling_info: SGLang's sampling parameters of the batch.
            measured: whether the sampler takes the readings of the distribution that it draws from.
        """
        self._forget()
        if measured and not rewrites_logits(sampling_info):
            self.own_columns = self.recall_columns(logits)
            return
        untouched = sampling_info.is_all_greedy and not rewrites_logits(sampling_info)
        self.columns_before = self.recall_columns(logits, once=False)
        # Sampling writes over the logits. The copy has no -inf, so that products with a probability of 0 stay 0.
        with one_thread(logits.device):
            statistics = self.recall(logits) or row_statistics(logits)
            if not untouched:
                # Relative to the largest one, so that products with it lose no digits however low the temperature.
                logits = (logits - statistics.max_logit.unsqueeze(1)).clamp_(min=_ILLEGAL_LOGIT)
                statistics = statistics._replace(max_logit=torch.zeros_like(statistics.max_logit))
        self.own = logits, statistics

    def after_sampling(
        self, forward_batch: Any, token_ids: torch.Tensor, context: StepContext | None
    ) -> DeviceReadings:
        """Readings of the tokens just sampled, and the bookkeeping of their slots.

        Args:
            forward_batch: SGLang's forward batch of the step.
            token_ids: ``[B]`` sampled tokens.
            context: host facts of the step when it was an extend.
        """
        values = self._values(forward_batch, token_ids)
        self._forget()
        if self.store is not None:
            self._settle_slots(forward_batch, values, context)
        return DeviceReadings(self.recorder, values, self.prompt_readings(forward_batch, context))

    def _forget(self) -> None:
        self.own = self.own_columns = self.columns_before = self.sampled_entropy = self.readings = None

    def _values(self, forward_batch: Any, token_ids: torch.Tensor) -> torch.Tensor:
        """Entropy, varentropy, surprisal and sampled entropy, ``[4, B]``; NaN where there is no reading."""
        if self.own is None:
            assert self.readings is not None
            return self.readings[:4]
        logits, statistics = self.own
        surprisal = token_surprisal(logits, statistics, token_ids.long())
        sampled = self.sampled_entropy
        if self.readings is not None:
            sampled = self.readings[3]
        elif sampled is None:
            # A sampling path that does not hand out its probabilities.
            sampled = sampled_entropy(logits, forward_batch.sampling_info)
        values = torch.stack((statistics.entropy_nats, statistics.varentropy, surprisal, sampled))
        return torch.where(statistics.valid & (values < -_ILLEGAL_LOGIT / 2), values, float("nan"))

    def _settle_slots(self, forward_batch: Any, values: torch.Tensor, context: StepContext | None) -> None:
        assert self.store is not None
        count = values.shape[1]
        rows = forward_batch.req_pool_indices[:count]
        if context is None:
            slots = forward_batch.out_cache_loc[:count]
            self.store.settle(slots, rows)
            sampled_rows, sampled = rows, values[2]
        else:
            lens = torch.tensor(list(forward_batch.extend_seq_lens_cpu)[:count], device=values.device)
            slots = forward_batch.out_cache_loc[lens.cumsum(0) - 1]
            # The token sampled after a chunk that is not the last one is discarded.
            final = [i for i, fact in enumerate(context.rows) if fact.next_token is None]
            index = torch.tensor(final, device=values.device, dtype=torch.long)
            sampled_rows, sampled = rows[index], values[2][index]
        self.store.entropy_nats[slots] = values[0]
        self.store.pending_surprisal_nats[sampled_rows] = sampled

    def prompt_readings(self, forward_batch: Any, context: StepContext | None) -> dict[int, torch.Tensor]:
        """Prompt readings ``[2, n]`` of the requests that asked for them and whose prompt is now complete, by row."""
        if context is None or self.store is None:
            return {}
        readings = {}
        for index, fact in enumerate(context.rows):
            if fact.prompt_tokens:
                slots = self.req_to_token[forward_batch.req_pool_indices[index], : fact.prompt_tokens]
                readings[index] = self.store.prompt_readings(slots.long())
        return readings


_installed: Telemetry | None = None


def install(telemetry: Telemetry | None) -> None:
    """Make ``telemetry`` the one that this process's hooks report to; ``None`` takes it away."""
    global _installed  # noqa: PLW0603 -- one scheduler a process; SGLang's hooks carry no state of their own
    _installed = telemetry


def installed() -> Telemetry | None:
    """The process's telemetry; ``None`` in processes without a scheduler, when it is off, and during warm-up."""
    return _installed
