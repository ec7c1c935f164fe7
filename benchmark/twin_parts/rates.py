"""From answers to the figures of one workload in one round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from twin_parts.client import Answer, LoadError

LEAST_WINDOW_SHARE = 0.25
# Of the tokens asked for, where a server cannot be told to go on after the model has ended its answer.
LEAST_TOKEN_SHARE = 0.25


def decode_rate(answers: Sequence[Answer], *, serial: bool) -> float:
    """Tokens per second while answers are produced, prefills left out.

    A server that works on all clients at once is measured in the window in which every client is being answered: after
    the last first token and before the first last one. A server that takes one request after another has no such
    window; there it is all tokens but the first of each answer, over the time between first and last token of each.

    Raises:
        LoadError: the window holds too few of the tokens to say anything, so the answers must be longer.
    """
    if serial:
        seconds = sum(a.arrivals_s[-1] - a.arrivals_s[0] for a in answers)
        tokens = sum(a.output_tokens * (1 - 1 / len(a.arrivals_s)) for a in answers)
        if seconds <= 0:
            raise LoadError("answers of one piece have no decode phase")
        return tokens / seconds
    begin = max(a.arrivals_s[0] for a in answers)
    end = min(a.arrivals_s[-1] for a in answers)
    inside = sum(a.tokens_until(end) - a.tokens_until(begin) for a in answers)
    share = inside / sum(a.output_tokens for a in answers)
    if end <= begin or share < LEAST_WINDOW_SHARE:
        raise LoadError(
            f"only {max(share, 0):.0%} of the tokens came while all clients were being answered; ask for longer answers"
        )
    return float(inside / (end - begin))


def figures(answers: Sequence[Answer], *, serial: bool, decode: bool) -> dict[str, Any]:
    """All figures of a workload: rates over its whole duration, and every latency.

    Inter-token times are one string of milliseconds for each request, as there are thousands of them.

    Raises:
        LoadError: there are no answers, many ended early, or :func:`decode_rate` says so.
    """
    if not answers:
        raise LoadError("no answers")
    early = [a for a in answers if a.stopped_early]
    came, asked = sum(a.output_tokens for a in early), sum(a.asked_tokens for a in early)
    if came < LEAST_TOKEN_SHARE * asked and len(early) * 2 > len(answers):
        raise LoadError(
            f"{len(early)} of {len(answers)} answers ended early, with {came} of {asked} tokens; "
            "another --seed has other prompts"
        )
    duration_s = max(a.end_s for a in answers) - min(a.sent_s for a in answers)
    result: dict[str, Any] = {
        "duration_s": round(duration_s, 4),
        "input_tokens": sum(a.input_tokens for a in answers),
        "output_tokens": sum(a.output_tokens for a in answers),
        "stopped_early": len(early),
        "input_tokens_per_s": sum(a.input_tokens for a in answers) / duration_s,
        "output_tokens_per_s": sum(a.output_tokens for a in answers) / duration_s,
        "ttft_s": [round(a.ttft_s, 4) for a in answers],
        "latency_s": [round(a.end_s - a.sent_s, 4) for a in answers],
        "inter_token_ms": [" ".join(f"{1000 * gap:.1f}" for gap in a.gaps_s) for a in answers],
    }
    if decode:
        result["decode_tokens_per_s"] = decode_rate(answers, serial=serial)
    return result


def gaps_ms(sample: dict[str, Any]) -> list[float]:
    """All inter-token times of a sample."""
    return [float(gap) for line in sample["inter_token_ms"] for gap in line.split()]


def summary(samples: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Median latencies over all requests of several rounds; ``nan`` where there are none."""
    times = [gap for sample in samples for gap in gaps_ms(sample)]
    return {
        "ttft_ms": 1000 * float(np.median([t for s in samples for t in s["ttft_s"]])),
        "gap_ms": float(np.median(times)) if times else float("nan"),
        "latency_s": float(np.median([t for s in samples for t in s["latency_s"]])),
    }
