"""Step records as lines of JSON in a file."""

from __future__ import annotations

import datetime as dt
import errno
import os
import stat
from pathlib import Path

import orjson

from sgl_entropic import __version__
from sgl_entropic.errors import ConfigError
from sgl_entropic.trace.counters import Counters
from sgl_entropic.trace.record import SCHEMA_VERSION, encode
from sgl_entropic.trace.worker import Numbered, Worker


class JsonlSink(Worker):
    """Appends to a file; each start of a server appends a header line before its first records."""

    def __init__(self, path: str, queue_records: int, counters: Counters) -> None:
        """Open ``path`` for appending.

        Raises:
            ConfigError: the file cannot be opened.
        """
        super().__init__("trace file", queue_records)
        self._counters = counters
        try:
            self._file_descriptor = _open(path)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            reason = error.strerror if isinstance(error, OSError) else str(error)
            msg = (
                f"trace.path = {path!r} cannot be written ({reason}); expected a file in a writable directory"
            )
            raise ConfigError(msg) from None
        # Once something has been written, nothing.
        self._head = (b"\n" if _ends_torn(path) else b"") + _header() + b"\n"

    def deliver(self, batch: list[Numbered]) -> int:
        """Write the records in one go; after a disk error, those whose line is complete are written."""
        lines = b"".join(encode(record, sequence=number) + b"\n" for number, record in batch)
        data, skipped = self._head + lines, self._head.count(b"\n")
        written = 0
        try:
            _check_linked(self._file_descriptor)
            while written < len(data):
                written += os.write(self._file_descriptor, memoryview(data)[written:])
        except OSError as error:
            self.fail(error)
            return max(0, data.count(b"\n", 0, written) - skipped)
        self._head = b""
        return len(batch)

    def count_delivered(self, records: int) -> None:
        """Into ``trace_written``."""
        self._counters.trace_written += records

    def count_dropped(self, records: int) -> None:
        """Into ``trace_dropped``."""
        self._counters.trace_dropped += records

    def release(self) -> None:
        """Close the file."""
        os.close(self._file_descriptor)


def _open(path: str) -> int:
    # Without O_NONBLOCK the start of the server would wait for the reader of a named pipe; so it is refused.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o666)
    os.set_blocking(descriptor, True)
    return descriptor


def _ends_torn(path: str) -> bool:
    """Whether the last line lacks its end: an earlier server was killed, or its disk was full, while it wrote."""
    try:
        if not stat.S_ISREG(Path(path).stat().st_mode):
            return False
        with Path(path).open("rb") as file:
            if file.seek(0, os.SEEK_END) == 0:
                return False
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except OSError:  # a file that may be written and not read
        return False


def _header() -> bytes:
    return orjson.dumps(
        {
            "kind": "header",
            "schema": SCHEMA_VERSION,
            "package": "sgl_entropic",
            "version": __version__,
            "started": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        }
    )


def _check_linked(descriptor: int) -> None:
    """A file that was removed takes every write and keeps none."""
    if os.fstat(descriptor).st_nlink == 0:
        raise OSError(errno.ENOENT, "the file was removed")
