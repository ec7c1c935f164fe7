"""Pause, resume and weigh a server: its process, all it started, and their memory."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

_ENDED = (psutil.NoSuchProcess, psutil.AccessDenied)


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory of a process tree.

    Attributes:
        pss_bytes: proportional: a page that k processes share counts 1/k in each, so once in all.
        rss_bytes: the sum of what tools show for each process; shared pages count in every one of them.
    """

    pss_bytes: int
    rss_bytes: int


def tree(pid: int) -> list[int]:
    """``pid`` and all its descendants that are alive."""
    try:
        children = psutil.Process(pid).children(recursive=True)
    except _ENDED:
        return []
    return [pid, *(child.pid for child in children)]


def memory(pid: int) -> Memory:
    """Of ``pid`` and its descendants, from ``smaps_rollup``.

    Raises:
        RuntimeError: nothing could be read, because the process has ended.
    """
    totals = {"Pss:": 0, "Rss:": 0}
    for each in tree(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for line in Path(f"/proc/{each}/smaps_rollup").read_text().splitlines():
                name, _, rest = line.partition(" ")
                if name in totals:
                    totals[name] += int(rest.split()[0]) * 1024
    if not totals["Pss:"]:
        raise RuntimeError(f"process {pid} has no memory: it has ended")
    return Memory(totals["Pss:"], totals["Rss:"])


def pause(pid: int) -> None:
    """Stop ``pid``, its process group and its descendants until :func:`resume`."""
    _signal_all(pid, signal.SIGSTOP)


def resume(pid: int) -> None:
    """Let all that :func:`pause` stopped run again."""
    _signal_all(pid, signal.SIGCONT)


@contextlib.contextmanager
def awake(pid: int) -> Iterator[None]:
    """Let a paused server run for a while."""
    resume(pid)
    try:
        yield
    finally:
        pause(pid)


def _signal_all(pid: int, number: signal.Signals) -> None:
    # The group in one call; then what left the group, each by its number.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)
    for each in tree(pid):
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(each) != pid:
                os.kill(each, number)
