"""Ratios of our eviction over LRU's, over all rounds and loads, and the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness import Claim, claim
from scheduling_load.claims import NoRatioError, ratio_of, rounds_of

from eviction_load.measures import FIGURES, Sample, equal_answers, figures_of
from eviction_load.servers import ENTROPIC, GRAVITY, LRU_PYTHON, LRU_RUST
from eviction_load.sessions import NAMES


@dataclass(frozen=True, slots=True)
class Wanted:
    """A claim: a figure of our arm over that of another, the geometric mean over the loads that ran."""

    name: str
    figure: str
    peer: str
    bar: str


CLAIMS = tuple(
    Wanted(f"evict_server_{short}_vs_{name}", figure, peer, bar)
    for peer, name in ((LRU_PYTHON, "lru"), (LRU_RUST, "lru_rust"))
    for short, figure, bar in (
        ("recompute", "computed_tokens", "<= 0.85"),
        ("ttft_p90", "ttft_p90_s", "<= 0.9"),
    )
)
PAIRS = (
    (ENTROPIC, LRU_PYTHON),
    (ENTROPIC, LRU_RUST),
    (GRAVITY, LRU_PYTHON),
    (GRAVITY, ENTROPIC),
    (LRU_PYTHON, LRU_RUST),
)
_BESIDE = (
    "computed_tokens",
    "computed_again_tokens",
    "hit_share",
    "ttft_p50_s",
    "ttft_p90_s",
    "total_s",
    "tokens_per_s",
)


def claims_of(samples: Sequence[Sample], seed: int) -> tuple[list[Claim], dict[str, Any], list[str]]:
    """The claims whose arms ran, every ratio of each load beside them, and why a claim is missing."""
    made: list[Claim] = []
    missing: list[str] = []
    loads = loads_of(samples)
    arms = {s["arm"] for s in samples}
    for one in CLAIMS:
        if not {ENTROPIC, one.peer} <= arms:
            missing.append(f"{one.name}: {ENTROPIC} or {one.peer} did not run")
            continue
        try:
            value, ends = ratio_of(samples, loads, FIGURES[one.figure], (ENTROPIC, one.peer), seed)
        except NoRatioError as error:
            missing.append(f"{one.name}: {error}")
            continue
        made.append(claim(one.name, value, ends, "ratio", one.bar))
    beside = {
        f"{ours}_vs_{peer}": _ratios(samples, loads, (ours, peer), seed)
        for ours, peer in PAIRS
        if {ours, peer} <= arms
    }
    return made, beside, missing


def _ratios(
    samples: Sequence[Sample], loads: Sequence[str], arms: tuple[str, str], seed: int
) -> dict[str, dict[str, list[float]]]:
    found: dict[str, dict[str, list[float]]] = {}
    for load in loads:
        sides = [rounds_of(samples, load, arm) for arm in arms]
        if [s["round"] for s in sides[0]] != [s["round"] for s in sides[1]]:
            continue
        found[load] = {"equal_answers_share": [equal_answers(*sides)]}
        for name in _BESIDE:
            try:
                value, ends = ratio_of(samples, [load], FIGURES[name], arms, seed)
            except NoRatioError:
                continue
            found[load][name] = [value, *ends]
    return found


def loads_of(samples: Sequence[Sample]) -> list[str]:
    """The loads that ran, in the order of the catalogue."""
    present = {s["workload"] for s in samples}
    return [name for name in NAMES if name in present]


def tables(samples: Sequence[Sample]) -> dict[str, dict[str, dict[str, float]]]:
    """All figures by load and arm."""
    arms = dict.fromkeys(s["arm"] for s in samples)
    return {
        load: {arm: figures_of(chosen) for arm in arms if (chosen := rounds_of(samples, load, arm))}
        for load in loads_of(samples)
    }


_COLUMNS = (
    ("hits", "hit_share", ".4f"),
    ("computed", "computed_tokens", ".0f"),
    ("again", "computed_again_tokens", ".0f"),
    ("ttft p50", "ttft_p50_s", ".3f"),
    ("p90 s", "ttft_p90_s", ".3f"),
    ("total s", "total_s", ".2f"),
    ("tok/s", "tokens_per_s", ".1f"),
    ("requests", "requests", ".0f"),
    ("pushed", "pushed_requests", ".0f"),
    ("late s", "latest_send_s", ".2f"),
    ("retract", "retractions", ".0f"),
    ("cut", "cut_answers", ".0f"),
)


def table(content: dict[str, dict[str, dict[str, float]]]) -> str:
    """The same for people."""
    lines = [f"{'load':11} {'arm':17}" + "".join(f"{title:>10}" for title, _, _ in _COLUMNS)]
    for load, arms in content.items():
        for arm, figures in arms.items():
            cells = "".join(f"{figures[name]:>10{form}}" for _, name, form in _COLUMNS)
            lines.append(f"{load:11} {arm:17}{cells}")
    return "\n".join(lines)
