"""Which running requests to leave out of a decode step, so that others end earlier.

A step costs ``fixed + row x batch``. Where rows dominate (CPUs), all at once is processor sharing: everyone finishes
late. Running the k shortest and letting the rest follow lowers mean latency, at the price of the fixed part being
shared by fewer. Whether it pays depends on how well lengths are known: with memoryless lengths, processor sharing is
as good as any order, and a smaller batch only loses throughput.

So the plan is found by playing it: for several k, the sum of completion times over a few futures drawn from the belief
(not its mean, which would promise gains that uncertainty takes away), with starts in order of *expected* length and
backfilling, and the waiting requests following behind: what a smaller batch loses in throughput, they pay for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapreplace

import numpy as np

from sgl_entropic.scheduling.cost import CostModel
from sgl_entropic.scheduling.facts import RequestFacts, ServerFacts
from sgl_entropic.scheduling.remaining import RemainingBelief
from sgl_entropic.scheduling.settings import SchedulingSettings
from sgl_entropic.scheduling.traffic import Columns

FUTURES = 4
SHARES = (0.75, 0.5, 0.25, 0.125)
"""Batches that are tried, as shares of those that run."""
LEAST_ROW_SHARE = 0.2
"""Where rows are a smaller share of a step than this, a smaller batch saves next to nothing: not even tried."""
LEAST_FREE_SHARE = 0.05
"""With less of the pool free, none is held: memory comes back soonest when all run."""


@dataclass(frozen=True, slots=True)
class HoldPlan:
    """Who runs until the next plan.

    Attributes:
        decode_step: when it was made.
        most_at_once: rows of a step.
        rank: place of each request; the first ``most_at_once`` that still run go on.
        gain: predicted saving of mean latency against running all, as a share.
    """

    decode_step: int
    most_at_once: int
    rank: dict[str, int]
    gain: float


class HoldPlanner:
    """Plans every few steps, and whenever a request is new.

    Args:
        settings: bounds; ``hold`` switches it off.
        cost: ms of decode steps.
        belief: tokens to come.
    """

    def __init__(self, settings: SchedulingSettings, cost: CostModel, belief: RemainingBelief) -> None:
        self._settings = settings
        self._cost = cost
        self._belief = belief
        self.plan: HoldPlan | None = None

    def hold(
        self, running: Sequence[RequestFacts], waiting_count: int, server: ServerFacts
    ) -> frozenset[int]:
        """Return the indices of ``running`` to leave out of this step; at least one always runs."""
        settings = self._settings
        pressed = server.free_tokens < max(len(running), LEAST_FREE_SHARE * server.pool_tokens)
        if not settings.hold or len(running) < 2 or pressed:
            self.plan = None
            return frozenset()
        plan = self.plan
        if (
            plan is None
            or not 0 <= server.decode_steps - plan.decode_step < settings.replan_steps
            or any(request.key not in plan.rank for request in running)
        ):
            plan = self.plan = self._plan(running, waiting_count, server)
        if plan.most_at_once >= len(running):
            return frozenset()
        rank = plan.rank
        places = sorted(range(len(running)), key=lambda index: rank[running[index].key])
        latest = server.token_clock - settings.max_wait_tokens
        return frozenset(
            index
            for index in places[plan.most_at_once :]
            if running[index].held_steps < settings.max_held_steps
            and running[index].arrived_at_tokens > latest
        )

    def _plan(self, running: Sequence[RequestFacts], waiting_count: int, server: ServerFacts) -> HoldPlan:
        count = len(running)
        columns = Columns.of(running, self._belief.groups)
        context = float(columns.context.mean())
        row_ms = self._cost.decode_row_ms + self._cost.decode_context_token_ms * context
        fixed_ms = self._cost.decode_fixed_ms
        if row_ms * count < LEAST_ROW_SHARE * (fixed_ms + row_ms * count):
            return HoldPlan(server.decode_steps, count, {request.key: 0 for request in running}, 0.0)
        expected = self._belief.expected_many(columns)
        was_held = np.array([request.held_steps > 0 for request in running])
        # Those that ran go on unless a held one is shorter by a margin, or each plan would swap equals.
        expected = np.where(was_held, expected, expected * (1.0 - self._settings.hold_hysteresis))
        order = np.lexsort((columns.arrival, expected))
        behind = min(waiting_count, count)
        futures = np.hstack(
            [
                self._belief.scenarios(columns, FUTURES)[:, order],
                self._belief.typical_scenarios(behind, FUTURES),
            ]
        ).tolist()
        weight = waiting_count / behind if behind else 0.0

        def total_ms(at_once: int) -> float:
            return sum(
                completion_ms(future, at_once, fixed_ms, row_ms, running=count, weight=weight)
                for future in futures
            )

        at_once, gain = self._choose(total_ms, count, holding=bool(was_held.any()))
        rank = {running[index].key: place for place, index in enumerate(order.tolist())}
        return HoldPlan(server.decode_steps, at_once, rank, gain)

    def _choose(self, total_ms: Callable[[int], float], count: int, *, holding: bool) -> tuple[int, float]:
        """Return the batch to run and its gain; while some are held already, half the gain is enough to go on."""
        all_ms = total_ms(count)
        tried = sorted({max(1, round(share * count)) for share in SHARES} - {count}, reverse=True)
        totals = {at_once: total_ms(at_once) for at_once in tried}
        best = min(totals, key=lambda at_once: totals[at_once])
        gain = 1.0 - totals[best] / all_ms if all_ms > 0.0 else 0.0
        enough = self._settings.hold_gain * (0.5 if holding else 1.0)
        return (best, gain) if gain >= enough else (count, 0.0)


def completion_ms(
    lengths: Sequence[float], at_once: int, fixed_ms: float, row_ms: float, *, running: int, weight: float
) -> float:
    """Return the sum of completion times when ``at_once`` requests run at a time and the next follows one that ends.

    Args:
        lengths: tokens to come, in order of start; those that run first, then those that wait.
        at_once: rows of a step while enough are left.
        fixed_ms: ms of a step.
        row_ms: ms of a row of it.
        running: how many of ``lengths`` count with weight 1.
        weight: of each of the rest.
    """
    rows = [0.0] * min(at_once, len(lengths))
    ends = []
    last_start = 0.0
    for length in lengths:
        last_start = rows[0]
        ends.append(last_start + length)
        heapreplace(rows, last_start + length)
    full_ms = fixed_ms + row_ms * len(rows)
    # From the last start on rows run out, and steps become cheaper.
    clock_ms, step, left = last_start * full_ms, last_start, len(rows)
    end_ms = {}
    for end in sorted(rows):
        clock_ms += (end - step) * (fixed_ms + row_ms * left)
        end_ms[end] = clock_ms
        step, left = end, left - 1
    total = 0.0
    for place, end in enumerate(ends):
        total += (end_ms[end] if end > last_start else end * full_ms) * (1.0 if place < running else weight)
    return total
