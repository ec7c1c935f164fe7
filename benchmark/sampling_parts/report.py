"""From answers to rows of measures, tables with intervals, and claims."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from harness import Claim, bootstrap_median, claim

from sampling_parts import cost, measures
from sampling_parts.client import Answer
from sampling_parts.measures import MeasureError

Row = dict[str, float | None]
# By arm, then target, then prompt.
Rows = dict[str, dict[float, list[Row]]]

RMS_BAR, MIROSTAT_BAR, OSCILLATION_BAR, LOOP_BAR, TPS_BAR = "<= 0.6", "<= 1", "<= 0.8", "<= 0", ">= 0.98"
# Of the printed table; the result holds all measures.
SHOWN = {
    "rms_nats": "rms",
    "surprisal_rms_nats": "rms surpr",
    "mean_nats": "mean H",
    "oscillation_nats": "oscill",
    "settling_tokens": "settling",
    "settled": "settled",
    "saturated_share": "saturated",
    "repetition_4": "rep-4",
    "distinct_2": "dist-2",
    "loop": "loops",
    "perplexity": "ppl",
}


def tracking_row(answer: Answer, target: float) -> Row:
    """How well an answer kept to ``target``; see the page of the benchmark for each."""
    sampled = answer.sampled_nats
    settling = measures.settling_tokens(sampled, target)
    return {
        "rms_nats": measures.rms_from(sampled, target),
        "mean_nats": measures.mean(sampled),
        "oscillation_nats": measures.oscillation(sampled),
        "settled": float(settling is not None),
        "settling_tokens": settling,
        "saturated_share": measures.share(answer.saturated) if answer.saturated else None,
        "temperature": measures.mean(answer.temperature) if answer.temperature else None,
        "model_entropy_nats": measures.mean(answer.model_nats),
        "surprisal_rms_nats": measures.rms_from(answer.surprisal_nats, target),
    }


def text_row(answer: Answer, ends: Sequence[int]) -> Row:
    """What the text is like: whole, and ``_to_end`` as a user gets it who lets the model stop."""
    ended = measures.until(answer.ids, ends)
    capped = len(ended) == len(answer.ids)
    loop = measures.ends_in_cycle(answer.ids)
    return {
        "repetition_4": measures.repetition(answer.ids, 4),
        "distinct_2": measures.distinct(answer.ids, 2),
        "loop": float(loop),
        "surprisal_nats": measures.mean(answer.surprisal_nats, 0),
        "tokens_to_end": len(ended),
        "repetition_4_to_end": measures.repetition(ended, 4),
        "distinct_2_to_end": measures.distinct(ended, 2),
        "loop_to_end": float(capped and loop),
    }


def summary(rows: Sequence[Row], seed: int) -> dict[str, dict[str, float]]:
    """Mean of each measure over the prompts that have it, its interval, and how many those are.

    ``perplexity`` is the exponential of the mean surprisal: the geometric mean of the prompts' perplexities.
    """
    result = {}
    for name in rows[0]:
        values = [value for row in rows if (value := row[name]) is not None]
        if not values:
            continue
        value, (low, high) = measures.mean_interval(values, seed)
        result[name] = {"value": value, "low": low, "high": high, "prompts": len(values)}
        if name == "surprisal_nats":
            figures = {"value": math.exp(value), "low": math.exp(low), "high": math.exp(high)}
            result["perplexity"] = {**figures, "prompts": len(values)}
    return result


def summaries(rows: Rows, seed: int) -> dict[str, dict[str, Any]]:
    """:func:`summary` by arm and target."""
    return {
        arm: {f"{target:g}": summary(own, seed) for target, own in by_target.items()}
        for arm, by_target in rows.items()
    }


def table(made: Mapping[str, Mapping[str, Mapping[str, Mapping[str, float]]]]) -> str:
    """The means of all arms and targets as text."""
    present = {name for by_target in made.values() for one in by_target.values() for name in one}
    columns = [name for name in SHOWN if name in present]
    lines = [f"{'target':>6} {'arm':24}" + "".join(f"{SHOWN[name]:>11}" for name in columns)]
    for target in dict.fromkeys(target for by_target in made.values() for target in by_target):
        for arm, by_target in made.items():
            if target in by_target:
                cells = [by_target[target].get(name, {}).get("value") for name in columns]
                texts = [f"{'-' if cell is None else format(cell, '.3f'):>11}" for cell in cells]
                lines.append(f"{target:>6} {arm:24}" + "".join(texts))
    return "\n".join(lines)


def packed(rows: Rows) -> list[dict[str, Any]]:
    """The rows for the result file: a line for each measure, a word for each prompt, ``-`` where it is undefined."""
    return [
        {
            "arm": arm,
            "target_nats": target,
            **{
                name: " ".join("-" if row[name] is None else f"{row[name]:.5g}" for row in own)
                for name in own[0]
            },
        }
        for arm, by_target in rows.items()
        for target, own in by_target.items()
    ]


def column(rows: Rows, arm: str, name: str) -> list[list[float]]:
    """A measure of an arm, by target, by prompt.

    Raises:
        MeasureError: the arm is missing or empty, or one value is.
    """
    result = []
    for target, own in rows.get(arm, {}).items():
        values = [row.get(name) for row in own]
        if not values or any(value is None for value in values):
            raise MeasureError(f"{arm} at {target:g} nats: {name} is missing")
        result.append([float(value) for value in values if value is not None])
    if not result:
        raise MeasureError(f"{arm} was not measured")
    return result


def per_target(rows: Rows, arm: str, other: str, name: str, seed: int) -> dict[str, dict[str, float]]:
    """The ratio of a claim at each target alone."""
    result = {}
    targets = rows[arm]
    for target, one, peer in zip(targets, column(rows, arm, name), column(rows, other, name), strict=True):
        value, (low, high) = measures.ratio_interval([one], [peer], seed)
        result[f"{target:g}"] = {"value": value, "low": low, "high": high}
    return result


def ratio_claim(name: str, rows: Rows, sides: tuple[str, str], measure: str, bar: str, seed: int) -> Claim:
    """A claim of one arm's measure over another's; see ``measures.ratio_interval``."""
    upper, lower = (column(rows, arm, measure) for arm in sides)
    value, interval = measures.ratio_interval(upper, lower, seed)
    return claim(name, value, interval, "ratio", bar)


def loop_claim(rows: Rows, arm: str, other: str, seed: int) -> Claim:
    """Share of answers that end in a cycle, less that of ``other``: 0 over 0 is no ratio, and loops may be rare."""
    sides = [column(rows, name, "loop") for name in (arm, other)]
    value, interval = measures.difference_interval(sides[0], sides[1], seed)
    return claim("sampling_loop_rate_vs_fixed", value, interval, "share less share", LOOP_BAR)


def validity(outcomes: Mapping[str, Sequence[str]], arm: str, other: str, seed: int) -> dict[str, Any]:
    """Share of valid documents of two arms, and of the first less the second, each with its interval over schemas."""
    sides = [[float(outcome == "valid") for outcome in outcomes[name]] for name in (arm, other)]
    figures = {
        name: measures.mean_interval(side, seed) for name, side in zip((arm, other), sides, strict=True)
    }
    figures["difference"] = measures.difference_interval(sides[:1], sides[1:], seed)
    return {
        name: {"value": value, "low": low, "high": high} for name, (value, (low, high)) in figures.items()
    }


def cost_claims(samples: Sequence[cost.Sample], arm: str, seed: int) -> list[Claim]:
    """Median over rounds of the ratio of rates, at each number of clients."""
    result = []
    for clients in dict.fromkeys(sample["clients"] for sample in samples):
        median, interval = bootstrap_median(cost.ratios(samples, arm, clients), seed)
        result.append(claim(f"sampling_tps_ratio_{clients}", median, interval, "ratio", TPS_BAR))
    return result
