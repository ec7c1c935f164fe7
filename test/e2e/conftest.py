"""One real server for the whole run of end-to-end tests, and the independent truth: the same weights in transformers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import pytest
import torch

from sgl_entropic.models import default_model, ensure
from sgl_entropic.testing.servers import Server, entropic_server, free_port

TIMEOUT_S = 600.0


@pytest.fixture(scope="session")
def model_path() -> str:
    """The default model, fetched and converted when it is not cached yet."""
    return str(ensure(default_model().name))


@pytest.fixture(scope="session")
def trace_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The main server's JSONL trace."""
    return tmp_path_factory.mktemp("trace") / "trace.jsonl"


@pytest.fixture(scope="session")
def trace_rows(trace_path: Path) -> Callable[[str, int], list[dict[str, Any]]]:
    """Wait until the trace, which a thread of its own writes, has as many rows of a request as are asked for."""

    def read(rid: str, count: int) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        deadline = time.monotonic() + 30
        while len(rows) < count and time.monotonic() < deadline:
            time.sleep(0.1)
            whole, _, _ = trace_path.read_bytes().rpartition(b"\n")
            records = [orjson.loads(line) for line in whole.splitlines()]
            rows = [row for record in records for row in record.get("rows", ()) if row["rid"] == rid]
        return rows

    return read


@pytest.fixture(scope="session")
def publish_endpoint() -> str:
    """The main server's live stream."""
    return f"tcp://127.0.0.1:{free_port()}"


@pytest.fixture(scope="session")
def server(
    tmp_path_factory: pytest.TempPathFactory, trace_path: Path, publish_endpoint: str, model_path: str
) -> Iterator[Server]:
    """The launcher with no model named and all outlets open; float32, as the truth that it is compared with."""
    log = tmp_path_factory.mktemp("server") / "server.log"
    flags = [
        "--enable-metrics",
        "--entropic-weights",
        "float32",
        "--entropic-trace-path",
        str(trace_path),
        "--entropic-trace-publish",
        publish_endpoint,
    ]
    with entropic_server(log, *flags) as running:
        yield running
        assert running.alive(), running.log_tail()


@pytest.fixture(scope="session")
def post() -> Callable[..., Any]:
    """POST JSON to a server and return the parsed answer; anything but 200 fails the test."""

    def call(server: Server, route: str, body: dict[str, Any]) -> Any:
        response = httpx.post(server.url + route, json=body, timeout=TIMEOUT_S)
        assert response.status_code == 200, response.text
        return response.json()

    return call


@pytest.fixture(scope="session")
def counters() -> Callable[[Server], dict[str, int]]:
    """The extension's counters, summed over the scheduler processes."""

    def read(server: Server) -> dict[str, int]:
        states = httpx.get(server.url + "/server_info", timeout=TIMEOUT_S).json()["internal_states"]
        total: dict[str, int] = {}
        for state in states:
            for name, value in state["sgl_entropic"]["counters"].items():
                total[name] = total.get(name, 0) + value
        return total

    return read


@dataclass(frozen=True)
class Truth:
    """Teacher-forced readings of a token sequence, one entry a token; the first token has none (NaN)."""

    entropy_nats: np.ndarray
    surprisal_nats: np.ndarray
    logits: np.ndarray


class Oracle:
    """The same weights in transformers, float32, and statistics in float64."""

    def __init__(self, path: str) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(path)
        self._model = AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, attn_implementation="eager"
        )

    @torch.inference_mode()
    def __call__(self, token_ids: list[int]) -> Truth:
        logits = self._model(torch.tensor([token_ids])).logits[0].double().numpy()
        shifted = logits - logits.max(-1, keepdims=True)
        log_p = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        entropy = -(np.exp(log_p) * log_p).sum(-1)
        surprisal = -log_p[np.arange(len(token_ids) - 1), token_ids[1:]]
        return Truth(np.concatenate(([np.nan], entropy[:-1])), np.concatenate(([np.nan], surprisal)), logits)


@pytest.fixture(scope="session")
def oracle(model_path: str) -> Oracle:
    """Independent truth for entropies and surprisals."""
    return Oracle(model_path)
