"""Step records as a ZeroMQ stream for live consumers."""

from __future__ import annotations

import zmq

from sgl_entropic.errors import ConfigError
from sgl_entropic.trace.counters import Counters
from sgl_entropic.trace.record import encode
from sgl_entropic.trace.worker import Numbered, Worker

TOPIC = b"sgl_entropic.step"
_HIGH_WATER_MESSAGES = 1024


class ZmqPublisher(Worker):
    """PUB socket with frames ``[TOPIC, JSON]``; the JSON has a ``sequence`` that counts what was offered: a gap is a drop.

    A PUB socket drops silently for a slow subscriber. This one refuses instead (``XPUB_NODROP``), and the refusal is
    counted; the message is then lost for every subscriber, which their sequence numbers tell.
    """

    def __init__(self, endpoint: str, queue_records: int, counters: Counters) -> None:
        """Bind ``endpoint``.

        Raises:
            ConfigError: it cannot be bound.
        """
        super().__init__("live stream", queue_records)
        self._counters = counters
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUB)
        self._socket.setsockopt(zmq.SNDHWM, _HIGH_WATER_MESSAGES)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.XPUB_NODROP, 1)
        if "[" in endpoint:
            self._socket.setsockopt(zmq.IPV6, 1)
        try:
            # The socket moves to the worker's thread once, with the full fence that starting a thread is.
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            self.release()
            msg = f"trace.publish = {endpoint!r} cannot be bound ({error.strerror}); expected a free tcp://host:port or ipc://path"
            raise ConfigError(msg) from None

    def deliver(self, batch: list[Numbered]) -> int:
        """Send each record that fits into the buffer of every subscriber; without subscribers, all of them."""
        sent = 0
        for number, record in batch:
            try:
                self._socket.send_multipart([TOPIC, encode(record, sequence=number)], zmq.NOBLOCK)
            except zmq.Again:
                continue
            except zmq.ZMQError as error:
                self.fail(error)
                break
            sent += 1
        return sent

    def count_delivered(self, records: int) -> None:
        """Into ``publish_sent``."""
        self._counters.publish_sent += records

    def count_dropped(self, records: int) -> None:
        """Into ``publish_dropped``."""
        self._counters.publish_dropped += records

    def release(self) -> None:
        """Close the socket."""
        self._socket.close(0)
        self._context.term()
