"""What gravity adds to a decode step on the CPU platform: scoring the states, handing them over, deciding the tiers.

Measured in the functions that a server calls, for 1, 8 and 16 requests with the default model's 576 hidden numbers; the bars are
one per cent of its decode steps of about 7, 14 and 21 ms.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from harness import Claim, bootstrap_median, claim, run_facts, write_result

from sgl_entropic.config import GravityConfig
from sgl_entropic.gravity.narrative import Narrative
from sgl_entropic.runtime.auxiliary import DeviceReadings
from sgl_entropic.runtime.gravity.meter import Meter
from sgl_entropic.runtime.gravity.settings import settings_of
from sgl_entropic.trace.counters import Counters

HIDDEN, VOCABULARY, PLACES = 576, 49_152, 2049
BARS_US = {1: 70, 8: 140, 16: 210}
STEPS = 64


def step_us(rows: int, rounds: int) -> list[float]:
    """Microseconds of a step with so many rows, one sample a round."""
    config = GravityConfig(enabled=True, mean_rows=0)
    table = torch.zeros(PLACES, 8, dtype=torch.int32)
    meter = Meter.of(config, table, HIDDEN, Counters(), compiled=True)
    batch = SimpleNamespace(req_pool_indices=torch.randperm(PLACES)[:rows])
    steps = [torch.randn(rows, HIDDEN) for _ in range(STEPS)]
    readings: Any = DeviceReadings(None, None)  # type: ignore[arg-type]
    samples = []
    for _ in range(rounds):
        narratives = [Narrative(settings_of(config), VOCABULARY) for _ in range(rows)]
        begin = time.perf_counter()
        for index, hidden in enumerate(steps):
            told = replace(readings, gravity=meter.score(hidden, batch, rows, None))
            for narrative, gravity, energy in zip(narratives, *told.gravity.tolist(), strict=True):
                narrative.add(index, entropy_nats=1.0, surprisal_nats=1.0, gravity=gravity, energy=energy)
        samples.append((time.perf_counter() - begin) / STEPS * 1e6)
    return samples


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    claims: list[Claim] = []
    samples = {}
    for rows, bar in BARS_US.items():
        samples[rows] = step_us(rows, options.rounds)
        value, interval = bootstrap_median(samples[rows], options.seed)
        claims.append(claim(f"gravity_step_us_{rows}", value, interval, "us", f"<= {bar}"))
    write_result("gravity_cost", claims, run_facts(options.seed), samples)


if __name__ == "__main__":
    main()
