"""The score of a request: ``pi = E[dH] / (alpha C + beta M + gamma L)``.

The quantum is the whole rest of the request. Finishing it resolves all of its uncertainty, whatever its length, so
``E[dH]`` in units of the request's own total is 1, times a bounded factor of its flow relative to the traffic's:
between two equal costs the one that resolves more nats goes first. With equal flows the score is 1 over the cost of
the rest: the Gittins index with the quantum at the end (Gittins 1979), and shortest remaining first, which minimises
mean latency on one server when costs are known (Schrage 1968).

All costs are ms of the machine:

* C: the prefill that its tokens add and its share of each decode step until it ends (a step's fixed part is shared by
  the batch).
* M: its share of the KV pool times the time it stays. Where the pool is the scarce resource, this is the time of the
  whole machine that it takes from others.
* L: latency risk as slack. A request that has just come can be charged up to its own C + M again; one that has waited
  as long as the traffic's tail is charged nothing. In proportion to the request's own work, the order among equally
  old requests is that of C and M.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sgl_entropic.scheduling.cost import CostModel
from sgl_entropic.scheduling.prior import FlowPrior
from sgl_entropic.scheduling.remaining import RemainingBelief
from sgl_entropic.scheduling.settings import SchedulingSettings
from sgl_entropic.scheduling.traffic import Columns, FloatArray

FLOW_FACTOR_BOUND = 2.0
"""A request counts for at most this much more, or less, by its flow."""


@dataclass(frozen=True, slots=True)
class Score:
    """One request's score with every term.

    Attributes:
        value: larger goes first.
        flow_nats: expected entropy flow, nats per token.
        flow_factor: E[dH] in units of the request's own total, by its flow relative to the traffic's.
        remaining_tokens: expected tokens to come.
        compute_ms: C.
        memory_ms: M.
        latency_ms: L.
        ageing: factor for its wait.
        client_factor: factor for its client's service so far.
    """

    value: float
    flow_nats: float
    flow_factor: float
    remaining_tokens: float
    compute_ms: float
    memory_ms: float
    latency_ms: float
    ageing: float
    client_factor: float


@dataclass(frozen=True, slots=True)
class Terms:
    """What of the scores does not change while requests wait; arrays [n], named as in ``Score``."""

    flow_nats: FloatArray
    flow_factor: FloatArray
    remaining_tokens: FloatArray
    compute_ms: FloatArray
    memory_ms: FloatArray
    uncached_tokens: FloatArray

    @property
    def work_ms(self) -> FloatArray:
        """C + M, [n]."""
        return self.compute_ms + self.memory_ms

    @property
    def work_tokens(self) -> FloatArray:
        """Tokens that the server is expected to process for each request until it ends, [n]."""
        return self.uncached_tokens + self.remaining_tokens

    def cost_ms(self, settings: SchedulingSettings) -> FloatArray:
        """Alpha C + beta M, [n]."""
        return settings.alpha * self.compute_ms + settings.beta * self.memory_ms


class Estimates:
    """Everything learnt that a score needs.

    Args:
        cost: ms of prefill and decode.
        belief: tokens to come.
        flow: entropy flows.
    """

    def __init__(self, cost: CostModel, belief: RemainingBelief, flow: FlowPrior) -> None:
        self.cost = cost
        self.belief = belief
        self.flow = flow

    @property
    def version(self) -> int:
        """Changes when lengths or costs were estimated anew."""
        return self.cost.version + self.belief.version

    def terms(
        self,
        requests: Columns,
        settings: SchedulingSettings,
        *,
        batch: float,
        pool_tokens: int,
        running: bool,
    ) -> Terms:
        """Return the terms of ``requests``, at decode steps of ``batch`` rows; running ones need no prefill."""
        cost = self.cost
        remaining = self.belief.expected_many(requests)
        context = requests.context + remaining / 2.0
        uncached = np.zeros_like(remaining) if running else requests.uncached
        row_ms = cost.decode_row_ms + cost.decode_context_token_ms * context
        prefill_ms = cost.prefill_marginal_ms(uncached, requests.context)
        compute_ms = prefill_ms + remaining * (row_ms + cost.decode_fixed_ms / batch)
        stay_ms = prefill_ms + remaining * (cost.decode_fixed_ms + row_ms * batch)
        share = np.minimum(1.0, (requests.private + remaining / 2.0) / max(1, pool_tokens))
        flow_nats = self.flow.expected_many(requests)
        relative = flow_nats / max(self.flow.mean_nats, 1e-9)
        factor = np.clip(relative, 1.0 / FLOW_FACTOR_BOUND, FLOW_FACTOR_BOUND) ** settings.flow_weight
        return Terms(flow_nats, factor, remaining, compute_ms, share * stay_ms, uncached)
