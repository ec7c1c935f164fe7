"""When requests end if so many run at a time: list scheduling with steps whose cost depends on the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace


@dataclass(frozen=True, slots=True)
class StepCost:
    """Ms of a decode step: a fixed part and one for each row."""

    fixed_ms: float
    row_ms: float

    def step_ms(self, batch: int) -> float:
        """Return the ms of a step of ``batch`` rows."""
        return self.fixed_ms + self.row_ms * batch

    def token_ms(self, batch: int) -> float:
        """Return the ms of each token of such a step."""
        return self.step_ms(batch) / batch


def completion_ms(
    lengths: Sequence[float], at_once: int, cost: StepCost, *, running: int, weight: float
) -> float:
    """Return the sum of completion times when ``at_once`` requests run at a time and the next follows one that ends.

    Args:
        lengths: tokens to come, in order of start; those that run first, then those that wait.
        at_once: rows of a step while enough are left.
        cost: of a step.
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
    full_ms = cost.step_ms(len(rows))
    # From the last start on rows run out, and steps become cheaper.
    clock_ms, step, left = last_start * full_ms, last_start, len(rows)
    end_ms = {}
    for end in sorted(rows):
        clock_ms += (end - step) * cost.step_ms(left)
        end_ms[end] = clock_ms
        step, left = end, left - 1
    total = 0.0
    for place, end in enumerate(ends):
        total += (end_ms[end] if end > last_start else end * full_ms) * (1.0 if place < running else weight)
    return total


def served_ms(
    running: Sequence[float],
    starts: Sequence[tuple[float, float]],
    at_once: int,
    cost: StepCost,
    pass_ms: float,
) -> tuple[float, float]:
    """Return the sum of completion times and the last one, when places up to ``at_once`` are filled as they get free.

    Nobody decodes during a prefill, and all for which there are places share one.

    Args:
        running: tokens to come of those that run.
        starts: ms of prefill and tokens to come of those that wait, in the order of their start.
        at_once: requests that run at a time; more go on if they run already.
        cost: of a decode step.
        pass_ms: of a prefill, whatever is in it.
    """
    ends = list(running)
    heapify(ends)
    rows, begun, clock_ms, step, total_ms = len(ends), 0, 0.0, 0.0, 0.0
    while ends or begun < len(starts):
        if begun < len(starts) and rows < at_once:
            clock_ms += pass_ms
            for prefill_ms, tokens in starts[begun : begun + at_once - rows]:
                clock_ms += prefill_ms
                heappush(ends, step + tokens)
                begun += 1
            rows = len(ends)
        end = ends[0]
        clock_ms += (end - step) * cost.step_ms(rows)
        step = end
        while ends and ends[0] == end:
            heappop(ends)
            total_ms += clock_ms
        rows = len(ends)
    return total_ms, clock_ms


def most_saved_share(count: int, at_once: int, cost: StepCost) -> float:
    """Return the largest share of the sum of completion times that fewer at once may save, of ``count``.

    It holds for all lengths, if nobody waits. A completion time is ``fixed_ms`` for each step until then, and
    ``row_ms`` for each token that all generated until then. In whatever order, the steps of all ends sum to
    no less than with the shortest first, where from the longest on each length counts ``ceil(i / at_once)``
    times (Conway, Maxwell and Miller 1967), and of the tokens, no less than the j shortest lengths were
    generated at the j-th end. Both sums, and that of all at once, add up over the times in which exactly m of
    the lengths are not yet reached, so their quotient is at least the smallest quotient of any m.
    """
    steps, least = 0, 1.0
    for left in range(1, count + 1):
        steps += -(-left // at_once)
        least_ms = cost.fixed_ms * steps + cost.row_ms * (left * (left + 1) / 2)
        least = min(least, least_ms / (left * cost.step_ms(left)))
    return 1.0 - least
