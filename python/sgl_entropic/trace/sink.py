"""Step records as lines of JSON in a file."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import BinaryIO

import orjson

from sgl_entropic import __version__
from sgl_entropic.errors import ConfigError
from sgl_entropic.trace.counters import Counters
from sgl_entropic.trace.record import SCHEMA_VERSION, StepRecord, encode
from sgl_entropic.trace.worker import Worker


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
            self._file: BinaryIO = Path(path).open("ab", buffering=0)  # noqa: SIM115 -- open as long as the server runs
        except OSError as error:
            msg = f"trace.path = {path!r} cannot be written ({error.strerror}); accepted: a file in a writable directory"
            raise ConfigError(msg) from None
        self._header: bytes | None = orjson.dumps(
            {
                "kind": "header",
                "schema": SCHEMA_VERSION,
                "package": "sgl_entropic",
                "version": __version__,
                "started": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            }
        )

    def deliver(self, records: list[StepRecord]) -> None:
        """Write ``records`` in one go; on a disk error all of them count as dropped."""
        lines = [encode(record) for record in records]
        if self._header is not None:
            lines.insert(0, self._header)
        try:
            self._write(b"\n".join(lines) + b"\n")
        except OSError:
            self.drop(len(records))
            raise
        self._header = None
        self._counters.trace_written += len(records)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]

    def count_dropped(self, records: int) -> None:
        """Into ``trace_dropped``."""
        self._counters.trace_dropped += records

    def release(self) -> None:
        """Close the file."""
        self._file.close()
