"""Trace, live stream and metrics of a real server tell of the same tokens as its responses."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import zmq
from prometheus_client.parser import text_string_to_metric_families

from sgl_entropic.testing.servers import Server

pytestmark = pytest.mark.e2e


def generate(server: Server, post: Callable[..., Any], text: str, tokens: int = 6) -> dict[str, Any]:
    body = {
        "text": text,
        "return_entropy": True,
        "sampling_params": {"temperature": 0, "max_new_tokens": tokens},
    }
    return post(server, "/generate", body)


def rows_of(records: list[dict[str, Any]], rid: str) -> list[dict[str, Any]]:
    return [row for record in records for row in record.get("rows", ()) if row["rid"] == rid]


def test_trace_file(
    server: Server, post: Callable[..., Any], trace_rows: Callable[[str, int], list[dict[str, Any]]]
) -> None:
    """Each generated token is one row of the JSONL trace, with the numbers of the response."""
    answer = generate(server, post, "Traces are written for every step")
    expected = answer["meta_info"]["entropic"]["entropy_nats"]
    rows = trace_rows(answer["meta_info"]["id"], len(expected))
    assert [row["output_index"] for row in rows] == list(range(len(expected)))
    assert [row["token_id"] for row in rows] == answer["output_ids"]
    assert [row["entropy_nats"] for row in rows] == pytest.approx(expected, abs=1e-5)


def test_live_stream(server: Server, post: Callable[..., Any], publish_endpoint: str) -> None:
    """A subscriber gets the same rows while the server runs."""
    context = zmq.Context()
    socket = context.socket(zmq.SUB)
    socket.connect(publish_endpoint)
    socket.subscribe(b"sgl_entropic.step")
    socket.RCVTIMEO = 30_000
    time.sleep(1.0)  # a subscription reaches its publisher asynchronously
    try:
        answer = generate(server, post, "A subscriber listens")
        rows: list[dict[str, Any]] = []
        while len(rows) < len(answer["output_ids"]):
            topic, payload = socket.recv_multipart()
            assert topic == b"sgl_entropic.step"
            rows += rows_of([orjson.loads(payload)], answer["meta_info"]["id"])
        assert [row["token_id"] for row in rows] == answer["output_ids"]
    finally:
        socket.close(0)
        context.term()


def test_metrics(server: Server, post: Callable[..., Any], counters: Callable[..., Any]) -> None:
    """``/metrics`` counts what was measured, and no label grows with the requests."""

    def read() -> dict[str, list[tuple[dict[str, str], float]]]:
        families: dict[str, list[tuple[dict[str, str], float]]] = {}
        for family in text_string_to_metric_families(httpx.get(server.url + "/metrics").text):
            for sample in family.samples:
                if sample.name.startswith("sgl_entropic:"):
                    families.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
        return families

    before = read()
    answers = [generate(server, post, f"Metric text number {index}", 4) for index in range(3)]
    after = read()
    produced = sum(answer["meta_info"]["completion_tokens"] for answer in answers)
    name = "sgl_entropic:measured_tokens_total"
    assert after[name][0][1] - before[name][0][1] == produced
    assert (
        after["sgl_entropic:entropy_nats_count"][0][1] - before["sgl_entropic:entropy_nats_count"][0][1]
        == produced
    )
    assert {key: len(samples) for key, samples in after.items()} == {
        key: len(samples) for key, samples in before.items()
    }
    assert counters(server)["measured_tokens"] == after[name][0][1]


def test_server_info_states_the_configuration(server: Server, trace_path: Path) -> None:
    """The configuration of the flags reached the scheduler process."""
    state = httpx.get(server.url + "/server_info", timeout=60).json()["internal_states"][0]["sgl_entropic"]
    assert state["config"]["trace"]["path"] == str(trace_path)
    assert state["config"]["telemetry"]["enabled"] is True
    assert state["slot_store_bytes"] > 0
