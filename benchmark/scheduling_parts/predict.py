"""What the simulator foresees of a small run of the real server, so that its error can be stated."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

from scheduling_parts.arms import make_policy
from scheduling_parts.engine import Engine
from scheduling_parts.machine import Costs, Machine
from scheduling_parts.measures import rows, summary
from scheduling_parts.workloads import listed

LIMITS = tuple(field.name for field in fields(Machine) if field.name != "costs")


def predict(path: Path, arm: str) -> dict[str, float]:
    """Figures foreseen for the run described in a file.

    The file is a JSON object: ``requests``, a list of ``[arrival_s, prompt_tokens, output_tokens, group]`` (group -1 for
    none), ``costs`` with fields of ``Costs`` and ``machine`` with limits of ``Machine``, both optional. With
    ``measured_latency_mean_ms`` the result has ``sim_error``, (foreseen - measured) / measured.

    Raises:
        ValueError: a name is not known; the text says which are.
    """
    content = json.loads(path.read_text())
    costs = _known(content.get("costs", {}), tuple(field.name for field in fields(Costs)), "costs")
    limits = _known(content.get("machine", {}), LIMITS, "machine")
    machine = Machine(costs=Costs(**costs), **limits)
    requests = listed([tuple(row) for row in sorted(content["requests"])])
    engine = Engine(machine, make_policy(arm), requests)
    engine.run()
    figures = summary(rows(engine), [engine.totals], requests.prompt + requests.output, requests.client)
    measured = content.get("measured_latency_mean_ms")
    if measured is not None:
        figures["sim_error"] = figures["latency_mean_ms"] / float(measured) - 1.0
    return figures


def _known(given: dict[str, float], names: tuple[str, ...], what: str) -> dict[str, float]:
    unknown = set(given) - set(names)
    if unknown:
        raise ValueError(f"{what} has {sorted(unknown)}; known are {', '.join(names)}")
    return given
