"""Runs pip or the conversion in a child process that cannot outlive its parent.

The parent holds the write end of the child's stdin. When the parent dies, however it dies, the child reads the end
of that pipe and exits at once, so a killed fetch leaves nobody writing into the cache. Run as a script, this file is
that child: its first argument is a module name or a ``.py`` path, the rest is that program's command line.
"""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_TICK_S = 0.2
_LOG_LINES = 4


def run_child(
    arguments: Sequence[str],
    *,
    log: Path,
    environment: Mapping[str, str],
    lock_fd: int,
    on_tick: Callable[[], None],
    on_line: Callable[[str], None],
) -> int:
    """Run a Python program with this interpreter and wait for it.

    Args:
        arguments: module name or ``.py`` path, then its command line.
        log: file that gets the program's stdout and stderr.
        environment: variables to set on top of this process's own.
        lock_fd: open lock file that the child shares, so that the lock lasts as long as the child.
        on_tick: called about five times a second.
        on_line: called with each finished line of the log.

    Returns:
        The exit status; negative for the signal that ended the child.
    """
    seen_bytes = 0
    with log.open("wb") as output:
        child = subprocess.Popen(  # noqa: S603 -- our own interpreter, arguments from the catalogue
            # -P: the folder of this file must not shadow modules of the program that runs
            [sys.executable, "-P", str(Path(__file__).resolve()), *arguments],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            pass_fds=(lock_fd,),
        )
    try:
        while True:
            status = _wait_tick(child)
            seen_bytes = _forward_lines(log, seen_bytes, on_line)
            on_tick()
            if status is not None:
                return status
    finally:
        child.kill()
        child.wait()
        assert child.stdin is not None
        child.stdin.close()


def failure_text(status: int, log: Path) -> str:
    """Say how a child of :func:`run_child` ended, with the last lines that it wrote."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    said = " | ".join(lines[-_LOG_LINES:]) or "it said nothing"
    if status < 0:
        hint = ", most likely for want of memory" if status == -signal.SIGKILL else ""
        return f"was ended by signal {-status}{hint}: {said}"
    return f"(exit status {status}): {said}"


def _wait_tick(child: subprocess.Popen[bytes]) -> int | None:
    try:
        return child.wait(timeout=_TICK_S)
    except subprocess.TimeoutExpired:
        return None


def _forward_lines(log: Path, seen_bytes: int, on_line: Callable[[str], None]) -> int:
    with log.open("rb") as stream:
        stream.seek(seen_bytes)
        new = stream.read()
    finished = new[: new.rfind(b"\n") + 1]
    for line in finished.decode(errors="replace").splitlines():
        on_line(line)
    return seen_bytes + len(finished)


def _exit_with_parent() -> None:
    # os.read, not sys.stdin: a buffered reader's lock would still be held when the interpreter shuts down
    while os.read(0, 1):
        pass
    os._exit(1)


def _main() -> None:
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    program, sys.argv = sys.argv[1], sys.argv[1:]
    if program.endswith(".py"):
        runpy.run_path(program, run_name="__main__")
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
