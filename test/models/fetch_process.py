"""Fetches one fake model in a process of its own, and can be made to stop for good at a named point."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sgl_entropic.models import fetch, manifest
from sgl_entropic.models.catalog import ModelEntry
from sgl_entropic.models.progress import Report
from sgl_entropic.models.store import Store

TASK: dict[str, Any] = json.loads(sys.argv[1])

# point -> (where the function lives, its name, whether to stop once it has returned)
POINTS: dict[str, tuple[Any, str, bool]] = {
    "before the wheel is kept": (Store, "keep_wheel", False),
    "after the wheel is kept": (Store, "keep_wheel", True),
    "after unpacking": (fetch, "_extract", True),
    "before the manifest": (manifest, "write", False),
    "before the rename": (Store, "publish", False),
    "after the rename": (Store, "publish", True),
}


def pause() -> None:
    Path(TASK["reached"]).touch()
    while not Path(TASK["release"]).exists():
        time.sleep(0.02)


def stop_at(owner: Any, name: str, *, after: bool) -> None:
    original: Callable[..., Any] = getattr(owner, name)

    def stopping(*arguments: Any, **keywords: Any) -> Any:
        if not after:
            pause()
        result = original(*arguments, **keywords)
        if after:
            pause()
        return result

    setattr(owner, name, stopping)


def convert(gguf: Path, target: Path, lock_fd: int, report: Report) -> None:
    weights = gguf.read_bytes()[::-1]
    with Path(TASK["conversions"]).open("a") as stream:
        stream.write("one\n")
    if TASK["stop_at"] == "while converting":
        (target / "model.safetensors").write_bytes(weights[: len(weights) // 2])
        pause()
    (target / "model.safetensors").write_bytes(weights)
    (target / "config.json").write_text("{}")


if TASK["stop_at"] in POINTS:
    place, function, when = POINTS[TASK["stop_at"]]
    stop_at(place, function, after=when)
sys.stdout.write(f"{fetch.fetch(ModelEntry(**TASK['entry']), converter=convert)}\n")
