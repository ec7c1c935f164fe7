"""The servers that can be compared, by name, and how each is started and asked."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sgl_entropic.models.catalog import default_model
from sgl_entropic.testing.servers import Server, entropic_server, stock_server
from twin_parts import llamacpp
from twin_parts.client import DIALECTS, Dialect

# Of the servers that have to be told. Twice the longest workload for one request, and as much for all together.
CONTEXT_TOKENS = 8192
NATIVE_CONTEXT_TOKENS = 24576
NATIVE_SLOTS = 16
OURS = {
    "ours": (),
    "ours-float32": ("--entropic-weights", "float32"),
    "ours-int8": ("--entropic-weights", "int8"),
}
PEERS = ("stock", "llamacpp", "llamacpp-native", "hf")
NAMES = (*OURS, *PEERS)
_HF_SCRIPT = Path(__file__).with_name("hf_server.py")


class SlowToHealth(Server):
    """A server whose readiness shows at another path than ``/health``."""

    def _healthy(self) -> bool:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(self.url + "/v1/models", timeout=10) as answer,  # noqa: S310 -- our own server
        ):
            return bool(answer.status == 200)
        return False


@dataclass(frozen=True, slots=True)
class Arm:
    """One side of the comparison.

    Attributes:
        name: as on the command line and in the result.
        kind: key of :data:`~twin_parts.client.DIALECTS`.
        serial: takes one request after another.
        server: its process.
    """

    name: str
    kind: str
    serial: bool
    server: Server

    @property
    def dialect(self) -> Dialect:
        """How it is asked."""
        return DIALECTS[self.kind]

    @property
    def pid(self) -> int:
        """Of its main process, which must have been started."""
        assert self.server.process is not None
        return self.server.process.pid

    @property
    def described(self) -> dict[str, Any]:
        """For the result file, without paths of this machine."""
        words = [Path(word).name if word.startswith("/") else word for word in self.server.command]
        return {"kind": self.kind, "serial": self.serial, "command": " ".join(words)}


def named_flags(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """``name=--flag value ...`` to flags by name.

    Raises:
        ValueError: no name, or one that is taken.
    """
    result: dict[str, tuple[str, ...]] = {}
    for text in texts:
        name, equals, flags = text.partition("=")
        if not equals or not name or name.startswith("-"):
            raise ValueError(f"--arm {text!r} is not of the form 'name=--flag value ...'")
        if name in NAMES or name in result:
            raise ValueError(f"--arm {name!r}: there is an arm of that name already")
        result[name] = tuple(shlex.split(flags))
    return result


def make(
    name: str, own: Mapping[str, Sequence[str]], model: Path, folder: Path, stock_flags: Sequence[str] = ()
) -> Arm:
    """The arm ``name``, not started; what it needs is installed.

    Args:
        name: one of :data:`NAMES`, or a key of ``own``.
        own: flags of further arms of this project's server.
        model: directory of the float32 weights, the default model's where llama.cpp takes part.
        folder: for logs.
        stock_flags: further flags of stock SGLang.

    Raises:
        ValueError: the name is unknown.
        RuntimeError: an installation failed.
    """
    log = folder / f"{name}.log"
    threads = str(len(os.sched_getaffinity(0)))
    flags = {**OURS, **own}.get(name)
    if flags is not None:
        return Arm(name, "sglang", False, entropic_server(log, "--model-path", str(model), *flags))
    if name == "stock":
        return Arm(name, "sglang", False, stock_server(log, str(model), *stock_flags))
    if name == "hf":
        return Arm(
            name, "hf", True, Server([sys.executable, str(_HF_SCRIPT), "--model", str(model)], log, {})
        )
    if name not in PEERS:
        raise ValueError(f"no arm {name!r}; there are {', '.join(NAMES)} and those of --arm")
    gguf = str(llamacpp.weights(default_model()))
    # This project's sources must not reach another environment's Python.
    env = {"PYTHONPATH": "", "VIRTUAL_ENV": ""}
    if name == "llamacpp-native":
        slots = ["-c", str(NATIVE_CONTEXT_TOKENS), "-np", str(NATIVE_SLOTS), "--kv-unified"]
        cores = ["-t", threads, "-tb", threads]
        command = [str(llamacpp.native_server()), "-m", gguf, *slots, *cores, "--no-webui"]
        return Arm(name, name, False, Server(command, log, env))
    # Its defaults compute and keep the logits of every prompt token, and cut off an answer when another request comes.
    lean = ["--n_ctx", str(CONTEXT_TOKENS), "--logits_all", "false", "--interrupt_requests", "false"]
    cores = ["--n_threads", threads, "--n_threads_batch", threads]
    command = [str(llamacpp.python()), "-m", "llama_cpp.server", "--model", gguf, *lean, *cores]
    return Arm(name, name, True, SlowToHealth(command, log, env))


def found_weight_bytes(url: str) -> int | None:
    """``weight_bytes`` anywhere in what the server says of itself, or ``None``."""
    with (
        contextlib.suppress(OSError, ValueError),
        urllib.request.urlopen(url + "/server_info", timeout=60) as answer,  # noqa: S310 -- our own server
    ):
        return _find(json.load(answer), "weight_bytes")
    return None


def _find(value: Any, key: str) -> int | None:
    if isinstance(value, dict):
        if isinstance(value.get(key), int):
            return int(value[key])
        value = list(value.values())
    if isinstance(value, list):
        return next((found for each in value if (found := _find(each, key)) is not None), None)
    return None
