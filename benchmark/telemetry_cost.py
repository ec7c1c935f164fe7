"""What measuring costs: tokens per second with telemetry on over off, at 1, 8 and 16 clients, and in the prefill alone.

Three servers run at once (telemetry off; of generated tokens only; of prompts too, which is the default), but only one at
a time is awake: the others' processes are stopped (SIGSTOP), so that the measurements of a round lie seconds apart and no
restart lies between them. A round measures every load on every side, in an order that turns; a claim is the median of the
rounds' ratios. Generation is measured over the whole request, prefill included; the prefill alone with prompts of about
400 tokens and one generated token.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from harness import Claim, bootstrap_median, claim, run_facts, write_result

from sgl_entropic.testing.servers import Server, entropic_server

CLIENTS = (1, 8, 16)
BAR = ">= 0.98"
PREFILL = "prefill"
# The LM head is a fifth of the default model's work, so a scored prefill cannot cost nothing.
PREFILL_BAR = ">= 0.75"
PROMPTS = (
    "Describe how a lighthouse works, from the lamp to the lens and the keeper's routine.",
    "Write a short letter to a friend who has moved to another country last spring.",
    "Explain to a child why the sea is salty and the rivers that feed it are not.",
    "List the steps for repairing a flat bicycle tyre on the road without a stand.",
    "Tell the story of a clockmaker who could not tell the time.",
    "Compare tea and coffee: where they grow, how they are made, who drinks them.",
    "Give three reasons for keeping a diary, with an example for each of them.",
    "Summarise how bread is made, beginning with the grain in the field.",
)


@dataclass(frozen=True, slots=True)
class Load:
    """So many clients at once, each with a prompt of so many repeated sentences and so many output tokens."""

    name: str
    clients: int
    sentences: int
    tokens: int


async def one_load(server: Server, load: Load, round_index: int) -> float:
    """Output tokens per second of ``load``; prompt tokens per second where it generates a single token."""

    async def one(http: httpx.AsyncClient, index: int) -> tuple[int, int]:
        text = " ".join(PROMPTS[(index + at) % len(PROMPTS)] for at in range(load.sentences))
        sampling = {"temperature": 0.8, "max_new_tokens": load.tokens, "ignore_eos": True}
        # The round makes every prompt new, so that no side finds it in its prefix cache.
        body = {
            "text": f"Round {round_index}, {load.name}, guest {index}. {text}",
            "sampling_params": sampling,
        }
        response = await http.post(server.url + "/generate", json=body, timeout=600)
        info = response.raise_for_status().json()["meta_info"]
        return int(info["completion_tokens"]), int(info["prompt_tokens"])

    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=load.clients)) as http:
        begin = time.perf_counter()
        counts = await asyncio.gather(*(one(http, index) for index in range(load.clients)))
        elapsed = time.perf_counter() - begin
    produced = sum(output for output, _ in counts)
    if produced != load.clients * load.tokens:
        raise RuntimeError(f"{load} got {produced} tokens")
    return (sum(prompt for _, prompt in counts) if load.tokens == 1 else produced) / elapsed


@contextlib.contextmanager
def awake(server: Server) -> Iterator[None]:
    """Let a stopped server run for a while."""
    assert server.process is not None
    os.killpg(server.process.pid, signal.SIGCONT)
    try:
        yield
    finally:
        os.killpg(server.process.pid, signal.SIGSTOP)


def counters(server: Server) -> dict[str, int]:
    """The counters that prove that telemetry acted, or did not."""
    states = httpx.get(server.url + "/server_info", timeout=600).json()["internal_states"]
    totals: dict[str, int] = {}
    for state in states:
        for name, value in state["sgl_entropic"]["counters"].items():
            totals[name] = totals.get(name, 0) + value
    return totals


def run(arms: dict[str, Server], loads: list[Load], rounds: int) -> list[dict[str, Any]]:
    """All rounds, one sample for each arm and load."""
    samples = []
    for index in range(-1, rounds):
        for turn, load in enumerate(loads):
            names = list(arms)
            turned = (index + turn) % len(names)
            for name in names[turned:] + names[:turned]:
                with awake(arms[name]):
                    # The round before the first warms all sides up.
                    planned = load if index >= 0 else replace(load, tokens=min(load.tokens, 8))
                    rate = asyncio.run(one_load(arms[name], planned, index))
                if index >= 0:
                    samples.append(
                        {"round": index, "load": load.name, "telemetry": name, "tokens_per_s": rate}
                    )
        print(f"round {index + 1}/{rounds}", flush=True)
    return samples


def claims_of(samples: list[dict[str, Any]], seed: int) -> list[Claim]:
    """Median ratios against telemetry off."""

    def rates(load: str, name: str) -> np.ndarray:
        return np.array([s["tokens_per_s"] for s in samples if s["load"] == load and s["telemetry"] == name])

    claims = []
    for name, load, arm, bar in (
        *((f"telemetry_tps_ratio_{clients}", str(clients), "on", BAR) for clients in CLIENTS),
        *(
            (f"telemetry_generated_only_tps_ratio_{clients}", str(clients), "generated only", BAR)
            for clients in CLIENTS
        ),
        ("telemetry_prefill_tps_ratio", PREFILL, "on", PREFILL_BAR),
    ):
        if len(rates(load, arm)) == 0:
            continue
        median, interval = bootstrap_median(rates(load, arm) / rates(load, "off"), seed)
        claims.append(claim(name, median, interval, "ratio", bar))
    return claims


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=96, help="output tokens of each request")
    parser.add_argument("--seed", type=int, default=1)
    every = ["off", "generated only", "on"]
    parser.add_argument("--arms", nargs="+", choices=every, default=every, help="off and on are needed")
    options = parser.parse_args()
    if not {"off", "on"} <= set(options.arms):
        parser.error("--arms needs off and on")
    folder = Path(tempfile.mkdtemp(prefix="telemetry_cost_"))
    arms = {
        "off": entropic_server(folder / "off.log", "--entropic-telemetry", "off"),
        "generated only": entropic_server(
            folder / "generated.log", "--entropic-telemetry-prompt-surprisal", "off"
        ),
        "on": entropic_server(folder / "on.log"),
    }
    arms = {name: server for name, server in arms.items() if name in options.arms}
    loads = [
        *(Load(str(clients), clients, 1, options.tokens) for clients in CLIENTS),
        Load(PREFILL, 2, 20, 1),
    ]
    try:
        for server in arms.values():
            server.start()
            assert server.process is not None
            os.killpg(server.process.pid, signal.SIGSTOP)
        samples = run(arms, loads, options.rounds)
        acted = {}
        for name, server in arms.items():
            with awake(server):
                acted[name] = counters(server)
    finally:
        for server in arms.values():
            if server.process is not None:
                os.killpg(server.process.pid, signal.SIGCONT)
                server.stop()
    measured = {name: count["measured_tokens"] > 0 for name, count in acted.items()}
    scored = {name: count["scored_prompt_tokens"] > 0 for name, count in acted.items()}
    if measured != {name: name != "off" for name in arms} or scored != {name: name == "on" for name in arms}:
        raise RuntimeError(f"telemetry did not act as its flags say: {acted}")
    facts = run_facts(options.seed)
    write_result(
        "telemetry_cost",
        claims_of(samples, options.seed),
        facts,
        samples,
        loads=[asdict(x) for x in loads],
        counters=acted,
    )


if __name__ == "__main__":
    main()
