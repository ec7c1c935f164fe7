"""Start and stop real servers: this project's, and stock SGLang as the thing to compare with."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

START_TIMEOUT_S = 600.0
_STOP_TIMEOUT_S = 30.0

_STOCK_MODULE = '''"""The least that makes stock SGLang run on a CPU without its own CPU kernels."""


def activate():
    return "stock_cpu_platform.StockCpuPlatform"
'''
_STOCK_PLATFORM = """from sglang.srt.platforms.cpu import CpuSRTPlatform
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import PlatformCapabilities


class StockCpuPlatform(CpuSRTPlatform):
    _enum = PlatformEnum.OOT
    capabilities = PlatformCapabilities()

    def get_default_attention_backend(self):
        return "torch_native"

    def get_dispatch_key_name(self):
        return "native"
"""
STOCK_FLAGS = (
    "--device",
    "cpu",
    "--attention-backend",
    "torch_native",
    "--sampling-backend",
    "pytorch",
    "--dtype",
    "float32",
    "--mem-fraction-static",
    "0.3",
)


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def write_stock_platform(directory: Path) -> None:
    """Write a distribution to ``directory`` that registers a minimal CPU platform named ``stock_cpu``."""
    info = directory / "stock_cpu_platform-1.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (directory / "stock_cpu_entry.py").write_text(_STOCK_MODULE)
    (directory / "stock_cpu_platform.py").write_text(_STOCK_PLATFORM)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stock-cpu-platform\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[sglang.srt.platforms]\nstock_cpu = stock_cpu_entry:activate\n")


@dataclass(slots=True)
class Server:
    """A server process and its log; use it as a context manager.

    Attributes:
        command: the command line, without host and port.
        log: file that takes its output.
        env: added to this process's environment; an empty value removes a variable.
        port: chosen when 0.
    """

    command: Sequence[str]
    log: Path
    env: Mapping[str, str]
    port: int = 0
    process: subprocess.Popen[bytes] | None = None
    ready_s: float = 0.0

    @property
    def url(self) -> str:
        """Base address."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start the process and wait until it is healthy.

        Raises:
            RuntimeError: it ended, or was not healthy in time; the text holds the end of its log.
        """
        self.port = self.port or free_port()
        env = {**os.environ, **self.env}
        env = {key: value for key, value in env.items() if value != ""}
        begin = time.monotonic()
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [*self.command, "--host", "127.0.0.1", "--port", str(self.port)],
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=env,
                start_new_session=True,
            )
        while not self._healthy():
            if self.process.poll() is not None:
                raise RuntimeError(f"server ended with status {self.process.returncode}:\n{self.log_tail()}")
            if time.monotonic() - begin > timeout_s:
                self.stop()
                raise RuntimeError(f"server not healthy after {timeout_s:.0f} s:\n{self.log_tail()}")
            time.sleep(0.2)
        self.ready_s = time.monotonic() - begin

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(self.url + "/health", timeout=10) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def alive(self) -> bool:
        """Whether the process runs and answers."""
        return self.process is not None and self.process.poll() is None and self._healthy()

    def empty_cache(self, timeout_s: float = 60.0) -> None:
        """Wait until nothing runs, and empty the prefix cache.

        Raises:
            RuntimeError: something still ran at the end of that time.
        """
        deadline = time.monotonic() + timeout_s
        request = urllib.request.Request(self.url + "/flush_cache", method="POST")
        while time.monotonic() < deadline:
            with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(request, timeout=60):
                return
            time.sleep(0.2)
        raise RuntimeError(f"the server was not idle within {timeout_s:.0f} s")

    def slots_left_over(self) -> int:
        """KV slots in use once nothing runs and the prefix cache is empty; 0 unless some leaked."""
        self.empty_cache()
        with urllib.request.urlopen(self.url + "/v1/loads", timeout=60) as response:
            return int(json.load(response)["loads"][0]["num_used_tokens"])

    def stop(self) -> None:
        """End the process and all that it started (its own session)."""
        if self.process is None:
            return
        # The main process ends its children in order; a signal to all of them at once would look like a crash.
        self.process.terminate()
        try:
            self.process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process = None

    def log_tail(self, lines: int = 40) -> str:
        """The last lines of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def entropic_server(log: Path, *flags: str, env: Mapping[str, str] | None = None) -> Server:
    """This project's server with ``flags``."""
    return Server([sys.executable, "-m", "sgl_entropic.launch_server", *flags], log, env or {})


def stock_server(log: Path, model_path: str, *flags: str, env: Mapping[str, str] | None = None) -> Server:
    """Stock SGLang on a minimal CPU platform; this package's entry points are left out by SGLang itself."""
    directory = log.parent / "stock_platform"
    write_stock_platform(directory)
    path = os.pathsep.join(item for item in (str(directory), os.environ.get("PYTHONPATH", "")) if item)
    stock = {"PYTHONPATH": path, "SGLANG_PLATFORM": "stock_cpu", "SGLANG_ENTROPIC_CONFIG": "", **(env or {})}
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", model_path, *STOCK_FLAGS, *flags]
    return Server(command, log, stock)
