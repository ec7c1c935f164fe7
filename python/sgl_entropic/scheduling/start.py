"""How many requests to have running at a time: whether a free place is filled now, or after those that run have got on.

A prefill holds up everyone who decodes. Where it is dear beside the answers (long prompts, short answers, CPUs), filling
every place as it gets free makes each request pay for the prefills of all others before its own second token: processor
sharing again. With fewer at a time the first are done when the last begin, but steps share their fixed part among fewer.

As for holds, the plan is found by playing it: for several numbers at a time, the sum of completion times over a few
futures drawn from the belief, prefills included, with the first of the queue following in their order and the rest of it
ending no sooner than the play. A gain counts as far as the futures agree on it, less a price for those yet to arrive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sgl_entropic.scheduling.completion import StepCost, served_ms
from sgl_entropic.scheduling.cost import CostModel
from sgl_entropic.scheduling.demand import Demand
from sgl_entropic.scheduling.facts import RequestFacts, ServerFacts
from sgl_entropic.scheduling.hold import ARRIVALS_PRICE, FUTURES, IDLE_PLANS, SHARES
from sgl_entropic.scheduling.remaining import RemainingBelief
from sgl_entropic.scheduling.settings import SchedulingSettings
from sgl_entropic.scheduling.traffic import Columns, FloatArray

MOST_PLAYED = 16
"""Waiting requests that are played one by one."""
WAITED_LONG = 0.5
"""Share of the traffic's tail wait after which a request waits for no plan.

Fewer at a time get less done, and who comes last pays for that of all before: the mean gains most of what pace can give
while waits are short, the tail loses once they are long.
"""


@dataclass(frozen=True, slots=True)
class StartPlan:
    """How many run until the next plan.

    Attributes:
        decode_step: when it was made.
        most_at_once: requests that run at a time, ``None`` for as many as fit.
        gain: predicted saving of mean latency against as many as fit, as a share.
    """

    decode_step: int
    most_at_once: int | None
    gain: float


class StartPlanner:
    """Plans every few steps while requests wait.

    Args:
        settings: bounds; ``pace`` switches it off.
        cost: ms of prefills and decode steps.
        belief: tokens to come.
        demand: work that arrives.
    """

    def __init__(
        self, settings: SchedulingSettings, cost: CostModel, belief: RemainingBelief, demand: Demand
    ) -> None:
        self._settings = settings
        self._cost = cost
        self._belief = belief
        self._demand = demand
        self.plan: StartPlan | None = None
        self._kept_out_since: int | None = None

    def is_due(self, decode_steps: int) -> bool:
        """Whether a plan is to be made: there is none, or it has served its time."""
        plan = self.plan
        if plan is None:
            return True
        age = decode_steps - plan.decode_step
        steps = self._settings.replan_steps * (1 if plan.most_at_once is not None else IDLE_PLANS)
        return not 0 <= age < steps

    def keeps_out(self, running_count: int, decode_steps: int) -> bool:
        """Whether the plan keeps the next one out beside so many that run: no longer than ``max_held_steps`` in a row.

        Beliefs may be wrong in a way that renews a plan for ever: runners that are always about to end.
        """
        plan = self.plan
        if plan is None or plan.most_at_once is None or running_count < plan.most_at_once:
            self._kept_out_since = None
            return False
        since = self._kept_out_since
        if since is None or since > decode_steps:
            self._kept_out_since = since = decode_steps
        return decode_steps - since < self._settings.max_held_steps

    def started(self) -> None:
        """One has started: the next is kept out anew."""
        self._kept_out_since = None

    def make(
        self,
        running: Sequence[RequestFacts],
        first: Sequence[RequestFacts],
        waiting_count: int,
        server: ServerFacts,
    ) -> StartPlan:
        """Return a new plan.

        Args:
            running: those that decode.
            first: the first ``MOST_PLAYED`` of the queue, in their order.
            waiting_count: of the whole queue.
            server: as it is.
        """
        most = min(server.most_running, len(running) + len(first))
        at_once, gain = self._best(running, first, waiting_count, most)
        self.plan = StartPlan(server.decode_steps, at_once, gain)
        return self.plan

    def _best(
        self, running: Sequence[RequestFacts], first: Sequence[RequestFacts], waiting_count: int, most: int
    ) -> tuple[int | None, float]:
        numbers = sorted({max(1, round(share * most)) for share in SHARES} - {most}, reverse=True)
        if not running or not first or not numbers:
            return None, 0.0
        everyone = [*running, *first]
        context = sum([request.context_tokens for request in everyone]) / len(everyone)
        row_ms = self._cost.decode_row_ms + self._cost.decode_context_token_ms * context
        cost = StepCost(self._cost.decode_fixed_ms, row_ms)
        starts = Columns.of(first, self._belief.groups)
        new = np.array([float(request.uncached_tokens) for request in first])
        prefill_ms = self._cost.prefill_marginal_ms(new, starts.context).tolist()
        pass_ms = self._cost.prefill_fixed_ms
        left = self._belief.scenarios(Columns.of(running, self._belief.groups), FUTURES).tolist()
        answers = self._belief.scenarios(starts, FUTURES).tolist()
        behind = waiting_count - len(first)
        # Before any step was counted it may be as high as can be.
        load = min(1.0, self._demand.load(cost.token_ms(most))) or 1.0

        def played(at_once: int) -> tuple[FloatArray, FloatArray]:
            ends = [
                served_ms(ours, list(zip(prefill_ms, theirs, strict=True)), at_once, cost, pass_ms)
                for ours, theirs in zip(left, answers, strict=True)
            ]
            totals, makespans = np.array(ends).T
            return totals + behind * makespans, makespans

        all_ms, all_makespan = played(most)
        best, best_gain = None, 0.0
        if all_ms.min() <= 0.0:
            # Nothing takes time.
            return best, best_gain
        for at_once in numbers:
            total, makespan = played(at_once)
            gains = 1.0 - total / all_ms
            lost = float((makespan / all_makespan).mean()) - 1.0
            gain = float(gains.mean() - gains.std()) - ARRIVALS_PRICE * load * max(0.0, lost)
            if gain > best_gain:
                best, best_gain = at_once, gain
        if best_gain < self._settings.hold_gain:
            return None, 0.0
        return best, best_gain
