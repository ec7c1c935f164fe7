"""What ``scheduling.py`` measured at the real server, as requests to simulate and as costs of its passes.

The file has no times of passes, but when every request was sent, when its first token came and its last.
Between those two a request takes part in every decode step (none is held where costs are read) and stands
still in every prefill pass, so its time is a sum over what the others did meanwhile:

    decode_ms = d0 steps + d1 rows + d2 context + p0 passes + p1 uncached

with the tokens of all that decoded in that time as rows, the sum of their contexts, and the prompts that were
computed in it. A request that finds a free place and an empty queue adds an equation of its own; as SGLang's
schedule overlaps, its first token is seen when the decode step after its prefill has ended:

    ttft_ms = overhead + half a step + p0 + p1 uncached + a step
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from scheduling_parts.machine import Costs
from scheduling_parts.requests import Floats, Requests
from scheduling_parts.workloads import BLOCK, PREFIX_BLOCKS, grouped

Sample = Mapping[str, Any]
LEAST_TOKENS = 9
"""Shorter answers say little of a step."""
SAME_PASS_MS = 12.0
"""First tokens so close to each other come from one prefill pass: the shortest takes longer."""
_UNKNOWNS = 6
_PREFIX = "shared_"


@dataclass(frozen=True, slots=True)
class Fitted:
    """Costs read from samples.

    Attributes:
        costs: of the engine.
        overhead_ms: of a request beside the engine: HTTP, tokens to text and back, the way between processes.
        requests: equations they were read from.
        median_error: median of their relative errors.
    """

    costs: Costs
    overhead_ms: float
    requests: int
    median_error: float


def requests_of(sample: Sample, delay_ms: float = 0.0) -> Requests:
    """The requests of a sample in order of arrival, each ``delay_ms`` later than it was sent.

    Those not ``hidden`` are of a length that the server was told; kinds name the prefixes of
    ``PREFIX_BLOCKS``. The flow of entropy is a request's own as measured, which no policy knows before it has
    generated tokens.
    """
    order = np.argsort(sample["asked_s"], kind="stable")
    column = {
        name: np.array(sample[name])[order]
        for name in ("asked_s", "prompt_tokens", "output_tokens", "most_new", "hidden", "kind", "tau_nats")
    }
    names = sorted({kind for kind in column["kind"].tolist() if kind.startswith(_PREFIX)})
    group = np.array([names.index(kind) if kind in names else -1 for kind in column["kind"].tolist()])
    made = grouped(
        column["asked_s"] * 1000.0 + delay_ms,
        column["prompt_tokens"],
        column["output_tokens"],
        group,
        np.full(len(names), PREFIX_BLOCKS),
    )
    assert made.block_tokens == BLOCK
    return replace(
        made,
        most_new=column["most_new"],
        ignores_eos=column["hidden"] == 0,
        flow_nats=column["tau_nats"] / np.maximum(1, column["output_tokens"] - 1),
    )


def fit(samples: Sequence[Sample], most_running: int) -> Fitted:
    """Costs by least squares of relative errors; none is below 0.

    Args:
        samples: of arms that hold no request.
        most_running: places of the engine.

    Raises:
        ValueError: there are too few requests.
    """
    tables = [table for sample in samples for table in _equations(sample, most_running)]
    rows = np.concatenate(tables) if tables else np.zeros((0, _UNKNOWNS + 1))
    if len(rows) < 4 * _UNKNOWNS:
        raise ValueError(f"costs cannot be read from {len(rows)} requests")
    design = rows[:, :_UNKNOWNS] / rows[:, _UNKNOWNS:]
    kept, found = list(range(_UNKNOWNS)), np.zeros(_UNKNOWNS)
    while kept:
        found[:] = 0.0
        found[kept] = np.linalg.lstsq(design[:, kept], np.ones(len(rows)), rcond=None)[0]
        negative = [at for at in kept if found[at] < 0.0]
        if not negative:
            break
        kept.remove(min(negative, key=lambda at: found[at] * float(design[:, at].mean())))
    step, row, context, fixed, token, overhead = found.tolist()
    error = float(np.median(np.abs(design @ found - 1.0)))
    return Fitted(Costs(fixed, token, 0.0, step, row, context), overhead, len(rows), error)


def slowness(sample: Sample, fitted: Fitted, most_running: int) -> float:
    """How many times as long as ``fitted`` says decoding took in a sample, prefill passes included.

    A shared machine is not equally fast at all times, and arms are measured one after the other.
    """
    costs = fitted.costs
    known = np.array(
        [
            costs.decode_fixed_ms,
            costs.decode_row_ms,
            costs.decode_context_ms,
            costs.prefill_fixed_ms,
            costs.prefill_token_ms,
            fitted.overhead_ms,
        ]
    )
    decodes, _ = _equations(sample, most_running)
    return float(decodes[:, _UNKNOWNS].sum() / (decodes[:, :_UNKNOWNS] @ known).sum())


def _equations(sample: Sample, most_running: int) -> tuple[Floats, Floats]:
    """Equations of decoding and of first tokens, [n, 7] each: factors of d0, d1, d2, p0, p1, overhead; ms."""
    asked, ttft, latency = (
        np.array(sample[name], float) * 1000.0 for name in ("asked_s", "ttft_s", "latency_s")
    )
    first, end = asked + ttft, asked + latency
    prompt, output = (np.array(sample[name], float) for name in ("prompt_tokens", "output_tokens"))
    uncached = prompt - np.array(sample["cached_tokens"], float)
    decode_ms = np.maximum(end - first, 1e-6)
    decodes, firsts = [], []
    for one in range(len(asked)):
        if output[one] >= LEAST_TOKENS:
            begin = np.maximum(first, first[one])
            share = np.maximum(np.minimum(end, end[one]) - begin, 0.0) / decode_ms
            tokens = share * (output - 1.0)
            context = prompt + output * ((begin - first) / decode_ms + share / 2.0)
            passes = (first > first[one] + SAME_PASS_MS) & (first <= end[one])
            decodes.append(
                (
                    output[one] - 1.0,
                    tokens.sum(),
                    (tokens * context).sum(),
                    float(passes.sum()),
                    uncached[passes].sum(),
                    0.0,
                    end[one] - first[one],
                )
            )
        # those that waited or were prefilled while it did, itself among them
        queued = int(((asked < first[one]) & (first > asked[one])).sum())
        runs = (first <= asked[one]) & (end > asked[one])
        if queued == 1 and runs.sum() < most_running:
            rows = float(runs.sum())
            context = float((prompt + output / 2.0)[runs].sum())
            steps = (0.5 * min(rows, 1.0) + 1.0, 1.5 * rows + 1.0, 1.5 * context + prompt[one])
            firsts.append((*steps, 1.0, uncached[one], 1.0, ttft[one]))
    return (
        np.array(decodes).reshape(-1, _UNKNOWNS + 1),
        np.array(firsts).reshape(-1, _UNKNOWNS + 1),
    )
