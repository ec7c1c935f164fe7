"""Settings of the policy tried one after the other: a coordinate search whose every step is printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from scheduling_parts import compare
from scheduling_parts.scenarios import Scenario


def run(plan: compare.Plan, scenarios: Sequence[Scenario], tried: Sequence[str], processes: int) -> None:
    """Print the ratios that the bars are about for each value of each setting, all others as in ``plan``.

    Args:
        plan: arms have to hold the policy and the peers of the bars.
        scenarios: where.
        tried: ``name=value,value``.
        processes: simulating processes.
    """
    for one in tried:
        name, _, values = one.partition("=")
        for value in values.split(","):
            settings = (*(s for s in plan.settings if s[0] != name), (name, float(value)))
            samples = compare.run(replace(plan, settings=settings), scenarios, processes, quiet=True)
            print(f"{name}={value}: {_line(samples, scenarios)}", flush=True)


def _line(samples: Sequence[compare.Sample], scenarios: Sequence[Scenario]) -> str:
    cells = []
    for scenario in scenarios:
        for bar in scenario.bars:
            found = compare.ratios(samples, scenario.name, bar)
            if found:
                cells.append(f"{bar.name.removeprefix('sim_')} {np.median(found):.3f}")
    return ", ".join(cells)
