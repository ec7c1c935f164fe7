"""Entropy-aware scheduling on the real server: it reorders and holds, and no request can tell but by its clock."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from sgl_entropic.testing.servers import Server, entropic_server

pytestmark = pytest.mark.e2e

TIMEOUT_S = 600.0
WORDS = ("cat", "dog", "tree", "house", "river", "stone", "blue", "red", "old", "king", "road", "sea")


@pytest.fixture(scope="module")
def eager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Scheduling on, few places, weights that keep every number."""
    log = tmp_path_factory.mktemp("eager") / "server.log"
    flags = ("--entropic-scheduling", "on", "--entropic-weights", "float32", "--max-running-requests", "20")
    with entropic_server(log, *flags, env={"SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE": "1"}) as running:
        yield running
        assert running.alive(), running.log_tail()


FORCED = """
import runpy, sys
from sgl_entropic.scheduling.hold import HoldPlanner
from sgl_entropic.scheduling.start import StartPlan, StartPlanner

def hold(self, running, waiting_count, server):
    held = {row for row, request in enumerate(running) if (request.arrival + server.decode_steps // 3) % 3}
    return frozenset(held if len(held) < len(running) else ())

def make(self, running, first, waiting_count, server):
    self.plan = StartPlan(server.decode_steps, 6, 0.5)
    return self.plan

HoldPlanner.hold = hold
StartPlanner.make = make
sys.argv[0] = "launch_server"
runpy.run_module("sgl_entropic.launch_server", run_name="__main__", alter_sys=True)
"""


@pytest.fixture(scope="module")
def holding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose planners hold two rows of three at every step and start the seventh when one ends, the rest as always.

    Whether that pays depends on what steps take on this machine; what it must not change does not.
    """
    log = tmp_path_factory.mktemp("holding") / "server.log"
    flags = ("--entropic-scheduling", "on", "--entropic-weights", "float32", "--max-running-requests", "20")
    with Server([sys.executable, "-c", FORCED, *flags], log, {}) as running:
        yield running
        assert running.alive(), running.log_tail()


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Scheduling on where everything goes wrong: chunks of 32, mixed chunks, retraction by force, user priorities."""
    log = tmp_path_factory.mktemp("crowded") / "server.log"
    flags = (
        "--entropic-scheduling",
        "on",
        "--entropic-weights",
        "float32",
        "--max-total-tokens",
        "2048",
        "--chunked-prefill-size",
        "32",
        "--enable-mixed-chunk",
        "--enable-priority-scheduling",
        "--max-running-requests",
        "12",
    )
    env = {"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "40"}
    with entropic_server(log, *flags, env=env) as running:
        yield running
        assert running.alive(), running.log_tail()


def prompt(index: int, words: int) -> str:
    chosen = " ".join(WORDS[(index * 7 + at * at + at) % len(WORDS)] for at in range(words))
    return f"Story {index}: {chosen}. Once upon a time"


def ask(server: Server, text: str, tokens: int, *, top: dict[str, Any] | None = None, **sampling: Any) -> Any:
    parameters = {"temperature": 0.0, "max_new_tokens": tokens, "ignore_eos": True, **sampling}
    body = {"text": text, "sampling_params": parameters, **(top or {})}
    response = httpx.post(server.url + "/generate", json=body, timeout=TIMEOUT_S)
    assert response.status_code == 200, response.text
    return response.json()


def at_once(server: Server, asks: list[dict[str, Any]]) -> list[Any]:
    """All ``asks`` together, in this order of arrival."""
    with ThreadPoolExecutor(len(asks)) as pool:
        waiting = []
        for one in asks:
            waiting.append(pool.submit(ask, server, **one))
            time.sleep(0.002)
        return [answer.result() for answer in waiting]


MIXED = [
    {"text": prompt(index, 4 + 31 * (index % 5)), "tokens": (200, 12, 60, 8, 24, 120)[index % 6]}
    for index in range(28)
]


def test_texts_in_a_reordered_and_held_crowd_are_those_of_requests_alone(
    eager: Server, counters: Callable[[Server], dict[str, int]]
) -> None:
    before = counters(eager)
    crowd = at_once(eager, MIXED)
    after = counters(eager)
    acted = {name: after[name] - before[name] for name in after}
    assert acted["ordered_queues"] > 0
    assert acted["overtaken_requests"] > 0
    # All fit with every limit: nothing to foresee.
    assert acted["predicted_reserves"] == 0
    for one, answer in zip(MIXED, crowd, strict=True):
        assert answer["meta_info"]["completion_tokens"] == one["tokens"]
        assert answer["text"] == ask(eager, **one)["text"]
    assert eager.slots_left_over() == 0


def test_rows_that_sit_steps_out_lose_nothing(
    eager: Server, holding: Server, counters: Callable[[Server], dict[str, int]]
) -> None:
    """They go on as if they had not been held: sampled, steered, biased and greedy ones, and log-probabilities."""
    asks: list[dict[str, Any]] = [{"text": prompt(70 + i, 20), "tokens": 16 + 8 * (i % 7)} for i in range(14)]
    asks[0] |= {"temperature": 1.0, "sampling_seed": 5}
    asks[1] |= {
        "temperature": 1.0,
        "sampling_seed": 6,
        "custom_params": {"entropic": {"target_entropy_nats": 1.5}},
    }
    asks[2] |= {"temperature": 0.9, "sampling_seed": 7, "top_p": 0.9, "logit_bias": {"260": 1.0}}
    asks[3] |= {"top": {"return_logprob": True, "top_logprobs_num": 2}}
    asks[4] |= {"regex": "[a-z ]{20,24}", "ignore_eos": False}
    crowd = at_once(holding, asks)
    assert counters(holding)["held_rows"] > 100
    assert counters(holding)["paced_starts"] > 0
    assert sum(answer["meta_info"]["entropic"]["scheduling"]["held_steps"] for answer in crowd) > 100
    for one, answer in zip(asks, crowd, strict=True):
        alone = ask(eager, **one)
        assert answer["text"] == alone["text"]
        if "top" in one:
            mine, other = (a["meta_info"]["output_token_logprobs"] for a in (answer, alone))
            assert [entry[1] for entry in mine] == [entry[1] for entry in other]
            assert [entry[0] for entry in mine] == pytest.approx([entry[0] for entry in other], abs=1e-4)


def test_grammar_penalties_and_several_answers_beside_held_rows(eager: Server) -> None:
    asks: list[dict[str, Any]] = [{"text": prompt(100 + i, 20), "tokens": 160} for i in range(3)]
    asks.append({"text": prompt(110, 9), "tokens": 40, "frequency_penalty": 0.5, "presence_penalty": 0.2})
    asks.append({"text": prompt(111, 9), "tokens": 40, "regex": "[a-z ]{30,34}", "ignore_eos": False})
    asks.append({"text": prompt(112, 9), "tokens": 24, "n": 2, "temperature": 0.0})
    crowd = at_once(eager, asks)
    for one, answer in zip(asks, crowd, strict=True):
        alone = ask(eager, **one)
        texts = [[a["text"] for a in (x if isinstance(x, list) else [x])] for x in (answer, alone)]
        assert texts[0] == texts[1]


def test_a_short_request_does_not_wait_for_the_long_ones_before_it(eager: Server) -> None:
    """By order of their ends, not by a clock."""
    ended: list[str] = []
    lock = threading.Lock()

    def one(name: str, index: int, tokens: int) -> None:
        ask(eager, prompt(index, 10), tokens)
        with lock:
            ended.append(name)

    with ThreadPoolExecutor(28) as pool:
        for index in range(24):
            pool.submit(one, "long", 200 + index, 100)
            time.sleep(0.002)
        for index in range(3):
            pool.submit(one, "short", 300 + index, 4)
    assert max(place for place, name in enumerate(ended) if name == "short") < 24


@pytest.mark.parametrize("name", ["eager", "holding"])
def test_aborted_and_disconnected_requests_give_everything_back(
    eager: Server, name: str, request: pytest.FixtureRequest
) -> None:
    """Among held rows too; what the others answer does not change."""
    place: Server = request.getfixturevalue(name)
    asks = [{"text": prompt(400 + i, 12), "tokens": 150 if i % 3 else 10} for i in range(12)]
    alone = [ask(eager, **one)["text"] for one in asks]

    def leave(index: int) -> None:
        body = {
            "text": prompt(500 + index, 12),
            "sampling_params": {"max_new_tokens": 400, "ignore_eos": True},
        }
        if index % 2:
            with httpx.stream(
                "POST", place.url + "/generate", json={**body, "stream": True}, timeout=TIMEOUT_S
            ) as r:
                next(r.iter_lines())
            return
        with ThreadPoolExecutor(1) as pool:
            name = f"abort-{index}"
            gone = pool.submit(
                httpx.post, place.url + "/generate", json={**body, "rid": name}, timeout=TIMEOUT_S
            )
            time.sleep(0.2 * (1 + index % 3))
            # Again and again: one that comes before its request finds nothing.
            while not gone.done():
                httpx.post(place.url + "/abort_request", json={"rid": name}, timeout=TIMEOUT_S)
                time.sleep(0.05)
            assert gone.result().json()["meta_info"]["finish_reason"]["type"] == "abort"

    with ThreadPoolExecutor(8) as pool:
        leaving = [pool.submit(leave, index) for index in range(8)]
        crowd = at_once(place, asks)
        for one in leaving:
            one.result()
    assert [answer["text"] for answer in crowd] == alone
    assert place.slots_left_over() == 0


def test_why_a_request_ranks_where_it_does(eager: Server) -> None:
    """On its own route, while requests wait and run."""
    seen: list[Any] = []
    with ThreadPoolExecutor(28) as pool:
        waiting = [pool.submit(ask, eager, prompt(600 + i, 30), 30 + 5 * i) for i in range(28)]
        while not all(one.done() for one in waiting):
            (state,) = httpx.get(eager.url + "/entropic/scheduling", timeout=TIMEOUT_S).json()["schedulers"]
            seen.append(state)
    full = max(seen, key=lambda state: state["waiting_count"])
    assert full["enabled"] is True
    assert full["waiting_count"] > 0
    assert {entry["state"] for entry in full["waiting"]} == {"waiting"}
    # The first of the queue as it will be served, whatever the order in which it came.
    assert [entry["rank"] for entry in full["waiting"]] == list(range(min(16, full["waiting_count"])))
    # Who waits for a prefix that another is about to compute goes later than its score says.
    scores = [entry["value"] for entry in full["waiting"] if not entry["due"] and not entry["deferred"]]
    assert scores == sorted(scores, reverse=True)
    for entry in full["waiting"]:
        assert entry["compute_ms"] > 0
        assert entry["due_within_tokens"] > 0
    assert full["cost_ms"]["decode_row"] > 0
    assert json.dumps(full, allow_nan=False)


def test_off_leaves_every_decision_to_sglang(
    server: Server, counters: Callable[[Server], dict[str, int]]
) -> None:
    at_once(server, MIXED[:8])
    found = counters(server)
    decisions = ("ordered_queues", "overtaken_requests", "held_rows", "predicted_reserves")
    assert [found[name] for name in decisions] == [0, 0, 0, 0]
    (state,) = httpx.get(server.url + "/entropic/scheduling", timeout=TIMEOUT_S).json()["schedulers"]
    assert state["enabled"] is False


def test_chunks_retractions_and_priorities_splice_nothing(
    eager: Server, crowded: Server, counters: Callable[[Server], dict[str, int]]
) -> None:
    asks = [{**one, "top": {"priority": index % 3}} for index, one in enumerate(MIXED)]
    crowd = at_once(crowded, asks)
    found = counters(crowded)
    assert found["retracted_requests"] > 0
    assert found["recomputed_tokens"] > 0
    assert found["ordered_queues"] > 0
    assert found["predicted_reserves"] > 0
    for one, answer in zip(MIXED, crowd, strict=True):
        assert answer["text"] == ask(eager, **one)["text"]
    assert crowded.slots_left_over() == 0


ROWS_ONLY = """
import runpy, sys
from sgl_entropic.scheduling import CostModel
from sgl_entropic.scheduling.hold import HoldPlanner

class Nobody:
    asked = 0

    def carries(self, token_ms):
        # Not before texts have got beyond their openings, which are weak whatever they say.
        self.asked += 1
        return self.asked > 8

    def load(self, token_ms):
        return 0.0

def init(self, settings, cost, belief, demand, stock=HoldPlanner.__init__):
    stock(self, settings, CostModel(frozen=True, decode=(0.5, 2.0, 0.0)), belief, Nobody())

HoldPlanner.__init__ = init
sys.argv[0] = "launch_server"
runpy.run_module("sgl_entropic.launch_server", run_name="__main__", alter_sys=True)
"""


def test_a_reduced_batch_is_grouped_by_the_tiers_that_gravity_finds(
    tmp_path: Any, counters: Callable[[Server], dict[str, int]]
) -> None:
    """Planners believe that rows are all that a step costs and nobody else comes: holding pays. Tiers are of real entropies."""
    flags = ("--entropic-scheduling", "on", "--entropic-scheduling-tier-margin", "0.5")
    flags += (
        "--entropic-scheduling-pace",
        "off",
        "--entropic-gravity",
        "on",
        "--entropic-gravity-signal",
        "entropy",
    )
    lengths = [200 + 4 * (i * 7 % 16) for i in range(16)]
    asks = [{"text": prompt(300 + i, 20), "tokens": tokens} for i, tokens in enumerate(lengths)]
    with Server([sys.executable, "-c", ROWS_ONLY, *flags], tmp_path / "server.log", {}) as running:
        answers = at_once(running, asks)
        acted = counters(running)
        assert running.slots_left_over() == 0
    assert [answer["meta_info"]["completion_tokens"] for answer in answers] == lengths
    assert acted["strong_tokens"] + acted["medium_tokens"] > 0
    assert acted["held_rows"] > 0
    assert acted["tier_grouped_rows"] > 0
