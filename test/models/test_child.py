"""A child process that passes everything through and never outlives its parent."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sgl_entropic.models import child


@pytest.fixture
def lock_fd(tmp_path) -> None:
    descriptor = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    yield descriptor
    os.close(descriptor)


def run(tmp_path, lock_fd, source, **options: Any) -> None:
    script = tmp_path / "script.py"
    script.write_text(source)
    settings = {"environment": {}, "on_tick": lambda: None, "on_line": lambda line: None, **options}
    return child.run_child([str(script), "one", "two"], log=tmp_path / "log", lock_fd=lock_fd, **settings)


def test_arguments_environment_and_output_pass_through(tmp_path: Path, lock_fd: int) -> None:
    lines: list[str] = []
    source = "import os, sys\nprint(sys.argv[1:], os.environ['WORD'])\nprint('err', file=sys.stderr)\nsys.exit(3)\n"
    status = run(tmp_path, lock_fd, source, environment={"WORD": "said"}, on_line=lines.append)
    assert status == 3
    assert sorted(lines) == ["['one', 'two'] said", "err"]


def test_the_folder_of_the_runner_shadows_no_module(tmp_path: Path, lock_fd: int) -> None:
    """``progress`` and ``store`` lie beside the runner; a program's own import of such a name must not find them."""
    assert (
        run(tmp_path, lock_fd, "import importlib.util\nassert importlib.util.find_spec('progress') is None\n")
        == 0
    )


def test_a_module_runs_as_with_dash_m(tmp_path: Path, lock_fd: int) -> None:
    lines: list[str] = []
    status = child.run_child(
        ["json.tool", "--help"],
        log=tmp_path / "log",
        environment={},
        lock_fd=lock_fd,
        on_tick=lambda: None,
        on_line=lines.append,
    )
    assert status == 0
    assert any("usage" in line for line in lines)


def test_the_signal_that_ended_it_is_told(tmp_path: Path, lock_fd: int) -> None:
    status = run(tmp_path, lock_fd, "import os\nprint('last words', flush=True)\nos.kill(os.getpid(), 9)\n")
    assert status == -signal.SIGKILL
    text = child.failure_text(status, tmp_path / "log")
    assert text == "was ended by signal 9, most likely for want of memory: last words"


def test_silence_is_told_as_such(tmp_path: Path, lock_fd: int) -> None:
    status = run(tmp_path, lock_fd, "raise SystemExit(4)\n")
    assert child.failure_text(status, tmp_path / "log") == "(exit status 4): it said nothing"


def test_an_exception_in_the_parent_ends_the_child(tmp_path: Path, lock_fd: int, processes: Any) -> None:
    pids: list[int] = []

    def stop(line: str) -> None:
        pids.append(int(line))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(
            tmp_path,
            lock_fd,
            "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n",
            on_line=stop,
        )
    assert not processes.alive(pids[0])


def test_a_killed_parent_takes_the_child_along_and_the_lock_falls_free(
    tmp_path: Path, lock_fd: int, processes: Any
) -> None:
    script, log = tmp_path / "sleeper.py", tmp_path / "sleeper.log"
    script.write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n")
    parent_source = (
        "import fcntl, os, sys\nfrom pathlib import Path\nfrom sgl_entropic.models.child import run_child\n"
        "lock = os.open(sys.argv[3], os.O_RDWR)\nfcntl.flock(lock, fcntl.LOCK_EX)\n"
        "run_child([sys.argv[1]], log=Path(sys.argv[2]), environment={}, lock_fd=lock,\n"
        "          on_tick=lambda: None, on_line=lambda line: None)\n"
    )
    command = [sys.executable, "-c", parent_source, str(script), str(log), str(tmp_path / "lock")]
    environment = {**os.environ, "PYTHONPATH": str(Path(child.__file__).parents[2])}
    with subprocess.Popen(command, env=environment) as parent:
        processes.wait_until(lambda: log.exists() and log.read_text().endswith("\n"))
        pid = int(log.read_text())
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        parent.kill()
    processes.wait_until(lambda: not processes.alive(pid))
    fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
