"""What measuring costs: tokens per second with telemetry on over off, at 1, 8 and 16 clients.

Both servers run at once, but only one at a time is awake: the other's processes are stopped (SIGSTOP), so that pairs of
measurements lie seconds apart and no restart lies between them. A round measures every number of clients on both sides,
in an order that alternates; the claim is the median of the rounds' ratios.
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
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from harness import bootstrap_median, claim, run_facts, write_result

from sgl_entropic.testing.servers import Server, entropic_server

CLIENTS = (1, 8, 16)
BAR = ">= 0.98"
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


async def one_load(server: Server, clients: int, tokens: int, round_index: int) -> float:
    """Tokens per second of ``clients`` concurrent requests of ``tokens`` output tokens each."""

    async def one(http: httpx.AsyncClient, index: int) -> int:
        body = {
            # The round makes every prompt new, so that neither side finds it in its prefix cache.
            "text": f"Round {round_index}, guest {index}. {PROMPTS[index % len(PROMPTS)]}",
            "sampling_params": {"temperature": 0.8, "max_new_tokens": tokens, "ignore_eos": True},
        }
        response = await http.post(server.url + "/generate", json=body, timeout=600)
        response.raise_for_status()
        return int(response.json()["meta_info"]["completion_tokens"])

    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=clients)) as http:
        begin = time.perf_counter()
        produced = await asyncio.gather(*(one(http, index) for index in range(clients)))
        elapsed = time.perf_counter() - begin
    if sum(produced) != clients * tokens:
        raise RuntimeError(f"{clients} clients got {sum(produced)} tokens, expected {clients * tokens}")
    return sum(produced) / elapsed


@contextlib.contextmanager
def awake(server: Server) -> Iterator[None]:
    """Let a stopped server run for a while."""
    assert server.process is not None
    os.killpg(server.process.pid, signal.SIGCONT)
    try:
        yield
    finally:
        os.killpg(server.process.pid, signal.SIGSTOP)


def measured_tokens(server: Server) -> int:
    """The counter that proves that telemetry acted, or did not."""
    states = httpx.get(server.url + "/server_info", timeout=600).json()["internal_states"]
    return sum(state["sgl_entropic"]["counters"]["measured_tokens"] for state in states)


def run(arms: dict[str, Server], rounds: int, tokens: int) -> list[dict[str, Any]]:
    """All rounds, one sample for each arm and number of clients."""
    samples = []
    for index in range(-1, rounds):
        for clients in CLIENTS:
            order = list(arms) if (index + clients) % 2 == 0 else list(reversed(arms))
            for name in order:
                with awake(arms[name]):
                    rate = asyncio.run(one_load(arms[name], clients, tokens if index >= 0 else 8, index))
                if index >= 0:  # the round before the first warms both sides up
                    samples.append(
                        {"round": index, "clients": clients, "telemetry": name, "tokens_per_s": rate}
                    )
        print(f"round {index + 1}/{rounds}", flush=True)
    return samples


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=96, help="output tokens of each request")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="telemetry_cost_"))
    arms = {
        "off": entropic_server(folder / "off.log", "--entropic-telemetry", "off"),
        "on": entropic_server(folder / "on.log"),
    }
    try:
        for server in arms.values():
            server.start()
            assert server.process is not None
            os.killpg(server.process.pid, signal.SIGSTOP)
        samples = run(arms, options.rounds, options.tokens)
        acted = {}
        for name, server in arms.items():
            with awake(server):
                acted[name] = measured_tokens(server)
    finally:
        for server in arms.values():
            if server.process is not None:
                os.killpg(server.process.pid, signal.SIGCONT)
                server.stop()
    if acted["off"] != 0 or acted["on"] == 0:
        raise RuntimeError(f"telemetry did not act as its flag says: measured tokens {acted}")
    claims = []
    for clients in CLIENTS:
        rates = {
            name: np.array(
                [s["tokens_per_s"] for s in samples if s["clients"] == clients and s["telemetry"] == name]
            )
            for name in arms
        }
        median, interval = bootstrap_median(rates["on"] / rates["off"], options.seed)
        claims.append(claim(f"telemetry_tps_ratio_{clients}", median, interval, "ratio", BAR))
    write_result("telemetry_cost", claims, run_facts(options.seed), samples, measured_tokens=acted)


if __name__ == "__main__":
    main()
