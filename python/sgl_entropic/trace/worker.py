"""A bounded queue and one thread that empties it: the caller never waits, and what does not fit is counted."""

from __future__ import annotations

import logging
import queue
import threading
from abc import ABC, abstractmethod

from sgl_entropic.trace.record import StepRecord

logger = logging.getLogger(__name__)

_BATCH = 256


class Worker(ABC):
    """Base of the outlets.

    Every record that is offered ends in exactly one of two counts, delivered or dropped; the sum is the number offered,
    once the queue is empty.
    """

    def __init__(self, name: str, queue_records: int) -> None:
        """Make a worker whose queue holds ``queue_records``; its thread starts with the first record."""
        self._name = name
        self._queue: queue.Queue[StepRecord | None] = queue.Queue(queue_records)
        self._thread: threading.Thread | None = None
        self._broken = False
        self._counting = threading.Lock()

    def offer(self, record: StepRecord) -> bool:
        """Queue ``record``; ``False`` when it was dropped. Never blocks and never raises."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        try:
            self._queue.put_nowait(record)
        except queue.Full:
            self.drop(1)
            return False
        return True

    def close(self, timeout_s: float = 5.0) -> None:
        """Deliver what is queued and end the thread, waiting at most ``timeout_s``."""
        if self._thread is None:
            return
        try:
            self._queue.put(None, timeout=timeout_s)
        except queue.Full:
            return
        self._thread.join(timeout_s)

    def _run(self) -> None:
        running = True
        while running:
            batch = [self._queue.get()]
            while len(batch) < _BATCH:
                try:
                    batch.append(self._queue.get_nowait())
                except queue.Empty:
                    break
            running = None not in batch
            records = [record for record in batch if record is not None]
            if records:
                self._deliver_or_drop(records)
        self.release()

    def _deliver_or_drop(self, records: list[StepRecord]) -> None:
        if self._broken:
            self.drop(len(records))
            return
        try:
            self.deliver(records)
        except Exception as error:  # noqa: BLE001 -- an outlet that fails must not take the server with it
            self._broken = True
            logger.error("%s stops after an error, records are dropped from here on: %s", self._name, error)  # noqa: TRY400 -- one line

    def drop(self, records: int) -> None:
        """Count ``records`` as dropped; called by the offering thread (queue full) and by the worker's (not delivered)."""
        with self._counting:
            self.count_dropped(records)

    @abstractmethod
    def deliver(self, records: list[StepRecord]) -> None:
        """Deliver ``records`` and count each of them, as delivered or with :meth:`drop`, also when raising."""

    @abstractmethod
    def count_dropped(self, records: int) -> None:
        """Add ``records`` to this outlet's counter of drops."""

    @abstractmethod
    def release(self) -> None:
        """Give back files and sockets; called by the worker's thread at its end."""
