"""What a fetch tells about itself while it runs, and how that looks on stderr."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import TextIO

_MEGABYTE = 1_000_000
_STEP_PERCENT = 10  # how often a log file (not a terminal) gets a line


@dataclasses.dataclass(frozen=True, slots=True)
class Progress:
    """One report: a sentence, and how many of how many bytes where that is known (``total_bytes`` 0: not)."""

    text: str
    done_bytes: int = 0
    total_bytes: int = 0

    @property
    def percent(self) -> int:
        """Whole percent done, 0 to 100; 0 where no total is known."""
        return min(100, 100 * self.done_bytes // self.total_bytes) if self.total_bytes else 0


Report = Callable[[Progress], None]


class StderrReport:
    """Writes reports to a stream: in place on a terminal, else one line per sentence and per 10 percent."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._shown: tuple[str, int] | None = None
        self._open_line = False

    def __call__(self, progress: Progress) -> None:
        """Show one report, unless it would repeat the line before."""
        terminal = self._stream.isatty()
        step = 1 if terminal or not progress.total_bytes else _STEP_PERCENT
        key = (progress.text, progress.percent // step)
        if key == self._shown:
            return
        in_place = terminal and self._shown is not None and self._shown[0] == progress.text
        self._write(self._line(progress), in_place=in_place, keep_open=terminal and progress.total_bytes > 0)
        self._shown = key

    def close(self) -> None:
        """End a line that was left open for its next percent."""
        if self._open_line:
            self._stream.write("\n")
            self._stream.flush()
            self._open_line = False

    def _write(self, line: str, *, in_place: bool, keep_open: bool) -> None:
        if in_place:
            self._stream.write("\r")
        else:
            self.close()
        self._stream.write(line if keep_open else f"{line}\n")
        self._stream.flush()
        self._open_line = keep_open

    @staticmethod
    def _line(progress: Progress) -> str:
        if not progress.total_bytes:
            return progress.text
        done, total = progress.done_bytes / _MEGABYTE, progress.total_bytes / _MEGABYTE
        return f"{progress.text}: {progress.percent:3d}% ({done:.1f} of {total:.1f} MB)"
