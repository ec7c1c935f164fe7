"""The live stream, with real sockets: what is sent arrives in order, what is not is counted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
import zmq

from sgl_entropic.errors import ConfigError
from sgl_entropic.testing.servers import free_port
from sgl_entropic.trace.counters import Counters
from sgl_entropic.trace.publisher import TOPIC, ZmqPublisher
from sgl_entropic.trace.record import RowRecord, StepRecord, decode


def record(step: int, padding: int = 0) -> StepRecord:
    return StepRecord(step, step, "decode", (RowRecord("r" + "x" * padding, step, 1, 0.5, 0.1, 0.2, 0.4),))


@pytest.fixture(params=["tcp", "ipc"])
def endpoint(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"tcp://127.0.0.1:{free_port()}" if request.param == "tcp" else f"ipc://{tmp_path}/s"


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    with zmq.Context() as context:
        yield context


def subscriber(context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.SUB)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVTIMEO, 10_000)
    socket.setsockopt(zmq.RCVHWM, 16)
    socket.subscribe(TOPIC)
    socket.connect(endpoint)
    return socket


def until_subscribed(publisher: ZmqPublisher, socket: zmq.Socket[bytes]) -> None:
    """Publish until the subscription has arrived."""
    socket.setsockopt(zmq.RCVTIMEO, 50)
    for _ in range(200):
        publisher.offer(record(0))
        try:
            socket.recv_multipart()
            break
        except zmq.Again:
            continue
    else:
        raise AssertionError("no subscription")
    time.sleep(0.2)
    try:
        while True:
            socket.recv_multipart()
    except zmq.Again:
        socket.setsockopt(zmq.RCVTIMEO, 10_000)


def test_records_arrive_in_order(endpoint: str, context: zmq.Context[zmq.Socket[bytes]]) -> None:
    """Topic and JSON in two frames, with a sequence that grows by one."""
    publisher = ZmqPublisher(endpoint, 4096, Counters())
    socket = subscriber(context, endpoint)
    until_subscribed(publisher, socket)
    for step in range(1, 101):
        publisher.offer(record(step))
    messages = [socket.recv_multipart() for _ in range(100)]
    assert {topic for topic, _ in messages} == {TOPIC}
    assert [decode(payload).step for _, payload in messages] == list(range(1, 101))
    sequence = [orjson.loads(payload)["sequence"] for _, payload in messages]
    assert sequence == list(range(sequence[0], sequence[0] + 100))
    socket.close()
    publisher.close()


def test_without_subscribers_nothing_waits(endpoint: str) -> None:
    """Records go nowhere, count as sent, and the thread ends."""
    counters = Counters()
    publisher = ZmqPublisher(endpoint, 4096, counters)
    for step in range(1000):
        publisher.offer(record(step))
    publisher.close()
    assert counters.publish_sent + counters.publish_dropped == 1000
    assert counters.publish_dropped == 0


def test_a_subscriber_that_does_not_read_is_counted(
    endpoint: str, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    """Its buffers fill up; from then on records are dropped and counted, and nothing blocks."""
    counters = Counters()
    publisher = ZmqPublisher(endpoint, 65_536, counters)
    socket = subscriber(context, endpoint)
    until_subscribed(publisher, socket)
    before = counters.publish_sent + counters.publish_dropped
    offered = 6000
    accepted = sum(publisher.offer(record(step, padding=8000)) for step in range(offered))
    publisher.close(60)
    assert accepted == offered
    assert counters.publish_sent + counters.publish_dropped - before == offered
    assert counters.publish_dropped > 0
    socket.close()


def test_an_endpoint_in_use_is_refused() -> None:
    """At start, naming the key and the endpoint."""
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    first = ZmqPublisher(endpoint, 16, Counters())
    with pytest.raises(ConfigError, match=r"trace\.publish") as caught:
        ZmqPublisher(endpoint, 16, Counters())
    assert endpoint in str(caught.value)
    first.release()
