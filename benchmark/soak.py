"""Mixed load for a long time: does memory grow beyond the pool, does a KV slot leak, does anything fail?

Sixteen clients send prompts of all lengths, streamed and not, greedy and sampled, with grammars, several answers,
shared prefixes and aborted streams. Memory is the proportional set size of all of the server's processes. The pool is
small, so that eviction and retraction happen; its memory is taken in the first minutes, after which nothing should grow.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from harness import claim, run_facts, write_result
from twin_parts.processes import memory

from sgl_entropic.testing.servers import Server, entropic_server

WORDS = (
    "river",
    "stone",
    "house",
    "tree",
    "cloud",
    "bread",
    "letter",
    "winter",
    "garden",
    "music",
    "silver",
    "paper",
)
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
        "required": ["name", "age"],
    }
)
POOL_TOKENS = 16_384


def body_of(rng: random.Random) -> dict[str, Any]:
    """One request."""
    shared = " ".join(WORDS) if rng.random() < 0.5 else ""
    prompt = shared + " ".join(rng.choice(WORDS) for _ in range(int(rng.lognormvariate(4, 1.2)) + 1))
    sampling: dict[str, Any] = {
        "temperature": rng.choice([0, 0, 0.7, 1.2]),
        "max_new_tokens": rng.randrange(1, 160),
    }
    sampling |= rng.choice(
        [{}, {"top_p": 0.9}, {"top_k": 20}, {"frequency_penalty": 0.5}, {"n": 3}, {"json_schema": SCHEMA}]
    )
    return {"text": prompt, "sampling_params": sampling, "return_logprob": rng.random() < 0.1}


def client(server: Server, deadline: float, seed: int, outcomes: Counter[str]) -> None:
    """One request after the other until ``deadline``."""
    rng = random.Random(seed)  # noqa: S311 -- reproducible load
    with httpx.Client(base_url=server.url, timeout=600) as http:
        while time.monotonic() < deadline:
            body = body_of(rng)
            if body["sampling_params"].get("n") or rng.random() < 0.6:
                outcomes[str(http.post("/generate", json=body).status_code)] += 1
                continue
            stop_after = rng.choice([3, 10**9])
            with http.stream("POST", "/generate", json={**body, "stream": True}) as stream:
                for count, _ in enumerate(stream.iter_lines()):
                    if count >= stop_after:
                        break
                outcomes["aborted" if stop_after == 3 else str(stream.status_code)] += 1


def memory_mb(pid: int) -> float:
    """Proportional set size of ``pid`` and all that it started, in megabytes."""
    return memory(pid).pss_bytes / 1e6


def watch(server: Server, pid: int, deadline: float, samples: list[dict[str, float]], every_s: float) -> None:
    """Sample memory until ``deadline``."""
    start = time.monotonic()
    while time.monotonic() < deadline and server.alive():
        samples.append({"minute": (time.monotonic() - start) / 60, "pss_mb": memory_mb(pid)})
        print(f"{samples[-1]['minute']:6.1f} min {samples[-1]['pss_mb']:8.0f} MB", flush=True)
        time.sleep(every_s)


def leaked_slots(server: Server) -> int:
    """KV slots that are not free once the cache is flushed at idle."""
    for _ in range(60):
        if httpx.post(server.url + "/flush_cache", timeout=60).status_code == 200:
            break
        time.sleep(1)
    loads = httpx.get(server.url + "/v1/loads", timeout=60).raise_for_status().json()["loads"]
    return int(loads[0]["num_used_tokens"])


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    samples: list[dict[str, float]] = []
    outcomes: Counter[str] = Counter()
    log = Path(tempfile.mkdtemp()) / "server.log"
    with entropic_server(log, "--max-total-tokens", str(POOL_TOKENS)) as server:
        assert server.process is not None
        pid = server.process.pid
        deadline = time.monotonic() + 60 * options.minutes
        watcher = threading.Thread(target=watch, args=(server, pid, deadline, samples, 15.0))
        watcher.start()
        with ThreadPoolExecutor(options.clients) as pool:
            seeds = range(options.seed * 1000, options.seed * 1000 + options.clients)
            for future in [pool.submit(client, server, deadline, seed, outcomes) for seed in seeds]:
                future.result()
        watcher.join()
        leaked, alive = leaked_slots(server), server.alive()
    if not alive:
        raise RuntimeError("the server ended: " + server.log_tail())
    report(samples, outcomes, leaked, options)


def report(samples: list[dict[str, float]], outcomes: Counter[str], leaked: int, options: Any) -> None:
    """Growth between the second and the last fifth of the time: by then every slot of the pool has been used."""
    memory = np.array([sample["pss_mb"] for sample in samples])
    fifth = max(1, len(memory) // 5)
    growth = memory[-fifth:] - np.median(memory[fifth : 2 * fifth])
    failed = sum(count for outcome, count in outcomes.items() if outcome not in {"200", "aborted"})
    low, high = float(growth.min()), float(growth.max())
    claims = [
        claim("soak_memory_growth_mb", float(np.median(growth)), (low, high), "MB", "<= 50"),
        claim("soak_failed_requests", failed, (failed, failed), "requests", "<= 0"),
        claim("soak_leaked_slots", leaked, (leaked, leaked), "slots", "<= 0"),
    ]
    print(dict(outcomes))
    write_result(
        "soak", claims, run_facts(options.seed), samples, outcomes=dict(outcomes), pool_tokens=POOL_TOKENS
    )


if __name__ == "__main__":
    main()
