"""The live stream, with real sockets: what is sent arrives in order, what is not is counted."""

from __future__ import annotations

import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
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


def wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come true")


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
    first.close()


def test_a_gap_in_the_sequence_is_a_drop(endpoint: str, context: zmq.Context[zmq.Socket[bytes]]) -> None:
    """A consumer can tell what it missed, also when the record never left the server's own queue."""
    counters = Counters()
    publisher = ZmqPublisher(endpoint, 16, counters)
    socket = subscriber(context, endpoint)
    until_subscribed(publisher, socket)
    before, sent_before = publisher._offered, counters.publish_sent
    accepted = {before + 1 + step for step in range(3000) if publisher.offer(record(step))}
    wait_for(lambda: counters.publish_sent + counters.publish_dropped == before + 3000)
    sent = counters.publish_sent - sent_before
    sequence = [orjson.loads(socket.recv_multipart()[1])["sequence"] for _ in range(sent)]
    assert sequence == sorted(set(sequence))
    assert set(sequence) <= accepted
    assert sent + counters.publish_dropped == 3000
    socket.close()
    publisher.close()


def test_a_subscriber_that_dies_leaves_the_others_alone(
    endpoint: str, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    """Killed in the middle of the stream; whoever stays misses nothing."""
    counters = Counters()
    publisher = ZmqPublisher(endpoint, 4096, counters)
    socket = subscriber(context, endpoint)
    until_subscribed(publisher, socket)
    program = (
        "import sys, zmq; s = zmq.Context().socket(zmq.SUB); s.subscribe(b''); s.connect(sys.argv[1])\n"
        "while True: s.recv_multipart(); print(flush=True)"
    )
    steps = iter(range(1, 1001))
    with subprocess.Popen([sys.executable, "-c", program, endpoint], stdout=subprocess.PIPE) as doomed:
        for step in steps:
            publisher.offer(record(step))
            assert decode(socket.recv_multipart()[1]).step == step
            if select.select([doomed.stdout], [], [], 0.02)[0]:
                doomed.kill()
                break
    rest = list(steps)
    assert rest, "the second subscriber never came"
    for step in rest:
        publisher.offer(record(step))
        assert decode(socket.recv_multipart()[1]).step == step
    wait_for(lambda: counters.publish_sent == publisher._offered)
    assert counters.publish_dropped == 0
    socket.close()
    publisher.close()


@pytest.mark.parametrize(
    "endpoint",
    ["tcp://nowhere.invalid:5555", "http://x", "ipc:///no/such/s", "tcp://", ""],
)
def test_an_endpoint_that_cannot_be_bound_is_refused(endpoint: str) -> None:
    """Whatever ZeroMQ says against it."""
    with pytest.raises(ConfigError, match=r"trace\.publish") as caught:
        ZmqPublisher(endpoint, 16, Counters())
    assert repr(endpoint) in str(caught.value)


def test_an_ipv6_endpoint_is_taken_for_one() -> None:
    """ZeroMQ has to be told; whether this machine has the address is another question."""
    with zmq.Context() as context, context.socket(zmq.PUB) as plain:
        assert plain.getsockopt(zmq.IPV6) == 0
    try:
        publisher = ZmqPublisher(f"tcp://[::1]:{free_port()}", 16, Counters())
    except ConfigError as error:
        assert "Cannot assign requested address" in str(error)  # noqa: PT017 -- the other outcome is below
        return
    assert publisher._socket.getsockopt(zmq.IPV6) == 1
    publisher.close()
