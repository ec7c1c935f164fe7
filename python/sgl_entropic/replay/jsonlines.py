"""JSON lines as people have them: packed or not, with blank lines, of any origin; what is wrong is told by path, line, field and value."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar, cast

MOST = 1 << 53
"""No whole number is larger: up to here a double is exact."""
_GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_MOST_SHOWN = 40
_Row = TypeVar("_Row")


def read(path: Path, parse: Callable[[dict[str, Any]], _Row], most: int | None = None) -> list[_Row]:
    """Parse the first ``most`` objects of a file, or all: UTF-8 with or without a byte order mark, or that packed by gzip.

    Blank lines are skipped.

    Args:
        path: the file.
        parse: makes a row of an object; its ``ValueError`` says what is wrong with it.
        most: objects that are read.

    Raises:
        ValueError: a line is malformed, or the file is damaged; the text has the path and the line's number.
        OSError: the file cannot be opened.
    """
    rows: list[_Row] = []
    with path.open("rb") as packed:
        # Told by its first bytes, as a name says little and a pipe cannot go back.
        gzipped = packed.peek(2)[:2] == _GZIP
        stream = cast("IO[bytes]", gzip.GzipFile(fileobj=packed)) if gzipped else packed
        for number, line in _lines(path, stream):
            if most is not None and len(rows) >= most:
                break
            try:
                rows.append(parse(_object(line)))
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from error
    return rows


def number(row: dict[str, Any], field: str) -> float:
    """A finite number of at least 0.

    Raises:
        ValueError: it is something else; the text has the field and its value.
    """
    value = row[field]
    try:
        if not isinstance(value, bool) and isinstance(value, int | float):
            exact = float(value)
            if math.isfinite(exact) and exact >= 0:
                return exact
    except OverflowError:
        pass
    raise ValueError(f"{field} is {shown(value)}: a finite number of at least 0 is needed")


def whole(row: dict[str, Any], field: str) -> int:
    """A whole number of at least 0, also as 5.0.

    Raises:
        ValueError: it is something else; the text has the field and its value.
    """
    value = row[field]
    if not isinstance(value, bool) and isinstance(value, int | float) and 0 <= value <= MOST:
        exact = int(value)
        if exact == value:
            return exact
    raise ValueError(f"{field} is {shown(value)}: a whole number from 0 to 2^53 is needed")


def identifier(value: object, field: str) -> int:
    """A whole number of any size and sign. Not as 5.0: of a large one a float has lost digits.

    Raises:
        ValueError: it is something else; the text has the field and the value.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{field} is {shown(value)}: a whole number is needed")  # noqa: TRY004 -- what a file holds is a value
    return value


def shown(value: object) -> str:
    """A value as text, cut where it is long."""
    try:
        text = repr(value)
    except RecursionError:
        return "nested too deeply"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}... ({len(text)} characters)"


def _lines(path: Path, stream: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    number = 0
    try:
        for number, line in enumerate(stream, 1):
            text = line.removeprefix(_BOM) if number == 1 else line
            if text.strip():
                yield number, text
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}, line {number + 1}: cannot be read: {error}") from error


def _object(line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 text: {error.reason} at byte {error.start + 1}") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from error
    except RecursionError as error:
        raise ValueError("not a JSON object: nested too deeply") from error
    except ValueError as error:  # Python converts only so many digits
        raise ValueError("a number has too many digits") from error
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 -- what a file holds is a value
    return row
