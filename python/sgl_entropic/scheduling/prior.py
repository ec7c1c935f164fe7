"""How much uncertainty a request is expected to resolve for each token, before it has generated any."""

from __future__ import annotations

import math

import numpy as np

from sgl_entropic.scheduling.facts import RequestFacts
from sgl_entropic.scheduling.traffic import ALL_TRAFFIC, MOST_GROUPS, Columns, FloatArray, TrafficGroups

PRIOR_FLOW_NATS = 0.5
"""Mean positive drop of entropy per token before any request has finished."""
PRIOR_REQUESTS = 8.0
"""Finished requests that all traffic's mean is worth in the mean of one kind, and the prior in all traffic's."""
PRIOR_TOKENS = 32.0
"""Tokens of its own that the prior is worth in a running request's flow."""
MEMORY_REQUESTS = 500.0


class FlowPrior:
    """Expected entropy flow in nats per token.

    A request's own flow is shrunk to that of its kind, a kind's to all traffic's. A waiting request's matched prefix
    moves its prior by the slope of flow on prefix surprisal over finished requests (ridge regression).

    Args:
        groups: numbers of the kinds of request; shared with other estimates.
    """

    def __init__(self, groups: TrafficGroups | None = None) -> None:
        self.groups = TrafficGroups() if groups is None else groups
        self._weight = np.zeros(MOST_GROUPS + 1)
        self._sum = np.zeros(MOST_GROUPS + 1)
        # Of requests with a known prefix: weight, sums of x, y, xx, xy.
        self._moments = np.zeros(5)

    @property
    def mean_nats(self) -> float:
        """Mean flow of all traffic, nats per token."""
        total = self._sum[ALL_TRAFFIC] + PRIOR_FLOW_NATS * PRIOR_REQUESTS
        return float(total / (self._weight[ALL_TRAFFIC] + PRIOR_REQUESTS))

    def observe_finished(self, request: RequestFacts) -> None:
        """Learn a finished request's own flow; one without any, or with a flow that is not finite, teaches nothing."""
        flow, surprisal = request.flow_nats, request.prefix_surprisal_nats
        if flow is None or not math.isfinite(flow) or flow < 0.0:
            return
        for group in {ALL_TRAFFIC, self.groups.observed(request)}:
            self._weight[group] = self._weight[group] * (1.0 - 1.0 / MEMORY_REQUESTS) + 1.0
            self._sum[group] = self._sum[group] * (1.0 - 1.0 / MEMORY_REQUESTS) + flow
        if surprisal is not None and math.isfinite(surprisal):
            self._moments *= 1.0 - 1.0 / MEMORY_REQUESTS
            self._moments += (1.0, surprisal, flow, surprisal**2, surprisal * flow)

    def expected(self, request: RequestFacts) -> float:
        """Return the expected flow of ``request``, nats per token."""
        return float(self.expected_many(Columns.of([request], self.groups))[0])

    def expected_many(self, requests: Columns) -> FloatArray:
        """Return the expected flow of each request, nats per token, [n]."""
        mean = self.mean_nats
        kind = (self._sum + mean * PRIOR_REQUESTS) / (self._weight + PRIOR_REQUESTS)
        kind[ALL_TRAFFIC] = mean
        before = kind[requests.group] + self._shift_nats(requests.surprisal_nats)
        known = np.isfinite(requests.flow_nats)
        own = np.where(known, requests.generated, 0.0)
        total = np.where(known, requests.flow_nats, 0.0) * own + before * PRIOR_TOKENS
        flow: FloatArray = np.maximum(0.0, total / (own + PRIOR_TOKENS))
        return flow

    def _shift_nats(self, surprisal_nats: FloatArray) -> FloatArray:
        """Return what the prefix's surprisal adds to the prior, at most half of the mean flow either way, [n]."""
        weight, x, y, xx, xy = self._moments.tolist()
        if weight == 0.0:
            return np.zeros_like(surprisal_nats)
        slope = (xy - x * y / weight) / (xx - x * x / weight + PRIOR_REQUESTS)
        shift = np.clip(slope * (surprisal_nats - x / weight), -self.mean_nats / 2.0, self.mean_nats / 2.0)
        return np.where(np.isfinite(surprisal_nats), shift, 0.0)
