"""A progress bar on stderr: where it is, and how long it will take."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

_WIDTH = 24
_EVERY_S = 0.5


class Bar:
    """Counts steps of equal weight.

    On a terminal one line is drawn over and over; elsewhere only ``say`` leaves lines.

    Args:
        steps: how many there will be.
        stream: where it is drawn.
        clock: seconds.
    """

    def __init__(
        self, steps: int, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._steps = max(1, steps)
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._begin_s = clock()
        self._drawn_s = -_EVERY_S
        self._done = 0

    def step(self) -> None:
        """One more is done."""
        self._done += 1
        # A glance at the clock costs as much as a block.
        if self._done % 64 == 0 and self._stream.isatty():
            now_s = self._clock()
            if now_s - self._drawn_s >= _EVERY_S:
                self._drawn_s = now_s
                print(f"\r{self.line()}", end="\x1b[K", file=self._stream, flush=True)

    def say(self, text: str) -> None:
        """A line that stays."""
        start = "\r\x1b[K" if self._stream.isatty() else ""
        print(f"{start}{self.line()} {text}", file=self._stream, flush=True)

    def line(self) -> str:
        """The bar, the time so far, and the time foreseen."""
        share = min(1.0, self._done / self._steps)
        elapsed_s = self._clock() - self._begin_s
        full = int(share * _WIDTH)
        whole = _minutes(elapsed_s / share) if share else "?"
        return f"[{'#' * full}{'.' * (_WIDTH - full)}] {share:4.0%} {_minutes(elapsed_s)} of {whole}"


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
