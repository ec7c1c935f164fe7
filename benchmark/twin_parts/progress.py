"""What a long run says on stderr: where it is, what it just saw, how long it will take."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Hashable
from typing import TextIO


class Progress:
    """Counts steps and foresees the rest from steps of the same kind.

    Args:
        kinds: the kind of every step to come, in any order.
        stream: where lines go.
        clock: seconds.
    """

    def __init__(
        self,
        kinds: list[Hashable],
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._left = list(kinds)
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._begin_s = self._last_s = clock()
        self._seen_s: dict[Hashable, float] = {}

    def done(self, kind: Hashable, text: str) -> None:
        """A step of ``kind`` has ended."""
        now_s = self._clock()
        self._seen_s[kind] = now_s - self._last_s
        self._last_s = now_s
        self._left.remove(kind)
        self.say(text)

    def say(self, text: str) -> None:
        """A line with the time so far and the time foreseen."""
        elapsed_s = self._clock() - self._begin_s
        left_s = self.left_s()
        whole = "?" if left_s is None else _minutes(elapsed_s + left_s)
        print(f"[{_minutes(elapsed_s)} of {whole}] {text}", file=self._stream, flush=True)

    def left_s(self) -> float | None:
        """Seconds foreseen; ``None`` before the first step has ended."""
        if not self._seen_s:
            return None
        mean_s = sum(self._seen_s.values()) / len(self._seen_s)
        return sum(self._seen_s.get(kind, mean_s) for kind in self._left)


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
