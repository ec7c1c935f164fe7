"""A bounded queue and one thread that empties it: the caller never waits, and what does not fit is counted."""

from __future__ import annotations

import logging
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator

from sgl_entropic.trace.record import StepRecord

logger = logging.getLogger(__name__)

# A record and its number among all that were offered, from 1.
Numbered = tuple[int, StepRecord]

_BATCH = 256


class Worker(ABC):
    """Base of the outlets.

    Every record that is offered ends in exactly one of two counts, delivered or dropped; the sum is the number offered,
    once the queue is empty. One thread offers and closes.
    """

    def __init__(self, name: str, queue_records: int) -> None:
        """Make a worker whose queue holds ``queue_records``; its thread starts with the first record."""
        self._name = name
        self._queue: queue.Queue[Numbered | None] = queue.Queue(queue_records)
        self._thread: threading.Thread | None = None
        self._offered = 0
        self._closed = False
        self._broken = False
        self._counting = threading.Lock()

    def offer(self, record: StepRecord) -> bool:
        """Queue ``record``; ``False`` when it was dropped. Never blocks and never raises."""
        self._offered += 1
        try:
            if not self._closed:
                self._start()
                self._queue.put_nowait((self._offered, record))
                return True
        except (queue.Full, RuntimeError):  # RuntimeError: the machine gives no more threads
            pass
        self._drop(1)
        return False

    def close(self, timeout_s: float = 5.0) -> None:
        """Deliver what is queued and end the thread, waiting at most ``timeout_s``; what is left then counts as dropped."""
        if self._closed:
            return
        self._closed = True
        if self._thread is None:
            self.release()
            return
        deadline = time.monotonic() + timeout_s
        try:
            self._queue.put(None, timeout=timeout_s)
            self._thread.join(max(0.0, deadline - time.monotonic()))
        except queue.Full:
            pass
        if self._thread.is_alive():
            self._drop_queued()
            # For the day on which the delivery that it is stuck in returns.
            self._queue.put_nowait(None)

    def fail(self, error: Exception) -> None:
        """Deliver nothing from here on, and say so once; called by the worker's thread."""
        self._broken = True
        logger.error("%s stops, records are dropped from here on: %s", self._name, error)

    def _start(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            thread.start()
            self._thread = thread

    def _run(self) -> None:
        for batch in self._batches():
            delivered = self._delivered(batch)
            self.count_delivered(delivered)
            self._drop(len(batch) - delivered)
        self.release()

    def _batches(self) -> Iterator[list[Numbered]]:
        item = self._queue.get()
        while item is not None:
            batch = []
            while item is not None:
                batch.append(item)
                if len(batch) == _BATCH or self._queue.empty():
                    break
                item = self._queue.get()
            yield batch
            if item is not None:
                item = self._queue.get()

    def _delivered(self, batch: list[Numbered]) -> int:
        if self._broken:
            return 0
        try:
            return self.deliver(batch)
        except Exception as error:  # noqa: BLE001 -- an outlet that fails must not take the server with it
            self.fail(error)
            return 0

    def _drop(self, records: int) -> None:
        """Count drops, of the offering thread (no room) and of the worker's (not delivered)."""
        with self._counting:
            self.count_dropped(records)

    def _drop_queued(self) -> None:
        while True:
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return
            if item is not None:
                self._drop(1)

    @abstractmethod
    def deliver(self, batch: list[Numbered]) -> int:
        """Deliver the records of ``batch`` in order; return how many. After a lasting error also call :meth:`fail`."""

    @abstractmethod
    def count_delivered(self, records: int) -> None:
        """Add ``records`` to this outlet's counter of deliveries; called by the worker's thread only."""

    @abstractmethod
    def count_dropped(self, records: int) -> None:
        """Add ``records`` to this outlet's counter of drops; calls do not overlap."""

    @abstractmethod
    def release(self) -> None:
        """Give back files and sockets; called once, at the end."""
