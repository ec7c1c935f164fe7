"""The bounded queue under any speed of delivery: offered = delivered + dropped."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl_entropic.trace.record import StepRecord
from sgl_entropic.trace.worker import Numbered, Worker


class Slow(Worker):
    """Delivers in the given portions of time, and fails at a given record: by raising, or by saying how far it came."""

    def __init__(
        self, capacity: int, delays_us: list[int], fails_at: int | None = None, *, raises: bool = True
    ) -> None:
        super().__init__("slow", capacity)
        self.steps: list[int] = []
        self.numbers: list[int] = []
        self.delivered = 0
        self.dropped = 0
        self.released = 0
        self._delays_us = delays_us
        self._fails_at = fails_at
        self._raises = raises

    def deliver(self, batch: list[Numbered]) -> int:
        threading.Event().wait(self._delays_us[len(self.steps) % len(self._delays_us)] / 1e6)
        steps = [record.step for _, record in batch]
        taken = steps.index(self._fails_at) if self._fails_at in steps else len(steps)
        if taken < len(steps):
            if self._raises:
                raise OSError("broken")
            self.fail(OSError("broken"))
        self.steps += steps[:taken]
        self.numbers += [number for number, _ in batch[:taken]]
        return taken

    def count_delivered(self, records: int) -> None:
        self.delivered += records

    def count_dropped(self, records: int) -> None:
        self.dropped += records

    def release(self) -> None:
        self.released += 1


def record(step: int) -> StepRecord:
    return StepRecord(step, 0, "decode", ())


@settings(max_examples=60)
@given(
    capacity=st.integers(1, 20),
    offered=st.integers(0, 600),
    delays_us=st.lists(st.integers(0, 300), min_size=1, max_size=5),
    fails_at=st.none() | st.integers(0, 200),
    raises=st.booleans(),
)
def test_nothing_is_lost_silently(
    capacity: int,
    offered: int,
    delays_us: list[int],
    fails_at: int | None,
    raises: bool,  # noqa: FBT001
) -> None:
    """Whatever the speed and wherever it breaks, the two counts add up, and order and numbers are kept."""
    worker = Slow(capacity, delays_us, fails_at, raises=raises)
    accepted = [worker.offer(record(step)) for step in range(offered)]
    worker.close(30)
    assert worker.delivered + worker.dropped == offered
    assert worker.delivered == len(worker.steps) <= sum(accepted)
    assert worker.steps == sorted(set(worker.steps))
    assert worker.numbers == [step + 1 for step in worker.steps]
    assert worker.released == 1
    if fails_at is not None and fails_at < offered and accepted[fails_at]:
        assert all(step < fails_at for step in worker.steps)
    elif fails_at is None:
        assert worker.steps == [step for step, taken in enumerate(accepted) if taken]


def test_what_comes_after_the_end_is_counted() -> None:
    """A closed worker takes nothing, and says so."""
    worker = Slow(16, [0])
    worker.offer(record(0))
    worker.close()
    assert not worker.offer(record(1))
    worker.close()
    assert (worker.delivered, worker.dropped, worker.released) == (1, 1, 1)


def test_a_worker_that_was_never_used_gives_back_what_it_holds() -> None:
    """Without a thread, too."""
    worker = Slow(16, [0])
    worker.close()
    assert worker.released == 1


def test_no_thread_to_be_had_is_a_drop(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exhausted machine must not take the server down; when it recovers, so does the worker."""
    worker = Slow(16, [0])

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert not worker.offer(record(0))
    assert worker.offer(record(1))
    worker.close()
    assert (worker.steps, worker.dropped) == ([1], 1)


def test_one_line_tells_of_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """Not one for each record that is lost from then on."""
    worker = Slow(1000, [0], fails_at=0)
    for step in range(600):
        worker.offer(record(step))
    worker.close()
    assert (worker.delivered, worker.dropped) == (0, 600)
    assert [line.getMessage() for line in caplog.records] == [
        "slow stops, records are dropped from here on: broken"
    ]
