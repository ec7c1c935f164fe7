"""From answers to samples, and from samples of several rounds to figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eviction_load.client import Answer

Sample = dict[str, Any]
Figure = Callable[[Sequence[Sample]], float]
_PLACES = 4


def sample_of(
    answers: Sequence[Answer], counted: Mapping[str, int], warm_s: float, first_tokens: int
) -> Sample:
    """What is kept of one load at one arm: a row for each request, in columns, in order of the due times.

    Args:
        answers: of the load.
        counted: by how much the server's counters rose.
        warm_s: requests that were due before are sent to fill the cache and counted in no figure.
        first_tokens: prompt tokens of the counted requests that no cache could hold.
    """
    rows = sorted(answers, key=lambda answer: (answer.due_s, answer.session.name, answer.turn))
    return {
        "duration_s": round(max(a.end_s for a in rows) - warm_s, _PLACES),
        "first_tokens": first_tokens,
        "counters": {name: count for name, count in counted.items() if count},
        "counted": [int(a.due_s >= warm_s) for a in rows],
        "session": [a.session.name for a in rows],
        "turn": [a.turn for a in rows],
        "kind": [a.session.kind for a in rows],
        "due_s": [round(a.due_s, _PLACES) for a in rows],
        "pushed_s": [round(a.asked_s - a.due_s, _PLACES) for a in rows],
        "late_s": [round(a.sent_s - a.asked_s, _PLACES) for a in rows],
        "ttft_s": [round(a.ttft_s, _PLACES) for a in rows],
        "latency_s": [round(a.end_s - a.asked_s, _PLACES) for a in rows],
        "prompt_tokens": [a.prompt_tokens for a in rows],
        "cached_tokens": [a.cached_tokens for a in rows],
        "output_tokens": [a.output_tokens for a in rows],
        "retractions": [a.retractions for a in rows],
        "cut": [int(a.cut) for a in rows],
        "digest": [a.digest for a in rows],
    }


def column(samples: Sequence[Sample], name: str) -> NDArray[np.float64]:
    """One column of the counted requests of all ``samples``."""
    parts = [np.asarray(s[name], np.float64)[np.asarray(s["counted"], bool)] for s in samples]
    return np.concatenate(parts)


def computed(samples: Sequence[Sample]) -> float:
    """Prompt tokens that were computed because no cache had them."""
    return float((column(samples, "prompt_tokens") - column(samples, "cached_tokens")).sum())


def computed_again(samples: Sequence[Sample]) -> float:
    """Those among them that had been computed before; at least 0, as the first ones are known in whole blocks only."""
    return max(0.0, computed(samples) - sum(float(s["first_tokens"]) for s in samples))


def per_second(samples: Sequence[Sample], *names: str) -> float:
    """Tokens of columns over the time from the first counted request's turn to the last answer."""
    tokens = sum(float(column(samples, name).sum()) for name in names)
    return tokens / sum(float(s["duration_s"]) for s in samples)


def _quantile(name: str, share: float) -> Figure:
    return lambda samples: float(np.quantile(column(samples, name), share))


FIGURES: dict[str, Figure] = {
    "computed_tokens": computed,
    "computed_again_tokens": computed_again,
    "hit_share": lambda s: float(column(s, "cached_tokens").sum() / column(s, "prompt_tokens").sum()),
    "ttft_mean_s": lambda s: float(column(s, "ttft_s").mean()),
    "ttft_p50_s": _quantile("ttft_s", 0.5),
    "ttft_p90_s": _quantile("ttft_s", 0.9),
    "latency_mean_s": lambda s: float(column(s, "latency_s").mean()),
    "total_s": lambda s: float(np.mean([one["duration_s"] for one in s])),
    "tokens_per_s": lambda s: per_second(s, "prompt_tokens", "output_tokens"),
    "requests": lambda s: float(len(column(s, "ttft_s"))),
    "pushed_requests": lambda s: float((column(s, "pushed_s") > 0).sum()),
    "latest_send_s": lambda s: float(column(s, "late_s").max()),
    "retractions": lambda s: float(column(s, "retractions").sum()),
    "cut_answers": lambda s: float(column(s, "cut").sum()),
}


def figures_of(samples: Sequence[Sample]) -> dict[str, float]:
    """Every figure of the samples of one load and arm."""
    return {name: figure(samples) for name, figure in FIGURES.items()}


def equal_answers(one: Sequence[Sample], other: Sequence[Sample]) -> float:
    """Share of requests with the same tokens in two arms' samples of the same rounds."""
    same = [
        np.asarray(mine["digest"]) == np.asarray(theirs["digest"])
        for mine, theirs in zip(one, other, strict=True)
    ]
    return float(np.concatenate(same).mean())
