"""Which running requests to leave out of a decode step, so that others end earlier.

A step costs ``fixed + row x batch``. Where rows dominate (CPUs), all at once is processor sharing: everyone finishes
late. Running the k shortest and letting the rest follow lowers mean latency, at the price of the fixed part being
shared by fewer. Whether it pays depends on how well lengths are known: with memoryless lengths, processor sharing is
as good as any order, and a smaller batch only loses throughput.

So the plan is found by playing it: for several k, the sum of completion times over a few futures drawn from the belief
(not its mean, which would promise gains that uncertainty takes away), with starts in order of *expected* length and
backfilling, and the waiting requests following behind: what a smaller batch loses in throughput, they pay for. A gain
counts as far as the futures agree on it, less a price for those that have yet to arrive and are not in the play: only
batches that carry the demand are tried, and throughput that is lost is charged by the load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sgl_entropic.scheduling.completion import StepCost, completion_ms, most_saved_share
from sgl_entropic.scheduling.cost import CostModel
from sgl_entropic.scheduling.demand import Demand
from sgl_entropic.scheduling.facts import RequestFacts, ServerFacts
from sgl_entropic.scheduling.remaining import RemainingBelief
from sgl_entropic.scheduling.settings import SchedulingSettings
from sgl_entropic.scheduling.traffic import Columns, FloatArray, IntArray

FUTURES = 6
SHARES = (0.75, 0.5, 0.25, 0.125)
"""Batches that are tried, as shares of those that run."""
LEAST_ROW_SHARE = 0.2
"""Where rows are a smaller share of a step than this, a smaller batch saves next to nothing: not even tried."""
ARRIVALS_PRICE = 3.0
"""Share of mean latency that a lost share of throughput costs later arrivals at full load."""
ROUNDING = 1e-9
"""By how much a bound has to fail before a batch is given up on it: bounds and plays sum in another order."""
IDLE_PLANS = 4
"""How much longer a plan that holds nobody lasts."""
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
        grouped: how many run that would not if tiers were left out of it.
    """

    decode_step: int
    most_at_once: int
    rank: dict[str, int]
    gain: float
    grouped: int = 0

    @property
    def holds(self) -> bool:
        """Whether anyone is to be left out."""
        return self.gain > 0.0


class HoldPlanner:
    """Plans every few steps, and whenever a request is new while some are held; less often while none is.

    Args:
        settings: bounds; ``hold`` switches it off.
        cost: ms of decode steps.
        belief: tokens to come.
        demand: what a smaller batch has to carry.
    """

    def __init__(
        self, settings: SchedulingSettings, cost: CostModel, belief: RemainingBelief, demand: Demand
    ) -> None:
        self._settings = settings
        self._cost = cost
        self._belief = belief
        self._demand = demand
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
        if plan is None or self._is_old(plan, running, server):
            plan = self.plan = self._plan(running, waiting_count, server)
        if not plan.holds or plan.most_at_once >= len(running):
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

    def rests(self, decode_steps: int) -> bool:
        """Return whether the plan that nobody is held stands."""
        plan = self.plan
        return (
            plan is not None
            and not plan.holds
            and 0 <= decode_steps - plan.decode_step < IDLE_PLANS * self._settings.replan_steps
        )

    def _is_old(self, plan: HoldPlan, running: Sequence[RequestFacts], server: ServerFacts) -> bool:
        if not plan.holds:
            # Where nothing was gained, little will be gained soon; planning itself takes from every step.
            return not self.rests(server.decode_steps)
        age = server.decode_steps - plan.decode_step
        return not 0 <= age < self._settings.replan_steps or any(
            request.key not in plan.rank for request in running
        )

    def _plan(self, running: Sequence[RequestFacts], waiting_count: int, server: ServerFacts) -> HoldPlan:
        count = len(running)
        # Whole numbers: the sum is exact.
        context = float(sum([request.context_tokens for request in running])) / count
        row_ms = self._cost.decode_row_ms + self._cost.decode_context_token_ms * context
        cost = StepCost(self._cost.decode_fixed_ms, row_ms)
        # While some are held already, half the gain is enough to go on: plans must not alternate.
        was_held = np.array([request.held_steps > 0 for request in running])
        needed = self._settings.hold_gain * (0.5 if was_held.any() else 1.0)
        tried = {}
        if row_ms * count >= LEAST_ROW_SHARE * cost.step_ms(count):
            tried = self._worth_playing(running, waiting_count, cost, needed)
        if not tried:
            return HoldPlan(server.decode_steps, count, dict.fromkeys((r.key for r in running), 0), 0.0)
        columns = Columns.of(running, self._belief.groups)
        expected = self._belief.expected_many(columns)
        # Those that ran go on unless a held one is shorter by a margin, or each plan would swap equals.
        expected = np.where(was_held, expected, expected * (1.0 - self._settings.hold_hysteresis))
        order = np.lexsort((columns.arrival, expected))
        at_once, gain = self._best(columns.take(order), waiting_count, cost, tried)
        grouped = 0
        if gain < needed:
            at_once, gain = count, 0.0
        elif self._settings.tier_margin > 0.0 and at_once in tried:
            tiers = np.array([request.tier for request in running])
            closer = _grouped_order(
                order, at_once, expected, tiers, columns.arrival, self._settings.tier_margin
            )
            again, its_gain = self._best(columns.take(closer), waiting_count, cost, {at_once: tried[at_once]})
            if again == at_once and its_gain >= needed:
                # What the batch is to gain by being of one tier is not in the play: the plan has to pay without it.
                grouped = len(set(closer[:at_once].tolist()) - set(order[:at_once].tolist()))
                order, gain = closer, its_gain
        rank = {running[index].key: place for place, index in enumerate(order.tolist())}
        return HoldPlan(server.decode_steps, at_once, rank, gain, grouped)

    def _worth_playing(
        self, running: Sequence[RequestFacts], waiting_count: int, cost: StepCost, needed: float
    ) -> dict[int, float]:
        """Return the numbers at once that may save the share ``needed``, largest first, with their prices."""
        count = len(running)
        load = min(1.0, self._demand.load(cost.token_ms(count)))
        # All tokens to come may be 0 only where none is allowed, and a share of nothing is not bounded.
        bounded = not waiting_count and any(request.most_remaining_tokens for request in running)
        prices = {}
        for at_once in sorted({max(1, round(share * count)) for share in SHARES} - {count}, reverse=True):
            if not self._demand.carries(cost.token_ms(at_once)):
                continue
            price = ARRIVALS_PRICE * load * (cost.token_ms(at_once) / cost.token_ms(count) - 1.0)
            most = most_saved_share(count, at_once, cost) if bounded else 1.0
            if most - price >= needed - ROUNDING:
                prices[at_once] = price
        return prices

    def _best(
        self, ordered: Columns, waiting_count: int, cost: StepCost, prices: Mapping[int, float]
    ) -> tuple[int, float]:
        """Return the number at once with the largest gain over all, and that gain: at least 0, for all.

        Args:
            ordered: those that run, in the order in which they would go on.
            waiting_count: how many wait.
            cost: of a step.
            prices: by number at once, what is charged for later arrivals, as a share of mean latency.
        """
        count = len(ordered.arrival)
        behind = min(waiting_count, count)
        futures = np.hstack(
            [self._belief.scenarios(ordered, FUTURES), self._belief.typical_scenarios(behind, FUTURES)]
        ).tolist()
        weight = waiting_count / max(1, behind)

        def totals_ms(at_once: int) -> FloatArray:
            played = [completion_ms(f, at_once, cost, running=count, weight=weight) for f in futures]
            return np.array(played)

        all_ms = totals_ms(count)
        best, best_gain = count, 0.0
        for at_once, price in prices.items():
            gains = 1.0 - totals_ms(at_once) / np.maximum(all_ms, 1e-9)
            gain = float(gains.mean() - gains.std()) - price
            if gain > best_gain:
                best, best_gain = at_once, gain
        return best, best_gain


def _grouped_order(
    order: IntArray, at_once: int, expected: FloatArray, tiers: IntArray, arrival: FloatArray, margin: float
) -> IntArray:
    """Return ``order`` anew with those of the commonest tier of its first ``at_once`` counted as shorter by ``margin``, [n].

    A batch of one tier can leave out together the work that its text does not need. Tier 0 has none to leave out, and is
    nobody's group; of two others as common the more decided one is meant.
    """
    counts = np.bincount(tiers[order[:at_once]])
    counts[0] = 0
    if not counts.any():
        return order
    common = len(counts) - 1 - int(np.argmax(counts[::-1]))
    closer: IntArray = np.lexsort((arrival, np.where(tiers == common, (1.0 - margin) * expected, expected)))
    return closer
