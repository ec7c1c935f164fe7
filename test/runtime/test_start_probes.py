"""Outlets and port are tried before weights load."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from sgl_entropic.config import EntropicConfig, TelemetryConfig, TraceConfig
from sgl_entropic.errors import ConfigError, UnsupportedError
from sgl_entropic.runtime.start_probes import probe_outlets, probe_port
from sgl_entropic.testing.servers import free_port
from sgl_entropic.trace.counters import Counters
from sgl_entropic.trace.publisher import ZmqPublisher
from sgl_entropic.trace.sink import JsonlSink


def test_outlets_that_can_be_had_are_left_as_they_were(tmp_path: Path) -> None:
    """After the probe the real outlets can be opened, and the file holds nothing yet."""
    path, endpoint = str(tmp_path / "t.jsonl"), f"tcp://127.0.0.1:{free_port()}"
    probe_outlets(EntropicConfig(trace=TraceConfig(path=path, publish=endpoint)))
    assert Path(path).read_bytes() == b""
    JsonlSink(path, 16, Counters()).close()
    ZmqPublisher(endpoint, 16, Counters()).close()


def test_an_endpoint_in_use_is_refused() -> None:
    """With the key and the endpoint."""
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    taken = ZmqPublisher(endpoint, 16, Counters())
    with pytest.raises(ConfigError, match=r"trace\.publish") as caught:
        probe_outlets(EntropicConfig(trace=TraceConfig(publish=endpoint)))
    assert endpoint in str(caught.value)
    taken.close()


def test_an_outlet_without_telemetry_is_refused(tmp_path: Path) -> None:
    """It would stay empty for ever."""
    config = EntropicConfig(
        telemetry=TelemetryConfig(enabled=False), trace=TraceConfig(path=str(tmp_path / "t.jsonl"))
    )
    with pytest.raises(ConfigError, match=r"trace\.path.*--entropic-telemetry off"):
        probe_outlets(config)


def test_a_port_in_use_is_refused() -> None:
    """With host and port."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UnsupportedError, match=f"--port {port}"):
            probe_port("127.0.0.1", port)
    assert probe_port("127.0.0.1", port) is None
