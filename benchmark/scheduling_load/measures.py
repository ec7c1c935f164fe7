"""From answers to samples, and from samples of several rounds to figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduling_load.client import Answer
from scheduling_load.servers import COUNTED

Sample = dict[str, Any]
Figure = Callable[[Sequence[Sample]], float]
_PLACES = 4


def sample_of(answers: Sequence[Answer], counted: Mapping[str, int], window_s: float | None = None) -> Sample:
    """What is kept of one load at one arm: a row for each request, in columns, and figures that need every token.

    Args:
        answers: of the load.
        counted: by how much the server's counters rose.
        window_s: end of the window in which more is asked than can be served; until the last request was sent when not
            given. In an open loop it is the same for all arms.
    """
    begin_s = min(a.asked_s for a in answers)
    window_s = max(a.asked_s for a in answers) if window_s is None else window_s
    # Where all are asked at once there is no such time, and nothing came in it.
    span_s = max(window_s - begin_s, 10.0**-_PLACES)
    came = sum(a.tokens_until(window_s) for a in answers)
    whole = [a for a in answers if a.end_s <= window_s]
    return {
        "duration_s": round(max(a.end_s for a in answers) - begin_s, _PLACES),
        "window_s": round(span_s, _PLACES),
        "window_tokens": came,
        "window_tau_nats": round(sum(a.tau_nats for a in whole), _PLACES),
        "window_requests": len(whole),
        "counters": {name: counted[name] for name in COUNTED},
        "satisfied": satisfied(answers, window_s),
        "speed_tokens_per_s": speeds(answers),
        "asked_s": [round(a.asked_s, _PLACES) for a in answers],
        "ttft_s": [round(a.ttft_s, _PLACES) for a in answers],
        "latency_s": [round(a.latency_s, _PLACES) for a in answers],
        "prompt_tokens": [a.ask.prompt_tokens for a in answers],
        "cached_tokens": [a.cached_tokens for a in answers],
        "output_tokens": [a.ask.output_tokens for a in answers],
        "most_new": [a.ask.most_new for a in answers],
        "hidden": [int(a.ask.hidden) for a in answers],
        "kind": [a.ask.kind for a in answers],
        "retractions": [a.retractions for a in answers],
        "tau_nats": [round(a.tau_nats, _PLACES) for a in answers],
    }


def by_client(answers: Sequence[Answer]) -> dict[str, list[Answer]]:
    """The answers to each client; those to none in particular are left out."""
    result: dict[str, list[Answer]] = {}
    for answer in answers:
        if answer.ask.client_id is not None:
            result.setdefault(answer.ask.client_id, []).append(answer)
    return result


def satisfied(answers: Sequence[Answer], until_s: float) -> dict[str, float]:
    """The share of the tokens that a client asked for that it had by ``until_s``: of service, what its demand makes fair."""
    return {
        client: sum(a.tokens_until(until_s) for a in own) / sum(a.ask.output_tokens for a in own)
        for client, own in by_client(answers).items()
    }


def speeds(answers: Sequence[Answer]) -> dict[str, float]:
    """Tokens per second and outstanding request of each client."""
    return {
        client: sum(a.ask.output_tokens for a in own) / sum(a.latency_s for a in own)
        for client, own in by_client(answers).items()
    }


def jain(shares: Sequence[float]) -> float:
    """Jain's index of fairness (Jain, Chiu, Hawe 1984): 1 where all are equal, 1 / n where one has all.

    Raises:
        ValueError: there is none, or all are 0.
    """
    values = np.asarray(shares, float)
    if not len(values) or not values.any():
        raise ValueError("an index of fairness needs shares that are not all 0")
    return float(values.sum() ** 2 / (len(values) * (values**2).sum()))


def column(samples: Sequence[Sample], name: str, kind: str | None = None) -> NDArray[np.float64]:
    """One column of all ``samples``, of the requests of one kind if it is given."""
    pairs = ((v, k) for s in samples for v, k in zip(s[name], s["kind"], strict=True))
    return np.array([value for value, of in pairs if kind is None or of == kind], dtype=float)


def quotient(upper: str, lower: str) -> Figure:
    """A figure that is a sum over a sum, over all rounds."""
    return lambda samples: total(samples, upper) / total(samples, lower)


def total(samples: Sequence[Sample], name: str) -> float:
    """Sum of a number, a counter or a column over ``samples``."""
    return float(sum(np.sum(s["counters"][name] if name in COUNTED else s[name]) for s in samples))


FIGURES: dict[str, Figure] = {
    "latency_mean_s": lambda s: float(column(s, "latency_s").mean()),
    "latency_p50_s": lambda s: float(np.quantile(column(s, "latency_s"), 0.5)),
    "latency_p99_s": lambda s: float(np.quantile(column(s, "latency_s"), 0.99)),
    "ttft_mean_s": lambda s: float(column(s, "ttft_s").mean()),
    "ttft_p99_s": lambda s: float(np.quantile(column(s, "ttft_s"), 0.99)),
    "tokens_per_s": quotient("output_tokens", "duration_s"),
    "window_tokens_per_s": quotient("window_tokens", "window_s"),
    "tau_nats_per_s": quotient("tau_nats", "duration_s"),
    "window_tau_nats_per_s": quotient("window_tau_nats", "window_s"),
    "recomputed_tokens": lambda s: total(s, "recomputed_tokens"),
    # Each round's longest: over all rounds together it would be one request's.
    "cold_longest_ttft_s": lambda s: float(np.mean([column([one], "ttft_s", "cold").max() for one in s])),
    "cold_mean_ttft_s": lambda s: float(column(s, "ttft_s", "cold").mean()),
    "jain_satisfied": lambda s: float(np.mean([jain(list(one["satisfied"].values())) for one in s])),
    "jain_speed": lambda s: float(np.mean([jain(list(one["speed_tokens_per_s"].values())) for one in s])),
}
COMMON_FIGURES = tuple(FIGURES)[:9]
"""Those that every load has."""


def figures_of(samples: Sequence[Sample]) -> dict[str, float]:
    """Every figure that these samples of one load have."""
    names = list(COMMON_FIGURES)
    if "cold" in samples[0]["kind"]:
        names += ["cold_longest_ttft_s", "cold_mean_ttft_s"]
    if samples[0]["satisfied"]:
        names += ["jain_satisfied", "jain_speed"]
    counts = {name: total(samples, name) for name in COUNTED}
    return {**{name: FIGURES[name](samples) for name in names}, **counts}
