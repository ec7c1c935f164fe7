"""Every decision of the scheduler, from plain facts. Same calls, same decisions: no clock, no randomness."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from sgl_entropic.scheduling import score_cache as column
from sgl_entropic.scheduling.clients import ClientCounters
from sgl_entropic.scheduling.cost import CostModel
from sgl_entropic.scheduling.demand import Demand
from sgl_entropic.scheduling.facts import RequestFacts, ServerFacts
from sgl_entropic.scheduling.fairness import Overtaking, bounded_order
from sgl_entropic.scheduling.hold import HoldPlanner
from sgl_entropic.scheduling.memory import peak_growth_tokens, victim_value
from sgl_entropic.scheduling.prior import FlowPrior
from sgl_entropic.scheduling.priority import Estimates, Score, Terms
from sgl_entropic.scheduling.remaining import RemainingBelief
from sgl_entropic.scheduling.score_cache import ScoreCache
from sgl_entropic.scheduling.settings import SchedulingSettings
from sgl_entropic.scheduling.start import WAITED_LONG, StartPlanner
from sgl_entropic.scheduling.traffic import Columns, FloatArray
from sgl_entropic.scheduling.waits import TailWait

TYPICAL_BATCH = 8.0
"""Rows of a decode step before any was seen."""
BATCH_MEMORY_STEPS = 64.0


DEFERRAL = 1e-9
"""Factor of the score of a request that gains by waiting for another: behind all others, within its bounds."""


class EntropicPolicy:
    """Orders the queue, holds, retracts and admits.

    The caller reports what happens: ``observe_started`` when a waiting request begins its prefill,
    ``observe_finished`` or ``observe_aborted`` exactly once at its end, and measured times. In the facts of a running
    request ``cached_tokens`` are the leading tokens that would outlive its retraction, as others share them.

    Args:
        settings: weights and bounds.
        cost: ms of prefill and decode; a frozen one where ranks have to decide alike.
        belief: tokens to come.
        flow: entropy flows; shares the belief's groups when not given.
    """

    def __init__(
        self,
        settings: SchedulingSettings | None = None,
        cost: CostModel | None = None,
        belief: RemainingBelief | None = None,
        flow: FlowPrior | None = None,
    ) -> None:
        self.settings = SchedulingSettings() if settings is None else settings
        self.cost = CostModel() if cost is None else cost
        self.belief = RemainingBelief() if belief is None else belief
        self.flow = FlowPrior(self.belief.groups) if flow is None else flow
        self.overtaking = Overtaking()
        self.tail_wait = TailWait(self.settings.wait_quantile)
        self.clients = ClientCounters()
        self.demand = Demand(self.cost)
        self.holding = HoldPlanner(self.settings, self.cost, self.belief, self.demand)
        self.pacing = StartPlanner(self.settings, self.cost, self.belief, self.demand)
        self._estimates = Estimates(self.cost, self.belief, self.flow)
        self._cache = ScoreCache()
        self._batch = TYPICAL_BATCH

    def order(self, waiting: Sequence[RequestFacts], server: ServerFacts) -> list[int]:
        """Return the indices of ``waiting`` in the order in which to start them."""
        if len(waiting) < 2:
            return list(range(len(waiting)))
        return self._order(waiting, server, self._cache, self.clients)

    def hold(
        self, running: Sequence[RequestFacts], waiting_count: int, server: ServerFacts
    ) -> frozenset[int]:
        """Return the indices of ``running`` to leave out of this decode step: never all, none of fewer than two."""
        held = self.holding.hold(running, waiting_count, server)
        rows = [request.context_tokens for index, request in enumerate(running) if index not in held]
        if rows:
            self.observe_rows(len(rows), sum(rows), server.token_clock, server.decode_steps)
        return held

    def rests(self, decode_steps: int) -> bool:
        """Return whether `hold` would hold nobody whatever it was told: only `observe_rows` is then due in a step."""
        return not self.settings.hold or self.holding.rests(decode_steps)

    def observe_rows(self, rows: int, context_tokens_total: int, token_clock: int, decode_steps: int) -> None:
        """Take note of a decode step of ``rows``; `hold` does so itself."""
        self._batch += (rows - self._batch) / BATCH_MEMORY_STEPS
        self.demand.observe_steps(token_clock, decode_steps, rows, context_tokens_total)

    def most_at_once(
        self,
        running: Sequence[RequestFacts],
        first: Sequence[RequestFacts],
        waiting_count: int,
        server: ServerFacts,
    ) -> int:
        """Return how many requests may run after this pass: ``server.most_running``, or fewer where that pays.

        Args:
            running: those that decode.
            first: the first ``MOST_PLAYED`` of the queue, in their order.
            waiting_count: of the whole queue.
            server: as it is.
        """
        if not self.settings.pace or not running or not first:
            return server.most_running
        longest = min(self.settings.max_wait_tokens, WAITED_LONG * self.tail_wait.tokens)
        priority, latest = first[0].priority, server.token_clock - longest
        if any(request.priority < priority for request in running) or any(
            # Not the head alone: an older one that was retracted stands before it, and is not due.
            request.priority == priority
            and (
                request.waits_since_tokens <= latest
                or self.overtaking.tokens(request.key) >= self.settings.max_overtaken_tokens
            )
            for request in first
        ):
            # Who has waited long, or is put first by a bound or the user, waits for no plan.
            return server.most_running
        plan = self.pacing.plan
        if plan is None or self.pacing.is_due(server.decode_steps):
            plan = self.pacing.make(running, first, waiting_count, server)
        if plan.most_at_once is None:
            return server.most_running
        kept_out = self.pacing.keeps_out(len(running), server.decode_steps)
        return plan.most_at_once if kept_out or len(running) < plan.most_at_once else server.most_running

    def retraction_order(self, running: Sequence[RequestFacts], server: ServerFacts) -> list[int]:
        """Return the indices of ``running`` from most to least worth keeping; victims are taken from the end.

        First what the user's priority says; then those in the server for ``max_wait_tokens``, oldest first, so that
        the oldest always gets on; then by what a retraction frees for its cost.
        """
        if not running:
            return []
        columns = Columns.of(running, self.belief.groups)
        if self._by_arrival:
            value = columns.arrival
        else:
            value = victim_value(columns, self.belief.expected_many(columns), self.cost)
        due = np.array([self._stayed_long(request, server) for request in running])
        priority = np.array([float(request.priority) for request in running])
        order: list[int] = np.lexsort(
            (columns.arrival, np.where(due, columns.arrival, value), ~due, -priority)
        ).tolist()
        return order

    def admission_tokens(self, running: Sequence[RequestFacts], server: ServerFacts) -> int:
        """Return the KV tokens, beyond those held, to keep free for ``running``: the highest peak of several futures."""
        del server
        columns = Columns.of(running, self.belief.groups)
        futures = self.belief.scenarios(columns, self.settings.admission_scenarios)
        return int(peak_growth_tokens(futures, columns.private).max())

    def score(self, request: RequestFacts, server: ServerFacts, *, running: bool = False) -> Score:
        """Return the score of one request with every term."""
        terms = self._terms([request], server, running=running)
        factor = self.clients.factor(request.client) ** self.settings.client_weight
        row = self._table([request], terms)
        waited = max(0, server.token_clock - request.waits_since_tokens) / self.tail_wait.tokens
        return Score(
            value=float((self._values(row, np.array([factor]), server) * _deferral([request]))[0]),
            flow_nats=float(terms.flow_nats[0]),
            flow_factor=float(terms.flow_factor[0]),
            remaining_tokens=float(terms.remaining_tokens[0]),
            compute_ms=float(terms.compute_ms[0]),
            memory_ms=float(terms.memory_ms[0]),
            latency_ms=max(0.0, 1.0 - waited) * float(terms.work_ms[0]),
            ageing=1.0 + self.settings.ageing * waited**2,
            client_factor=factor,
        )

    def explain(
        self,
        request: RequestFacts,
        waiting: Sequence[RequestFacts],
        running: Sequence[RequestFacts],
        server: ServerFacts,
    ) -> dict[str, Any]:
        """Return where ``request`` stands and why, as plain values for JSON. Changes no later decision."""
        runs = any(other.key == request.key for other in running)
        shown = self._score_of(request, server, running=runs)
        if runs:
            kept = [running[index].key for index in self.retraction_order(running, server)]
            plan = self.holding.plan
            rank = None if plan is None else plan.rank.get(request.key)
            return shown | {
                "held_steps": request.held_steps,
                "hold_rank": rank,
                "rows_at_once": None if plan is None else plan.most_at_once,
                "hold_gain": None if plan is None else plan.gain,
                "retraction_rank": kept.index(request.key),
                "safe_by_age": self._stayed_long(request, server),
            }
        keys = [waiting[index].key for index in self._order_on_copies(waiting, server)]
        return shown | self._explain_place(
            request, keys.index(request.key) if request.key in keys else None, server
        )

    def explain_waiting(
        self, waiting: Sequence[RequestFacts], server: ServerFacts, most: int
    ) -> list[dict[str, Any]]:
        """Return the first ``most`` of ``waiting`` by rank, each as `explain` tells it. Changes no later decision."""
        order = self._order_on_copies(waiting, server)
        return [
            self._score_of(waiting[index], server, running=False)
            | self._explain_place(waiting[index], rank, server)
            for rank, index in enumerate(order[:most])
        ]

    def observe_prefill(self, uncached_tokens: int, context_tokens: int, ms: float) -> None:
        """Learn what a prefill took."""
        self.cost.observe_prefill(uncached_tokens, context_tokens, ms)

    def observe_decode(self, batch: int, context_tokens_total: int, ms: float) -> None:
        """Learn what a decode step took, and how large batches are; nothing with a frozen cost model."""
        if not self.cost.frozen:
            # Frozen, ranks have to decide alike: they learn batches from what all are asked, not from what each measured.
            self._batch += (batch - self._batch) / BATCH_MEMORY_STEPS
        self.cost.observe_decode(batch, context_tokens_total, ms)

    def observe_started(
        self, request: RequestFacts, waiting: Sequence[RequestFacts], server: ServerFacts
    ) -> None:
        """Take note that ``request`` begins its prefill, and that ``waiting`` (with or without it) do not yet."""
        work = self._cache.work_tokens(request.key)
        if work is None:
            work = request.uncached_tokens + self.belief.expected(request)
        self.demand.observe_started(work - request.uncached_tokens)
        self.pacing.started()
        self.overtaking.observe_started(request, waiting, work)
        self.tail_wait.observe(max(0, server.token_clock - request.waits_since_tokens))
        self.clients.charge(request.client, work)
        self._cache.forget(request.key)

    def observe_finished(self, request: RequestFacts, *, hit_limit: bool) -> None:
        """Learn from a request that has come to its end; ``hit_limit`` when its limit cut it short."""
        self.belief.observe_finished(request, request.generated_tokens, hit_limit=hit_limit)
        self.flow.observe_finished(request)
        self.forget(request.key)

    def observe_aborted(self, request: RequestFacts) -> None:
        """Take note that ``request`` is gone. Its length was cut: it would have gone on."""
        self.belief.observe_finished(request, request.generated_tokens, hit_limit=True)
        self.forget(request.key)

    def forget(self, key: str) -> None:
        """Drop all that is kept for one request."""
        self.overtaking.forget(key)
        self._cache.forget(key)

    def retain(self, keys: Collection[str]) -> None:
        """Drop what is kept for requests other than these: some leave without a word."""
        self.overtaking.retain(keys)

    @property
    def _by_arrival(self) -> bool:
        return self.settings.alpha == self.settings.beta == self.settings.gamma == 0.0

    def _score_of(self, request: RequestFacts, server: ServerFacts, *, running: bool) -> dict[str, Any]:
        return {
            "key": request.key,
            "state": "running" if running else "waiting",
            **asdict(self.score(request, server, running=running)),
        }

    def _order_on_copies(self, waiting: Sequence[RequestFacts], server: ServerFacts) -> list[int]:
        # On copies: where one rank explains, all must go on to decide alike.
        return self._order(waiting, server, self._cache.copy(), self.clients.copy()) if waiting else []

    def _explain_place(self, request: RequestFacts, rank: int | None, server: ServerFacts) -> dict[str, Any]:
        settings = self.settings
        waited = max(0, server.token_clock - request.waits_since_tokens)
        overtaken = self.overtaking.tokens(request.key)
        reasons = {
            "max_wait_tokens": waited >= settings.max_wait_tokens,
            "max_overtaken_tokens": overtaken >= settings.max_overtaken_tokens,
        }
        return {
            "rank": rank,
            "deferred": request.deferred,
            "waited_tokens": waited,
            "overtaken_tokens": overtaken,
            "due": any(reasons.values()),
            "due_by": [name for name, due in reasons.items() if due],
            "due_within_tokens": 0 if any(reasons.values()) else settings.max_wait_tokens - waited,
        }

    def _order(
        self, waiting: Sequence[RequestFacts], server: ServerFacts, cache: ScoreCache, clients: ClientCounters
    ) -> list[int]:
        def compute(requests: Sequence[RequestFacts]) -> FloatArray:
            return self._table(requests, self._terms(requests, server, running=False))

        rows = cache.rows(waiting, self._estimates.version, compute)
        factors = np.ones(len(waiting))
        if self.settings.client_weight > 0.0:
            factors = clients.factors([request.client for request in waiting]) ** self.settings.client_weight
        order: list[int] = bounded_order(
            rows[:, column.PRIORITY],
            rows[:, column.ARRIVAL],
            self._values(rows, factors, server) * _deferral(waiting),
            rows[:, column.WORK_TOKENS],
            self._budgets(waiting, rows[:, column.QUEUED_AT], server),
        ).tolist()
        return order

    def _terms(self, requests: Sequence[RequestFacts], server: ServerFacts, *, running: bool) -> Terms:
        columns = Columns.of(requests, self.belief.groups)
        batch = max(1.0, min(self._batch, server.most_running))
        return self._estimates.terms(
            columns, self.settings, batch=batch, pool_tokens=server.pool_tokens, running=running
        )

    def _table(self, requests: Sequence[RequestFacts], terms: Terms) -> FloatArray:
        """Return the rows of the score cache, [n, 6]."""
        facts = [(request.priority, request.arrival, request.waits_since_tokens) for request in requests]
        costs = (terms.cost_ms(self.settings), terms.work_ms)
        return np.column_stack(
            [
                np.array(facts, dtype=np.float64),
                *(cost / terms.flow_factor for cost in costs),
                terms.work_tokens,
            ]
        )

    def _values(self, rows: FloatArray, client_factors: FloatArray, server: ServerFacts) -> FloatArray:
        """Return the scores of n rows, [n]."""
        waited = np.maximum(0.0, server.token_clock - rows[:, column.QUEUED_AT]) / self.tail_wait.tokens
        ageing = 1.0 + self.settings.ageing * waited**2
        if self._by_arrival:
            return ageing * client_factors
        slack = np.maximum(0.0, 1.0 - waited)
        denominator = rows[:, column.COST_MS] + self.settings.gamma * slack * rows[:, column.WORK_MS]
        values: FloatArray = ageing * client_factors / np.maximum(denominator, 1e-9)
        return values

    def _budgets(
        self, waiting: Sequence[RequestFacts], queued_at: FloatArray, server: ServerFacts
    ) -> FloatArray:
        """Return the tokens of work of later arrivals that may still start before each request, [n]; 0 is due."""
        left = self.settings.max_overtaken_tokens - self.overtaking.tokens_of(waiting)
        return np.where(server.token_clock - queued_at >= self.settings.max_wait_tokens, 0.0, left)

    def _stayed_long(self, request: RequestFacts, server: ServerFacts) -> bool:
        return server.token_clock - request.arrived_at_tokens >= self.settings.max_wait_tokens


def _deferral(waiting: Sequence[RequestFacts]) -> FloatArray:
    """Return the factor of each of n requests for what it gains by waiting, [n]."""
    return np.where([request.deferred for request in waiting], DEFERRAL, 1.0)
