"""llama.cpp, brought by its Python package: an environment of its own, the native server out of the same source, the weights.

Everything lies outside the clone: environments beside this project's own, the weights in the project's cache. What is there
is used; what is missing is made, and every step is told.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from sgl_entropic import activation
from sgl_entropic.models.catalog import ModelEntry
from sgl_entropic.models.download import download, wheel_at_hand
from sgl_entropic.models.progress import StderrReport
from sgl_entropic.models.store import Store

# One version for every run, so that runs can be compared; raise at will.
VERSION = "0.3.36"
_PACKAGE = "llama-cpp-python"
_TELL_S = 30.0
_CMAKE_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
)


def environment() -> Path:
    """The directory of the environment, made or not."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    root = os.environ.get("SGLANG_ENTROPIC_VENV_ROOT") or str(cache / "sgl_entropic" / "venvs")
    return Path(root) / f"llamacpp-{VERSION}"


def python() -> Path:
    """A Python that has the package, installed if it was missing (a compilation of some minutes).

    Raises:
        RuntimeError: the installation failed; the text holds the end of its output.
    """
    folder = environment()
    with _locked(folder):
        if not (folder / ".complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _step("creating the environment", folder, [sys.executable, "-m", "venv", str(folder)])
            _step(
                f"compiling and installing {_PACKAGE} {VERSION}",
                folder,
                [str(folder / "bin/python"), "-m", "pip", "install", f"{_PACKAGE}[server]=={VERSION}"],
            )
            (folder / ".complete").touch()
    return folder / "bin/python"


def native_server() -> Path:
    """llama.cpp's own server, compiled from the source that the package brings.

    Raises:
        RuntimeError: a step failed, for example as cmake or a compiler is missing; the text holds the end of its output.
    """
    pip = [str(python()), "-m", "pip"]
    folder = environment()
    binary = folder / "bin/llama-server"
    with _locked(folder), tempfile.TemporaryDirectory(prefix="llamacpp_") as scratch:
        if binary.exists():
            return binary
        source, build = Path(scratch) / "source", Path(scratch) / "build"
        options = ["--no-deps", f"--no-binary={_PACKAGE}", "--dest", scratch]
        _step("fetching the source", folder, [*pip, "download", *options, f"{_PACKAGE}=={VERSION}"])
        with tarfile.open(next(Path(scratch).glob("*.tar.gz"))) as archive:
            archive.extractall(source, filter="data")
        vendored = next(source.glob("*/vendor/llama.cpp"))
        _step(
            "configuring llama-server",
            folder,
            ["cmake", "-S", str(vendored), "-B", str(build), *_CMAKE_FLAGS],
        )
        jobs = str(len(os.sched_getaffinity(0)))
        _step(
            "compiling llama-server",
            folder,
            ["cmake", "--build", str(build), "--target", "llama-server", "-j", jobs],
        )
        temporary = binary.with_suffix(".new")
        shutil.copy2(build / "bin/llama-server", temporary)
        temporary.replace(binary)
    return binary


def weights(entry: ModelEntry) -> Path:
    """The GGUF file that ``entry`` was converted from, unpacked from its wheel, which is fetched if it was not kept.

    Raises:
        RuntimeError: the file in the wheel is not the one of the catalogue.
    """
    target = activation.cache_dir() / "gguf" / Path(entry.member).name
    if target.exists() and target.stat().st_size == entry.member_bytes:
        return target
    report, store = StderrReport(), Store.default()
    with store.locked(report) as lock_fd, store.staging() as folder:
        wheel = wheel_at_hand(store, entry, None, folder, report)
        if wheel is None:
            wheel = store.keep_wheel(download(store, entry, folder, lock_fd, report), entry)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_suffix(".new")
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(entry.member) as packed,
            temporary.open("wb") as out,
        ):
            shutil.copyfileobj(packed, out)
        with temporary.open("rb") as unpacked:
            digest = hashlib.file_digest(unpacked, "sha256").hexdigest()
        if digest != entry.member_sha256:
            raise RuntimeError(f"{temporary} has sha256 {digest}, expected {entry.member_sha256}")
        temporary.replace(target)
    return target


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(folder.name + ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _step(what: str, folder: Path, command: Sequence[str]) -> None:
    log = folder.with_name(folder.name + ".log")
    _say(f"{what}; details in {log}")
    begin = time.monotonic()
    with log.open("ab") as out:
        try:
            process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
            )
        except FileNotFoundError as error:
            raise RuntimeError(f"{what}: {command[0]} is not installed") from error
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = process.wait(_TELL_S)
                break
            _say(f"  {what}: {time.monotonic() - begin:.0f} s")
    if status != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-30:])
        raise RuntimeError(f"{what} failed with status {status}: {' '.join(command)}\n{tail}")


def _say(text: str) -> None:
    print(f"llama.cpp: {text}", file=sys.stderr, flush=True)
