"""Eviction by return time on the real server: a small pool, long conversations, and the same answers as without."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from threading import Barrier
from typing import Any

import httpx
import pytest

from sgl_entropic.testing.servers import Server, entropic_server

pytestmark = pytest.mark.e2e

TIMEOUT_S = 600.0
CONVERSATIONS = 10
TURNS = 3
ANSWER_TOKENS = 12
POOL_TOKENS = 3000
SMALL = ("--max-total-tokens", str(POOL_TOKENS), "--entropic-weights", "float32")
STRICT = {"SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE": "1"}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[list[int]], str, Any]:
    """The conversations on a server that was not asked to evict: answers, log, and what the route says."""
    log = tmp_path_factory.mktemp("plain") / "server.log"
    with entropic_server(log, *SMALL) as running:
        answers = [answer["output_ids"] for answer in talk(running)]
        state = httpx.get(running.url + "/entropic/eviction", timeout=TIMEOUT_S).json()
    return answers, log.read_text(), state


@pytest.fixture(scope="module")
def evicting(
    tmp_path_factory: pytest.TempPathFactory, plain: tuple[list[list[int]], str, Any]
) -> Iterator[Server]:
    """Eviction on; after ``plain`` has gone, since two servers are many for a small machine."""
    assert plain
    log = tmp_path_factory.mktemp("evicting") / "server.log"
    flags = (*SMALL, "--entropic-eviction", "on", "--enable-metrics", "--max-running-requests", "8")
    with entropic_server(log, *flags, env=STRICT) as running:
        yield running
        assert running.alive(), running.log_tail()


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Where everything goes wrong: chunks of 32, mixed chunks, retraction by force, scheduling of ours as well."""
    log = tmp_path_factory.mktemp("crowded") / "server.log"
    flags = (
        *SMALL,
        "--entropic-eviction",
        "on",
        "--entropic-scheduling",
        "on",
        "--chunked-prefill-size",
        "32",
        "--enable-mixed-chunk",
        "--max-running-requests",
        "8",
    )
    env = {**STRICT, "SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "20"}
    with entropic_server(log, *flags, env=env) as running:
        yield running
        assert running.alive(), running.log_tail()


def ask(server: Server, ids: list[int], tokens: int = ANSWER_TOKENS, **more: Any) -> Any:
    sampling = {"temperature": 0.0, "max_new_tokens": tokens, "ignore_eos": True}
    body = {"input_ids": ids, "sampling_params": sampling, **more}
    response = httpx.post(server.url + "/generate", json=body, timeout=TIMEOUT_S)
    assert response.status_code == 200, response.text
    return response.json()


def first_turn(number: int) -> list[int]:
    return [500 + number, *(1000 + (number * 37 + at * at) % 9000 for at in range(300))]


def talk(server: Server) -> list[Any]:
    """Some conversations in turn, one after another; each turn sends all before it."""
    answers, histories = [], [first_turn(number) for number in range(CONVERSATIONS)]
    for turn in range(TURNS):
        for number, history in enumerate(histories):
            answers.append(ask(server, history))
            histories[number] = [*history, *answers[-1]["output_ids"], *range(700 + turn, 720 + turn)]
    return answers


def evictable(server: Server) -> int:
    (state,) = httpx.get(server.url + "/entropic/eviction", timeout=TIMEOUT_S).json()["schedulers"]
    return int(state["evictable_tokens"])


def test_off_leaves_sglangs_tree_and_policy(plain: tuple[list[list[int]], str, Any]) -> None:
    _, log, state = plain
    assert "Tree Core: RustUnifiedTreeCore" in log
    assert state == {"schedulers": [{"enabled": False}]}


def test_answers_are_the_same_and_all_is_counted(
    plain: tuple[list[list[int]], str, Any], evicting: Server, counters: Callable[[Server], dict[str, int]]
) -> None:
    before = counters(evicting)
    answers = talk(evicting)
    assert [answer["output_ids"] for answer in answers] == plain[0]
    # A round robin alone finds nothing before anything is learnt.
    answers += [ask(evicting, first_turn(90)) for _ in range(2)]
    after = counters(evicting)
    acted = {name: after[name] - before[name] for name in after}
    assert "Tree Core: EntropicTreeCore" in evicting.log.read_text()
    # The histories are longer than the pool, and a round robin is what recency is worst at.
    assert acted["evicted_tokens"] > POOL_TOKENS
    assert acted["evict_calls"] > 0
    assert acted["recomputed_evicted_tokens"] > 0
    assert acted["prefix_hit_tokens"] == sum(answer["meta_info"]["cached_tokens"] for answer in answers) > 0
    # Nobody waited.
    assert acted["evicted_needed_tokens"] == acted["lookahead_saved_tokens"] == 0
    assert acted["evicted_predictable_tokens"] == 0
    text = httpx.get(evicting.url + "/metrics", timeout=TIMEOUT_S).text
    (line,) = [line for line in text.splitlines() if line.startswith("sgl_entropic:evicted_tokens_total")]
    assert float(line.rsplit(" ", 1)[1]) == after["evicted_tokens"]


def test_who_goes_next(evicting: Server) -> None:
    for number in range(CONVERSATIONS + 2):
        ask(evicting, first_turn(number), 1)
    (state,) = httpx.get(evicting.url + "/entropic/eviction", timeout=TIMEOUT_S).json()["schedulers"]
    assert state["enabled"] is True
    assert 0 < state["evictable_tokens"] <= POOL_TOKENS
    assert 0 < len(state["next"]) <= 16
    assert state["ghosts"] > 0
    assert state["ghost_tokens"] <= 4 * POOL_TOKENS
    ranks = [node["rank"] for node in state["next"]]
    assert ranks == sorted(ranks)
    assert all(node["tokens"] > 0 and node["idle_s"] >= 0 for node in state["next"])


def test_what_waits_is_spared(evicting: Server, counters: Callable[[Server], dict[str, int]]) -> None:
    """All places taken by requests that grow over what is cached, half of which the ten that wait will match."""
    assert httpx.post(evicting.url + "/flush_cache", timeout=TIMEOUT_S).status_code == 200
    needed = [first_turn(100 + number)[:100] for number in range(10)]
    others = [first_turn(200 + number)[:190] for number in range(10)]
    # The oldest are not needed: they may go before anybody waits.
    for prefix in [*others[:5], *chain(*zip(needed[:5], others[5:], strict=True)), *needed[5:]]:
        ask(evicting, prefix, 1)
    before = counters(evicting)
    begun = Barrier(9, timeout=TIMEOUT_S)

    def grow(number: int) -> None:
        sampling = {"temperature": 0.0, "max_new_tokens": 200, "ignore_eos": True}
        body = {"input_ids": first_turn(300 + number)[:20], "sampling_params": sampling, "stream": True}
        with httpx.stream("POST", evicting.url + "/generate", json=body, timeout=TIMEOUT_S) as response:
            lines = response.iter_lines()
            next(lines)
            begun.wait()
            assert sum(1 for _ in lines) > 0

    with ThreadPoolExecutor(18) as pool:
        growing = [pool.submit(grow, number) for number in range(8)]
        begun.wait()
        answers = list(pool.map(lambda prefix: ask(evicting, [*prefix, *range(900, 920)], 10), needed))
        for one in growing:
            one.result()
    acted = {name: count - before[name] for name, count in counters(evicting).items()}
    assert acted["evicted_tokens"] > 1000
    assert acted["lookahead_saved_tokens"] > 0
    # There was enough else, so none of theirs went.
    assert acted["evicted_needed_tokens"] == 0
    found = [answer["meta_info"]["cached_tokens"] for answer in answers]
    assert min(found) >= 100 - 1, found


def test_flushed_is_empty_and_works_on(evicting: Server) -> None:
    ask(evicting, first_turn(0))
    assert evictable(evicting) > 0
    response = httpx.post(evicting.url + "/flush_cache", timeout=TIMEOUT_S)
    assert response.status_code == 200
    assert evictable(evicting) == 0
    assert ask(evicting, first_turn(0))["meta_info"]["cached_tokens"] == 0
    assert ask(evicting, first_turn(0))["meta_info"]["cached_tokens"] >= 300 - 1


def test_requests_that_leave_take_nothing_along(
    plain: tuple[list[list[int]], str, Any], evicting: Server
) -> None:
    def leave(number: int) -> None:
        body = {
            "input_ids": first_turn(40 + number),
            "sampling_params": {"max_new_tokens": 300, "ignore_eos": True},
            "stream": True,
        }
        with httpx.stream("POST", evicting.url + "/generate", json=body, timeout=TIMEOUT_S) as response:
            if number % 2:
                next(response.iter_lines())

    with ThreadPoolExecutor(12) as pool:
        leaving = [pool.submit(leave, number) for number in range(12)]
        answers = [ask(evicting, first_turn(number))["output_ids"] for number in range(CONVERSATIONS)]
        for one in leaving:
            one.result()
    assert answers == plain[0][:CONVERSATIONS]
    time.sleep(2.0)
    assert evicting.slots_left_over() == 0


def test_chunks_and_retractions_splice_nothing(
    plain: tuple[list[list[int]], str, Any], crowded: Server, counters: Callable[[Server], dict[str, int]]
) -> None:
    with ThreadPoolExecutor(CONVERSATIONS) as pool:
        answers = list(
            pool.map(lambda number: ask(crowded, first_turn(number), 3 * ANSWER_TOKENS), range(CONVERSATIONS))
        )
    again = talk(crowded)
    found = counters(crowded)
    assert found["retracted_requests"] > 0
    assert found["evicted_tokens"] > 0
    assert [answer["output_ids"][:ANSWER_TOKENS] for answer in answers] == plain[0][:CONVERSATIONS]
    assert [answer["output_ids"] for answer in again] == plain[0]
    assert crowded.slots_left_over() == 0


def test_in_strong_gravity_the_predictable_goes_first(
    tmp_path: Path, counters: Callable[[Server], dict[str, int]]
) -> None:
    """Everybody is in the strong tier by the thresholds, and two requests run while the others come and go."""
    flags = [*SMALL, "--entropic-eviction", "on", "--entropic-eviction-surprisal-weight", "4"]
    flags += ["--entropic-gravity", "on", "--entropic-gravity-gravity-threshold", "-1"]
    for tier in ("", "medium-"):
        flags += [f"--entropic-gravity-{tier}entropy-threshold-nats", "20"]
    flags += ["--entropic-gravity-dwell-tokens", "1"]
    with entropic_server(tmp_path / "server.log", *flags, env=STRICT) as running:
        with ThreadPoolExecutor(2) as pool:
            long = [pool.submit(ask, running, first_turn(70 + number)[:40], 500) for number in range(2)]
            # Every second one says the same word again and again.
            for number in range(24):
                ask(running, first_turn(number) if number % 2 else [2000 + number, *[1000] * 250], 1)
            for one in long:
                one.result()
        assert counters(running)["evicted_predictable_tokens"] > 0
        assert running.slots_left_over() == 0
