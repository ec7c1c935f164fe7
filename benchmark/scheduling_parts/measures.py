"""From finished jobs to figures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scheduling_parts.engine import Engine, Totals
from scheduling_parts.job import Job
from scheduling_parts.requests import Floats, Ints

COLUMNS = (
    "index",
    "latency_ms",
    "ttft_ms",
    "done_ms",
    "wait_ms",
    "wait_tokens",
    "overtaken_tokens",
    "recomputed_tokens",
    "ideal_ms",
)


def rows(engine: Engine) -> Floats:
    """One row for each finished job, columns as in ``COLUMNS``."""
    costs = engine.machine.costs

    def ideal(job: Job) -> float:
        alone = costs.steps_ms(job.output - 1, 1, job.prompt)
        return costs.prefill_fixed_ms + costs.prefill_ms(job.prompt, job.prompt) + alone

    return np.array(
        [
            (
                job.index,
                job.done_ms - job.arrival_ms,
                job.first_ms - job.arrival_ms,
                job.done_ms,
                job.longest_wait_ms,
                job.longest_wait_tokens,
                job.overtaken,
                job.recomputed,
                ideal(job),
            )
            for job in engine.done
        ]
    ).reshape(-1, len(COLUMNS))


def jain(shares: Sequence[float]) -> float:
    """Jain's index of fairness: 1 when all get the same, 1 / n when one gets all."""
    values = np.asarray(shares, float)
    return float(values.sum() ** 2 / (len(values) * (values**2).sum()))


def summary(table: Floats, engines: Sequence[Totals], work: Ints, client: Ints) -> dict[str, float]:
    """Figures of a run.

    Args:
        table: ``rows`` of all engines.
        engines: totals of each.
        work: prompt and output tokens of every request, by index.
        client: client of every request, by index.
    """
    at = {name: table[:, place] for place, name in enumerate(COLUMNS)}
    index = at["index"].astype(int)
    begin = (at["done_ms"] - at["latency_ms"]).min()
    last_arrival = (at["done_ms"] - at["latency_ms"]).max()
    span_s = (at["done_ms"].max() - begin) / 1000
    result = {
        "requests": float(len(table)),
        "latency_mean_ms": at["latency_ms"].mean(),
        "latency_p50_ms": np.quantile(at["latency_ms"], 0.5),
        "latency_p99_ms": np.quantile(at["latency_ms"], 0.99),
        "ttft_mean_ms": at["ttft_ms"].mean(),
        "ttft_p99_ms": np.quantile(at["ttft_ms"], 0.99),
        "requests_per_s": len(table) / span_s,
        "tokens_per_s": work[index].sum() / span_s,
        "recomputed_tokens": float(sum(one.recomputed_tokens for one in engines)),
        "retractions": float(sum(one.retractions for one in engines)),
        "held_share": sum(one.held_rows for one in engines)
        / max(1, sum(one.decoded_tokens + one.held_rows for one in engines)),
        "cached_share": sum(one.cached_tokens for one in engines)
        / max(1, sum(one.cached_tokens + one.prefilled_tokens for one in engines)),
        "longest_wait_ms": at["wait_ms"].max(),
        "longest_wait_tokens": at["wait_tokens"].max(),
        "most_overtaken_tokens": at["overtaken_tokens"].max(),
    }
    many = int(client.max()) + 1
    if many > 1:
        who, in_time = client[index], at["done_ms"] <= last_arrival
        served = [float(work[index][in_time & (who == one)].sum()) for one in range(many)]
        speed = [float((at["ideal_ms"] / at["latency_ms"])[who == one].mean()) for one in range(many)]
        result |= {"jain_served": jain(served), "jain_speed": jain(speed)}
        result["light_latency_mean_ms"] = at["latency_ms"][who > 0].mean()
    return {name: float(value) for name, value in result.items()}
