"""Mixed load for a long time: does memory grow beyond the pool, does a KV slot leak, does anything fail?

Sixteen clients send prompts of all lengths, streamed and not, greedy and sampled, with grammars, several answers,
shared prefixes and aborted streams. Memory is the proportional set size of all of the server's processes. The pool is
small, so that eviction and retraction happen; its memory is taken in the first minutes, after which nothing should grow.
Greedy answers that were not retracted are asked for again when all is over: one that holds a piece of another's would
differ.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from harness import Claim, claim, run_facts, write_result
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
MOST_ASKED_AGAIN = 200


class Load:
    """What all clients share.

    Attributes:
        outcomes: how often each way of ending was seen.
        greedy: bodies of answers that must come out the same again, with their texts.
        priorities: whether requests name one.
    """

    def __init__(self, requests: int | None, *, priorities: bool) -> None:
        self.outcomes: Counter[str] = Counter()
        self.greedy: list[tuple[dict[str, Any], str]] = []
        self.priorities = priorities
        self._left = requests
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Whether one more request is to be sent."""
        with self._lock:
            if self._left is None:
                return True
            self._left -= 1
            return self._left >= 0

    def note(self, body: dict[str, Any], response: httpx.Response) -> None:
        """Look at a whole answer."""
        if response.status_code != 200:
            self.outcomes[str(response.status_code)] += 1
            return
        answers = response.json()
        answers = answers if isinstance(answers, list) else [answers]
        sampling = body["sampling_params"]
        whole = len(answers) == sampling.get("n", 1) and all(
            answer["meta_info"]["finish_reason"]["type"] in ("stop", "length")
            and answer["meta_info"]["completion_tokens"] <= sampling["max_new_tokens"]
            for answer in answers
        )
        self.outcomes["200" if whole else "not whole"] += 1
        # What was retracted is computed again in another shape, and may round to another word.
        # Under overlapped scheduling SGLang counts penalised tokens a step late, or the prompt's last one in place of the
        # first, as the batch happens to be joined: such an answer depends on the others, without this extension as well.
        same = (
            sampling["temperature"] == 0
            and "frequency_penalty" not in sampling
            and answers[0]["meta_info"]["num_retractions"] == 0
        )
        if same and len(answers) == 1 and len(self.greedy) < MOST_ASKED_AGAIN:
            self.greedy.append((body, answers[0]["text"]))


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


def client(server: Server, deadline: float, seed: int, load: Load) -> None:
    """One request after the other until ``deadline``, or until all are sent."""
    rng = random.Random(seed)  # noqa: S311 -- reproducible load
    with httpx.Client(base_url=server.url, timeout=600) as http:
        while time.monotonic() < deadline and load.take():
            body = body_of(rng)
            if load.priorities:
                body["priority"] = rng.randrange(3)
            if body["sampling_params"].get("n") or rng.random() < 0.6:
                load.note(body, http.post("/generate", json=body))
                continue
            stop_after = rng.choice([3, 10**9])
            with http.stream("POST", "/generate", json={**body, "stream": True}) as stream:
                for count, _ in enumerate(stream.iter_lines()):
                    if count >= stop_after:
                        break
                load.outcomes["aborted" if stop_after == 3 else str(stream.status_code)] += 1


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
    parser.add_argument(
        "--requests", type=int, help="end when so many were sent; default: when the time is over"
    )
    parser.add_argument("--retract-every", type=int, help="force a retraction every so many steps")
    parser.add_argument("--pool-tokens", type=int, default=POOL_TOKENS)
    parser.add_argument("--flags", default="", help="further flags of the server, in one text")
    parser.add_argument("--name", default="soak", help="of the result")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    samples: list[dict[str, float]] = []
    load = Load(options.requests, priorities="--enable-priority-scheduling" in options.flags)
    log = Path(tempfile.mkdtemp()) / "server.log"
    env = {}
    if options.retract_every:
        env = {"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": str(options.retract_every)}
    flags = ["--max-total-tokens", str(options.pool_tokens), *shlex.split(options.flags)]
    with entropic_server(log, *flags, env=env) as server:
        assert server.process is not None
        pid = server.process.pid
        deadline = time.monotonic() + 60 * options.minutes
        watcher = threading.Thread(target=watch, args=(server, pid, deadline, samples, 15.0), daemon=True)
        watcher.start()
        with ThreadPoolExecutor(options.clients) as pool:
            seeds = range(options.seed * 1000, options.seed * 1000 + options.clients)
            for future in [pool.submit(client, server, deadline, seed, load) for seed in seeds]:
                future.result()
        if options.requests is None:
            watcher.join()
        leaked, alive = leaked_slots(server), server.alive()
        spliced = different_again(server, load)
        found = counters(server)
    if not alive:
        raise RuntimeError("the server ended: " + server.log_tail())
    print(dict(load.outcomes), found)
    failed = sum(count for outcome, count in load.outcomes.items() if outcome not in {"200", "aborted"})
    name = options.name
    claims = [
        claim(f"{name}_failed_requests", failed, (failed, failed), "requests", "<= 0"),
        claim(f"{name}_leaked_slots", leaked, (leaked, leaked), "slots", "<= 0"),
        claim(f"{name}_spliced_answers", spliced, (spliced, spliced), "answers", "<= 0"),
    ]
    if options.requests is None:
        claims.insert(0, growth_claim(samples, name))
    write_result(
        name,
        claims,
        run_facts(options.seed),
        samples,
        outcomes=dict(load.outcomes),
        counters=found,
        asked_again=len(load.greedy),
        pool_tokens=options.pool_tokens,
    )


def different_again(server: Server, load: Load) -> int:
    """Greedy answers that are not the same when they are asked for alone."""
    with httpx.Client(base_url=server.url, timeout=600) as http:
        again = [http.post("/generate", json=body).json()["text"] for body, _ in load.greedy]
    return sum(text != before for text, (_, before) in zip(again, load.greedy, strict=True))


def counters(server: Server) -> dict[str, int]:
    """The extension's counters."""
    states = httpx.get(server.url + "/server_info", timeout=600).json()["internal_states"]
    return dict(states[0]["sgl_entropic"]["counters"])


def growth_claim(samples: list[dict[str, float]], name: str) -> Claim:
    """Growth between the second and the last fifth of the time: by then every slot of the pool has been used."""
    memory = np.array([sample["pss_mb"] for sample in samples])
    fifth = max(1, len(memory) // 5)
    growth = memory[-fifth:] - np.median(memory[fifth : 2 * fifth])
    low, high = float(growth.min()), float(growth.max())
    return claim(f"{name}_memory_growth_mb", float(np.median(growth)), (low, high), "MB", "<= 50")


if __name__ == "__main__":
    main()
