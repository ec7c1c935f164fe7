"""What gravity adds to a decode step on the CPU platform: scoring the states, handing them over, deciding the tiers.

In the functions that a server calls, for 1, 8 and 16 requests with the default model's 576 hidden numbers (the bars are one per
cent of its decode steps of about 7, 14 and 21 ms); then in tokens per second of two servers, one with gravity and one without,
which take turns as in telemetry_cost.py.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from harness import Claim, bootstrap_median, claim, run_facts, write_result
from telemetry_cost import CLIENTS, Load, awake, counters, run

from sgl_entropic.config import GravityConfig
from sgl_entropic.gravity.narrative import Narrative
from sgl_entropic.runtime.auxiliary import DeviceReadings
from sgl_entropic.runtime.gravity.meter import Meter
from sgl_entropic.runtime.gravity.settings import settings_of
from sgl_entropic.testing.servers import entropic_server
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


def server_samples(rounds: int, tokens: int) -> list[dict[str, Any]]:
    """Tokens per second of both servers under every load, see ``telemetry_cost.run``."""
    folder = Path(tempfile.mkdtemp(prefix="gravity_cost_"))
    arms = {
        "off": entropic_server(folder / "off.log"),
        "on": entropic_server(folder / "on.log", "--entropic-gravity", "on"),
    }
    try:
        for server in arms.values():
            server.start()
            assert server.process is not None
            os.killpg(server.process.pid, signal.SIGSTOP)
        samples = run(arms, [Load(str(n), n, 1, tokens) for n in CLIENTS], rounds)
        for name, server in arms.items():
            with awake(server):
                if (counters(server)["gravity_rows"] > 0) != (name == "on"):
                    raise RuntimeError(f"gravity {name}: the counter says otherwise")
        return samples
    finally:
        for server in arms.values():
            if server.process is not None:
                os.killpg(server.process.pid, signal.SIGCONT)
                server.stop()


def server_claims(samples: list[dict[str, Any]], seed: int) -> list[Claim]:
    """Rates with gravity over rates without, at each load and over all."""
    claims, every = [], []
    for clients in CLIENTS:
        on, off = (
            [s["tokens_per_s"] for s in samples if s["load"] == str(clients) and s["telemetry"] == name]
            for name in ("on", "off")
        )
        ratios = [with_it / without for with_it, without in zip(on, off, strict=True)]
        every += ratios
        value, interval = bootstrap_median(ratios, seed)
        claims.append(claim(f"gravity_tps_ratio_{clients}", value, interval, "ratio", ">= 0.99"))
    value, interval = bootstrap_median(every, seed)
    return [claim("gravity_tps_ratio", value, interval, "ratio", ">= 0.99"), *claims]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--server-rounds", type=int, default=8, help="0 leaves the servers out")
    parser.add_argument("--tokens", type=int, default=96, help="output tokens of a request to them")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    claims: list[Claim] = []
    samples: dict[str, Any] = {}
    for rows, bar in BARS_US.items():
        found = samples[f"step_us_{rows}"] = step_us(rows, options.rounds)
        value, interval = bootstrap_median(found, options.seed)
        claims.append(claim(f"gravity_step_us_{rows}", value, interval, "us", f"<= {bar}"))
    if options.server_rounds:
        samples["servers"] = server_samples(options.server_rounds, options.tokens)
        claims += server_claims(samples["servers"], options.seed)
    write_result("gravity_cost", claims, run_facts(options.seed), samples)


if __name__ == "__main__":
    main()
