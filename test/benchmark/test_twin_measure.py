"""Figures of the comparison against hand-made answers; a server that crashes, is empty or miscounts is an error."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmark"))

from twin_parts import bench_serving, claims
from twin_parts.arms import Arm
from twin_parts.client import DIALECTS, Answer, LoadError, check_prompt_count, run_clients
from twin_parts.rates import decode_rate, figures, summary
from twin_parts.runner import ArmError, Plan, Run, visits
from twin_parts.workloads import Client, Sizes, Turn, catalogue

from sgl_entropic.testing.servers import Server

# A server of a few lines that streams words: "max_tokens" of them, or what its first argument says.
FAKE = Path(__file__).with_name("test_twin_measure.py")


class CountByWords:
    """Prompts without a tokenizer: a word is a token."""

    def text(self, tokens: int, *key: object) -> str:
        return " ".join([f"{'-'.join(map(str, key))}", *["w"] * (tokens - 1)])

    def count(self, text: str) -> int:
        return len(text.split())


WORDS = CountByWords()


class Handler(BaseHTTPRequestHandler):
    """Streams as many words as asked for; ``fault`` says what goes wrong instead."""

    fault = ""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt_tokens = len(body["prompt"].split()) + (3 if self.fault == "cuts otherwise" else 0)
        tokens = 0 if self.fault == "empty" else body["max_tokens"] - (self.fault == "short")
        self.send_response(500 if self.fault == "status" else 200)
        self.end_headers()
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": tokens}
        if not body.get("stream"):
            self.wfile.write(json.dumps({"usage": usage}).encode())
            return
        for _ in range(tokens):
            self.event({"choices": [{"text": " w", "finish_reason": None}]})
        if self.fault == "breaks off":
            return
        reason = "stop" if self.fault in ("short", "stops") else "length"
        last: dict[str, Any] = {"choices": [{"text": "", "finish_reason": reason}]}
        self.event(last if self.fault in ("no usage", "stops") else {**last, "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def event(self, content: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(content).encode() + b"\n\n")

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def fake(fault: str = "") -> Iterator[str]:
    """Address of a server with ``fault``."""
    handler = type("Faulty", (Handler,), {"fault": fault})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def asked(url: str, clients: list[Client], kind: str = "sglang") -> list[Answer]:
    return asyncio.run(run_clients(url, clients, DIALECTS[kind], WORDS.count))


def turn(tokens: int, output: int, **more: Any) -> Turn:
    return Turn(WORDS.text(tokens, "x"), tokens, output, **more)


def answer(arrivals_s: tuple[float, ...], tokens: int | None = None, sent_s: float = 0.0) -> Answer:
    """One that came as it was asked for, of 10 tokens in and a token a piece."""
    count = len(arrivals_s) if tokens is None else tokens
    return Answer(0, 0, sent_s, arrivals_s, arrivals_s[-1], 10, count, count, False, "")


# ------------------------------------------------------------------------------------------------------ the client


def test_answers_hold_what_came() -> None:
    with fake() as url:
        one, other = asked(url, [Client((turn(5, 7),)), Client((turn(9, 2),), start_s=0.05)])
    assert (one.input_tokens, one.output_tokens, len(one.arrivals_s), one.text) == (5, 7, 7, " w" * 7)
    assert (other.input_tokens, other.output_tokens) == (9, 2)
    # A client that starts later sends later; by how much exactly is the event loop's affair, whose timers may ring early.
    assert one.sent_s < other.sent_s
    assert one.sent_s <= one.arrivals_s[0] <= one.arrivals_s[-1] <= one.end_s
    assert not one.stopped_early


def test_a_conversation_goes_on_from_its_answer() -> None:
    turns = (turn(5, 3), replace(turn(4, 2), tokens=None))
    with fake() as url:
        chat = asked(url, [Client(turns, continues=True)])
        apart = asked(url, [Client(turns)])
    # 5 and 3 words before 4, of which the first follows without a space
    assert [a.input_tokens for a in chat] == [5, 5 + 3 + 4 - 1]
    assert [a.input_tokens for a in apart] == [5, 4]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("status", "status 500"),
        ("empty", "no tokens came"),
        ("short", "6 tokens came"),
        ("breaks off", "no finish_reason"),
        ("cuts otherwise", "a prompt of 5 tokens was taken as 8"),
    ],
)
def test_a_wrong_answer_is_an_error(fault: str, message: str) -> None:
    with fake(fault) as url, pytest.raises(LoadError, match=message):
        asked(url, [Client((turn(5, 7),))])


def test_a_dead_server_is_an_error() -> None:
    with fake() as url:
        pass
    with pytest.raises(LoadError, match="Connect"):
        asked(url, [Client((turn(5, 7),))])


def test_length_without_usage_is_the_length_asked_for() -> None:
    with fake("no usage") as url:
        (one,) = asked(url, [Client((turn(5, 7),))], "llamacpp")
    assert (one.input_tokens, one.output_tokens, one.stopped_early) == (5, 7, False)


def test_only_where_nothing_forbids_it_an_answer_may_end_early() -> None:
    with fake("short") as url:
        (one,) = asked(url, [Client((turn(5, 7),))], "llamacpp")
        (document,) = asked(url, [Client((turn(5, 7, structured=True),))])
    assert (one.output_tokens, one.stopped_early) == (6, True)
    assert (document.output_tokens, document.stopped_early) == (6, False)


def test_a_server_without_grammars_gets_no_schema() -> None:
    with fake() as url, pytest.raises(LoadError, match="cannot hold"):
        asked(url, [Client((turn(5, 7, structured=True),))], "hf")


def test_the_prompt_count_is_checked() -> None:
    with fake() as url:
        assert asyncio.run(check_prompt_count(url, WORDS.text(6, "x"), 6)) == 6
    with fake("cuts otherwise") as url, pytest.raises(LoadError, match="taken as 9"):
        asyncio.run(check_prompt_count(url, WORDS.text(6, "x"), 6))


# ----------------------------------------------------------------------------------------------------- the figures


def test_decode_of_simultaneous_answers_is_the_common_window() -> None:
    # One token a second each; all are being answered from 3 to 8 s.
    answers = [answer(tuple(float(t) for t in range(begin, begin + 9))) for begin in (0, 2, 3)]
    assert decode_rate(answers, serial=False) == pytest.approx(3.0)


def test_decode_counts_tokens_of_coarse_pieces() -> None:
    fine = [answer(tuple(float(t) for t in range(9)))] * 2
    coarse = [answer(tuple(float(t) for t in range(9)), tokens=18)] * 2
    assert decode_rate(coarse, serial=False) == pytest.approx(2 * decode_rate(fine, serial=False))


def test_answers_in_turn_have_no_common_window() -> None:
    answers = [answer((1.0, 1.5, 2.0)), answer((5.0, 5.5, 6.0))]
    assert decode_rate(answers, serial=True) == pytest.approx(2.0)
    with pytest.raises(LoadError, match="ask for longer answers"):
        decode_rate(answers, serial=False)


def test_figures_cover_everything_from_first_to_last() -> None:
    found = figures([answer((1.0, 2.0), sent_s=0.5), answer((2.0, 4.5))], serial=False, decode=False)
    assert found["duration_s"] == 4.5
    assert found["output_tokens_per_s"] == pytest.approx(4 / 4.5)
    assert found["input_tokens_per_s"] == pytest.approx(20 / 4.5)
    assert found["ttft_s"] == [0.5, 2.0]
    assert found["inter_token_ms"] == ["1000.0", "2500.0"]
    assert summary([found]) == {"ttft_ms": 1250.0, "gap_ms": 1750.0, "latency_s": 3.0}


def test_nothing_and_little_are_errors() -> None:
    with pytest.raises(LoadError, match="no answers"):
        figures([], serial=False, decode=False)
    half = replace(answer((1.0, 2.0)), asked_tokens=4, stopped_early=True)
    assert figures([half], serial=False, decode=False)["stopped_early"] == 1
    fifth = replace(half, asked_tokens=10)
    assert figures([fifth, answer((1.0, 2.0))], serial=False, decode=False)["stopped_early"] == 1
    with pytest.raises(LoadError, match="2 of 2 answers ended early, with 4 of 20 tokens"):
        figures([fifth, fifth], serial=False, decode=False)


def test_a_report_of_the_other_generator_is_checked() -> None:
    report = {
        "completed": 2,
        "errors": ["", ""],
        "total_output_tokens_retokenized": 9,
        "duration": 4.0,
        "total_input_tokens": 20,
        "total_output_tokens": 10,
        "input_throughput": 5.0,
        "output_throughput": 2.5,
        "ttfts": [0.5, 1.0],
        "itls": [[0.1] * 4, [0.2] * 4],
    }
    found = bench_serving.figures(report, (2, 10, 5))
    assert found["latency_s"] == [0.9, 1.8]
    assert found["output_tokens_per_s"] == 2.5
    for wrong in ({"completed": 1}, {"errors": ["", "boom"]}, {"total_output_tokens_retokenized": 8}):
        with pytest.raises(LoadError, match="bench_serving"):
            bench_serving.figures({**report, **wrong}, (2, 10, 5))


def test_the_other_generator_serves_what_it_can_check() -> None:
    every = catalogue(Sizes())
    served = {name for name, one in every.items() if bench_serving.serves(one, "sglang")}
    assert served == {"clients_1", "clients_8", "clients_16"}
    assert not bench_serving.serves(every["clients_1"], "llamacpp")


# ------------------------------------------------------------------------------------------------------ a whole run


def arm(folder: Path, name: str, fault: str = "") -> Arm:
    """An arm whose server is this file, run as a script."""
    command = [sys.executable, str(FAKE), "--fault", fault]
    return Arm(name, "sglang", False, Server(command, folder / f"{name}.log", {}))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Plan]:
    monkeypatch.setattr("twin_parts.runner.read_bytes_per_s", lambda: 1e9)

    def plan(*arms: Arm, **more: Any) -> Plan:
        every = catalogue(Sizes(input_tokens=8, output_tokens=4))
        chosen = [every["clients_1"], every["clients_8"]]
        return Plan(arms, chosen, rounds=2, starts=1, seed=1, **more)

    return plan


def test_every_round_asks_every_arm(tmp_path: Path, small: Callable[..., Plan]) -> None:
    run = Run(small(arm(tmp_path, "a"), arm(tmp_path, "b")), WORDS, tmp_path)
    found = run.all()
    assert sorted((s["round"], s["arm"], s["workload"], s["output_tokens"]) for s in found.samples) == sorted(
        (index, name, workload, tokens)
        for index in (0, 1)
        for name in "ab"
        for workload, tokens in (("clients_1", 4), ("clients_8", 32))
    )
    assert {name: len(times) for name, times in found.start_s.items()} == {"a": 1, "b": 1}
    assert all(entry["pss_bytes"] > 0 for entry in found.memory)
    assert all(each.server.process is None for each in run.plan.arms)
    assert len(claims.ratios(found.samples, "a", "b", "clients_8")) == 2


@pytest.mark.parametrize("fault", ["empty", "short", "status", "crash"])
def test_a_failing_arm_ends_the_run(tmp_path: Path, small: Callable[..., Plan], fault: str) -> None:
    run = Run(small(arm(tmp_path, "good"), arm(tmp_path, "bad", fault)), WORDS, tmp_path)
    with pytest.raises(ArmError, match=r"(?s)arm bad, .*end of .*bad\.log.*a line of the log"):
        run.all()
    assert all(each.server.process is None for each in run.plan.arms)
    assert not [s for s in run.findings.samples if s["arm"] == "bad"]


def test_the_order_turns(tmp_path: Path, small: Callable[..., Plan]) -> None:
    plan = small(arm(tmp_path, "a"), arm(tmp_path, "b"), arm(tmp_path, "c"))
    orders = ["".join(v.arm.name for v in visits(plan, index)) for index in range(3)]
    assert orders == ["abcbca", "bcacab", "cababc"]
    whole = list(visits(replace(plan, restart=True), 0))
    assert [(v.arm.name, len(v.workloads)) for v in whole] == [("a", 2), ("b", 2), ("c", 2)]


def test_an_arm_is_not_asked_for_what_it_cannot(tmp_path: Path, small: Callable[..., Plan]) -> None:
    plan = small(arm(tmp_path, "a"), replace(arm(tmp_path, "h"), kind="hf"))
    plan = replace(plan, workloads=[catalogue(Sizes())["structured"]])
    assert [visit.arm.name for visit in visits(plan, 0)] == ["a"]


def main() -> None:
    """The fake server as a process."""
    arguments = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
    fault = arguments["--fault"]
    sys.stdout.write("a line of the log\n")
    sys.stdout.flush()
    if fault == "crash":
        raise SystemExit(3)
    handler = type("Faulty", (Handler,), {"fault": fault})
    ThreadingHTTPServer((arguments["--host"], int(arguments["--port"])), handler).serve_forever()


if __name__ == "__main__":
    main()
