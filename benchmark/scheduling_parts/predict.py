"""What the simulator foresees of loads that ``scheduling.py`` measured, and how far it is off.

The same requests arrive at the same times, under the same policies. Costs are read from the arm ``fcfs``
alone (``measured.py``), so nothing that was measured of the other arms is known beforehand but how fast
answers lost entropy; what an arm has learnt in a round it knows in the next, as the server does. What the
simulator is for is the ratio between arms, so its error is stated too.

The machine is shared, and one arm's twenty seconds may be a tenth faster than the next one's. So all is
foreseen a second time with one factor for each sample on all costs, read from how long its decoding took:
what then remains is the simulator's error, without the machine's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from harness import Claim, bootstrap_median, claim

from scheduling_parts.arms import OURS, make_policy
from scheduling_parts.engine import Engine
from scheduling_parts.machine import Machine
from scheduling_parts.measured import Sample, fit, requests_of, slowness
from scheduling_parts.requests import Floats

LOADS = ("mixed_0.8", "mixed_1.2")
COSTS_OF = "fcfs"
ARMS = (COSTS_OF, "hrrn", OURS)
ONE_SPEED, OWN_SPEED = "one_speed", "own_speed"
BAR = "<= 0.1"
Figures = dict[str, float]


def predict(path: Path, machine: Machine) -> dict[str, Any]:
    """The content of a result: costs as read; what was measured and foreseen of each load and arm.

    Args:
        path: result file of ``scheduling.py``.
        machine: limits of its servers; costs, and how many run at a time, are the file's.

    Raises:
        ValueError: the file lacks a load or an arm; the text says which.
    """
    content = json.loads(path.read_text())
    samples: list[Sample] = content["samples"]
    most_running = int(content["settings"]["max_running_requests"])
    chosen = [s for s in samples if s["workload"] in LOADS]
    missing = set(product(LOADS, ARMS)) - {(s["workload"], s["arm"]) for s in chosen}
    if missing:
        raise ValueError(f"{path.name} has no samples of {sorted(missing)}")
    fitted = fit([s for s in chosen if s["arm"] == COSTS_OF], most_running)
    server = replace(machine, costs=fitted.costs, most_running=most_running, overlaps=True)
    result = {
        "measured": {"file": path.name, "commit": content["commit"], "date": content["date"]},
        "costs": asdict(fitted),
        "machine": asdict(server),
    }
    for name in (ONE_SPEED, OWN_SPEED):
        rounds = []
        for arm in ARMS:
            mine = [s for s in chosen if s["arm"] == arm]
            own = [slowness(s, fitted, most_running) if name == OWN_SPEED else 1.0 for s in mine]
            rounds += _foreseen(mine, arm, server, fitted.overhead_ms, own)
        cells = [_cell(load, arm, rounds) for load, arm in product(LOADS, ARMS)]
        for one in rounds:
            del one["times"]
        result[name] = {"cells": cells, "ratios": _ratios(cells), "rounds": rounds}
    return result


def claims_of(found: Mapping[str, Any], seed: int) -> list[Claim]:
    """Medians of the errors' sizes, with intervals over loads and arms."""
    claims = []
    for of, suffix in ((ONE_SPEED, ""), (OWN_SPEED, "_own_speed")):
        errors = [abs(cell["error"]["latency_mean_s"]) for cell in found[of]["cells"]]
        ratios = [abs(ratio["error"]) for ratio in found[of]["ratios"]]
        for name, values in (("sim_error", errors), ("sim_ratio_error", ratios)):
            claims.append(claim(name + suffix, *bootstrap_median(values, seed), "share", BAR))
    return claims


def table(found: Mapping[str, Any]) -> str:
    """Figures and errors of each load and arm, then the ratios; all at one speed, then at their own."""
    lines = []
    for of in (ONE_SPEED, OWN_SPEED):
        lines.append(f"{of}: foreseen / measured (error)")
        for cell in found[of]["cells"]:
            figures = [
                f"{name.removesuffix('_s')} {_beside(cell['foreseen'][name], cell['measured'][name], error)}"
                for name, error in cell["error"].items()
            ]
            lines.append(f"{cell['workload']:10} {cell['arm']:9} " + "  ".join(figures))
        for ratio in found[of]["ratios"]:
            over = f"{ratio['arm']} / {ratio['peer']}"
            shown = _beside(ratio["foreseen"], ratio["measured"], ratio["error"])
            lines.append(f"{ratio['workload']:10} {over:18} mean {shown}")
    return "\n".join(lines)


def _beside(foreseen: float, measured: float, error: float) -> str:
    return f"{foreseen:.3f} / {measured:.3f} ({error:+.1%})"


def _foreseen(
    samples: Sequence[Sample], arm: str, machine: Machine, overhead_ms: float, factors: Sequence[float]
) -> list[dict[str, Any]]:
    """The rounds of one arm in the order in which they were run, under one policy that goes on learning.

    Args:
        samples: one for each round and load.
        arm: name of the policy.
        machine: with costs as read.
        overhead_ms: of a request, beside the engine.
        factors: of the costs in each sample.
    """
    policy, result = make_policy(arm), []
    for sample, factor in zip(samples, factors, strict=True):
        slowed = replace(machine, costs=machine.costs.slower(factor))
        jobs = sorted(
            Engine(slowed, policy, requests_of(sample, overhead_ms)).run(), key=lambda job: job.index
        )
        foreseen = {
            "latency_s": np.array([job.done_ms - job.arrival_ms + overhead_ms for job in jobs]) / 1000.0,
            "ttft_s": np.array([job.first_ms - job.arrival_ms + overhead_ms for job in jobs]) / 1000.0,
        }
        measured = {name: np.array(sample[name], float) for name in foreseen}
        result.append(
            {
                "workload": sample["workload"],
                "arm": arm,
                "round": sample["round"],
                "slowness": factor,
                "measured": _figures([measured]),
                "foreseen": _figures([foreseen]),
                "times": (measured, foreseen),
            }
        )
    return result


def _cell(load: str, arm: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One load under one arm, all rounds together."""
    mine = [row["times"] for row in rows if (row["workload"], row["arm"]) == (load, arm)]
    measured, foreseen = _figures([real for real, _ in mine]), _figures([times for _, times in mine])
    error = {name: foreseen[name] / measured[name] - 1.0 for name in measured}
    return {"workload": load, "arm": arm, "measured": measured, "foreseen": foreseen, "error": error}


def _ratios(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Mean latency of our arm over that of each other, as measured and as foreseen."""
    means = {
        (c["workload"], c["arm"]): [c[of]["latency_mean_s"] for of in ("measured", "foreseen")] for c in cells
    }
    result = []
    for load, peer in product(LOADS, ARMS[:-1]):
        measured, foreseen = (
            ours / other for ours, other in zip(means[load, OURS], means[load, peer], strict=True)
        )
        result.append(
            {
                "workload": load,
                "arm": OURS,
                "peer": peer,
                "measured": measured,
                "foreseen": foreseen,
                "error": foreseen / measured - 1.0,
            }
        )
    return result


def _figures(times: Sequence[Mapping[str, Floats]]) -> Figures:
    result = {}
    for name in ("latency_s", "ttft_s"):
        values, what = np.concatenate([one[name] for one in times]), name.removesuffix("_s")
        result[f"{what}_mean_s"] = float(values.mean())
        result[f"{what}_p99_s"] = float(np.quantile(values, 0.99))
    return result
