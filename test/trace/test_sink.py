"""The JSONL file: every record offered is either in the file or counted as dropped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import sgl_entropic
from sgl_entropic.errors import ConfigError
from sgl_entropic.trace.counters import Counters
from sgl_entropic.trace.record import RowRecord, StepRecord, decode
from sgl_entropic.trace.sink import JsonlSink

PACKAGE_PARENT = Path(sgl_entropic.__file__).parents[1]
LARGER_THAN_A_PIPE = 200_000


def record(step: int, padding: int = 0) -> StepRecord:
    return StepRecord(step, step, "decode", (RowRecord("r" + "x" * padding, step, 1, 0.5, 0.1, 0.2, 0.4),))


def wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come true")


def counts(counters: Counters) -> tuple[int, int]:
    return counters.trace_written, counters.trace_dropped


def test_header_then_records_in_order(tmp_path: Path) -> None:
    """The first line says what wrote the file, the others are the records as they were offered, numbered."""
    counters = Counters()
    sink = JsonlSink(str(tmp_path / "t.jsonl"), 4096, counters)
    assert all(sink.offer(record(step)) for step in range(500))
    sink.close()
    header, *lines = (tmp_path / "t.jsonl").read_text().splitlines()
    assert json.loads(header)["kind"] == "header"
    assert [decode(line) for line in lines] == [record(step) for step in range(500)]
    assert [json.loads(line)["sequence"] for line in lines] == list(range(1, 501))
    assert counts(counters) == (500, 0)


def test_a_second_start_appends(tmp_path: Path) -> None:
    """Nothing of an earlier run is lost."""
    for _ in range(2):
        sink = JsonlSink(str(tmp_path / "t.jsonl"), 16, Counters())
        sink.offer(record(1))
        sink.close()
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert kinds == ["header", "decode"] * 2


def test_a_torn_line_stays_alone(tmp_path: Path) -> None:
    """What a killed server left half written does not spoil the header after it."""
    path = tmp_path / "t.jsonl"
    path.write_text('{"schema":1,"st')
    counters = Counters()
    sink = JsonlSink(str(path), 16, counters)
    sink.offer(record(1))
    sink.close()
    torn, header, line = path.read_text().splitlines()
    assert torn == '{"schema":1,"st'
    assert json.loads(header)["kind"] == "header"
    assert decode(line) == record(1)
    assert counts(counters) == (1, 0)


def test_a_request_id_that_is_no_text_costs_nothing(tmp_path: Path) -> None:
    """A client chooses the id; it must not stop the trace."""
    counters = Counters()
    sink = JsonlSink(str(tmp_path / "t.jsonl"), 16, counters)
    sink.offer(StepRecord(1, 1, "decode", (RowRecord("\ud800", 0, 1, None, None, None, None),)))
    sink.offer(record(2))
    sink.close()
    assert counts(counters) == (2, 0)
    assert len((tmp_path / "t.jsonl").read_text().splitlines()) == 3


@pytest.fixture
def pipe(tmp_path: Path) -> str:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return str(path)


def test_a_full_queue_drops_and_counts(pipe: str) -> None:
    """While the reader of a pipe is stuck the caller goes on, and what does not fit is counted."""
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    counters = Counters()
    sink = JsonlSink(pipe, 16, counters)
    assert sink.offer(record(0, padding=LARGER_THAN_A_PIPE))
    wait_for(sink._queue.empty)
    accepted = sum(sink.offer(record(step)) for step in range(1, 101))
    assert accepted == 16
    received: list[bytes] = []
    os.set_blocking(reader, True)
    drain = threading.Thread(target=lambda: received.extend(iter(lambda: os.read(reader, 65_536), b"")))
    drain.start()
    sink.close(30)
    drain.join(30)
    os.close(reader)
    assert counts(counters) == (17, 84)
    assert [decode(line).step for line in b"".join(received).splitlines()[1:]] == list(range(17))


def test_closing_does_not_wait_for_a_stuck_reader(pipe: str) -> None:
    """What is queued then counts as dropped, and what is under way as soon as the reader goes."""
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    counters = Counters()
    sink = JsonlSink(pipe, 16, counters)
    sink.offer(record(0, padding=LARGER_THAN_A_PIPE))
    wait_for(sink._queue.empty)
    for step in range(1, 11):
        sink.offer(record(step))
    sink.close(0.1)
    assert counts(counters) == (0, 10)
    os.close(reader)
    wait_for(lambda: counts(counters) == (0, 11))
    assert sink._thread is not None
    sink._thread.join(30)
    assert not sink._thread.is_alive()


def test_a_full_disk_is_counted_and_does_not_raise() -> None:
    """``/dev/full`` answers every write with "no space left on device"."""
    counters = Counters()
    sink = JsonlSink("/dev/full", 4096, counters)
    for step in range(50):
        sink.offer(record(step))
    sink.close()
    assert counts(counters) == (0, 50)


def test_a_disk_that_fills_up_within_a_batch(tmp_path: Path) -> None:
    """Lines that are complete in the file are counted as written, the others as dropped."""
    program = """
import json, resource, sys
from sgl_entropic.trace.counters import Counters
from sgl_entropic.trace.record import RowRecord, StepRecord
from sgl_entropic.trace.sink import JsonlSink
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
counters = Counters()
sink = JsonlSink(sys.argv[1], 4096, counters)
for step in range(300):
    sink.offer(StepRecord(step, 0, "decode", (RowRecord("r", step, 1, 0.5, 0.1, 0.2, 0.4),)))
sink.close(30)
print(json.dumps([counters.trace_written, counters.trace_dropped]))
"""
    path = tmp_path / "t.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        env={**os.environ, "PYTHONPATH": str(PACKAGE_PARENT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    written, dropped = json.loads(done.stdout)
    *lines, torn = path.read_text().split("\n")
    assert path.stat().st_size == 5000
    assert torn
    assert [decode(line).step for line in lines[1:]] == list(range(written))
    assert written + dropped == 300
    assert done.stderr.count("trace file stops") == 1


def test_a_file_that_is_removed_stops_the_trace(tmp_path: Path) -> None:
    """Writes to it would succeed and be kept nowhere."""
    path = tmp_path / "t.jsonl"
    counters = Counters()
    sink = JsonlSink(str(path), 16, counters)
    sink.offer(record(0))
    wait_for(lambda: counters.trace_written == 1)
    path.unlink()
    sink.offer(record(1))
    wait_for(lambda: counters.trace_dropped == 1)
    sink.offer(record(2))
    sink.close()
    assert counts(counters) == (1, 2)


@pytest.mark.parametrize("path", ["/no/such/directory/t.jsonl", "/", "a\0b", "x" * 300])
def test_a_file_that_cannot_be_opened_is_refused(path: str) -> None:
    """At start, naming the key and the path."""
    with pytest.raises(ConfigError, match=r"trace\.path") as caught:
        JsonlSink(path, 16, Counters())
    assert repr(path) in str(caught.value)


def test_a_pipe_without_a_reader_is_refused_at_once(pipe: str) -> None:
    """Waiting for one would hold up the start of the server."""
    with pytest.raises(ConfigError, match=r"trace\.path"):
        JsonlSink(pipe, 16, Counters())
