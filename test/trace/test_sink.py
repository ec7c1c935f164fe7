"""The JSONL file: every record offered is either in the file or counted as dropped."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from sgl_entropic.errors import ConfigError
from sgl_entropic.trace.counters import Counters
from sgl_entropic.trace.record import RowRecord, StepRecord, decode
from sgl_entropic.trace.sink import JsonlSink


def record(step: int) -> StepRecord:
    return StepRecord(step, step, "decode", (RowRecord("r", step, 1, 0.5, 0.1, 0.2, 0.4),))


def test_header_then_records_in_order(tmp_path: Path) -> None:
    """The first line says what wrote the file, the others are the records as they were offered."""
    counters = Counters()
    sink = JsonlSink(str(tmp_path / "t.jsonl"), 4096, counters)
    assert all(sink.offer(record(step)) for step in range(500))
    sink.close()
    header, *lines = (tmp_path / "t.jsonl").read_text().splitlines()
    assert json.loads(header)["kind"] == "header"
    assert [decode(line).step for line in lines] == list(range(500))
    assert (counters.trace_written, counters.trace_dropped) == (500, 0)


def test_a_second_start_appends(tmp_path: Path) -> None:
    """Nothing of an earlier run is lost."""
    for _ in range(2):
        sink = JsonlSink(str(tmp_path / "t.jsonl"), 16, Counters())
        sink.offer(record(1))
        sink.close()
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert kinds == ["header", "decode"] * 2


def test_a_full_queue_drops_and_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the disk is stuck the caller goes on, and what does not fit is counted."""
    counters = Counters()
    sink = JsonlSink(str(tmp_path / "t.jsonl"), 16, counters)
    stuck, entered = threading.Event(), threading.Event()
    write = sink._write

    def slow(data: bytes) -> None:
        entered.set()
        stuck.wait(30)
        write(data)

    monkeypatch.setattr(sink, "_write", slow)
    assert sink.offer(record(0))
    assert entered.wait(10)
    accepted = sum(sink.offer(record(step)) for step in range(1, 101))
    assert accepted == 16
    stuck.set()
    sink.close()
    assert (counters.trace_written, counters.trace_dropped) == (17, 84)


def test_a_full_disk_is_counted_and_does_not_raise() -> None:
    """``/dev/full`` answers every write with "no space left on device"."""
    counters = Counters()
    sink = JsonlSink("/dev/full", 4096, counters)
    for step in range(50):
        sink.offer(record(step))
    sink.close()
    assert (counters.trace_written, counters.trace_dropped) == (0, 50)


@pytest.mark.parametrize("path", ["/no/such/directory/t.jsonl", "/"])
def test_a_file_that_cannot_be_opened_is_refused(path: str) -> None:
    """At start, naming the key and the path."""
    with pytest.raises(ConfigError, match=r"trace\.path") as caught:
        JsonlSink(path, 16, Counters())
    assert path in str(caught.value)
