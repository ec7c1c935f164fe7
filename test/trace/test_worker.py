"""The bounded queue under any speed of delivery: offered = delivered + dropped."""

from __future__ import annotations

import threading

from hypothesis import given, settings
from hypothesis import strategies as st

from sgl_entropic.trace.record import StepRecord
from sgl_entropic.trace.worker import Worker


class Slow(Worker):
    """Delivers in the given portions of time, and fails at a given record."""

    def __init__(self, capacity: int, delays_us: list[int], fails_at: int | None) -> None:
        super().__init__("slow", capacity)
        self.steps: list[int] = []
        self.dropped = 0
        self.released = False
        self._delays_us = delays_us
        self._fails_at = fails_at

    def deliver(self, records: list[StepRecord]) -> None:
        threading.Event().wait(self._delays_us[len(self.steps) % len(self._delays_us)] / 1e6)
        for index, record in enumerate(records):
            if record.step == self._fails_at:
                self.drop(len(records) - index)
                raise OSError("broken")
            self.steps.append(record.step)

    def count_dropped(self, records: int) -> None:
        self.dropped += records

    def release(self) -> None:
        self.released = True


@settings(max_examples=40)
@given(
    capacity=st.integers(1, 20),
    offered=st.integers(0, 200),
    delays_us=st.lists(st.integers(0, 300), min_size=1, max_size=5),
    fails_at=st.none() | st.integers(0, 200),
)
def test_nothing_is_lost_silently(
    capacity: int, offered: int, delays_us: list[int], fails_at: int | None
) -> None:
    """Whatever the speed and wherever it breaks, the two counts add up and the order is kept."""
    worker = Slow(capacity, delays_us, fails_at)
    for step in range(offered):
        worker.offer(StepRecord(step, 0, "decode", ()))
    worker.close(30)
    assert len(worker.steps) + worker.dropped == offered
    assert worker.steps == sorted(set(worker.steps))
    assert worker.released == (offered > 0)
    if fails_at is not None and fails_at < offered:
        assert fails_at not in worker.steps
