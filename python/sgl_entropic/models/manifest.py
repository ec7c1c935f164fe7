"""``manifest.json`` of a converted model: what its files must be, and where they came from.

It is written last, so a directory without one is no model.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
from pathlib import Path
from typing import Any

from sgl_entropic.models.catalog import ModelEntry

FILE_NAME = "manifest.json"
_FORMAT = 1
_CHUNK_BYTES = 1 << 20
_CONVERTERS = ("torch", "transformers", "gguf", "tokenizers", "safetensors", "accelerate")


def sha256_of(path: Path) -> str:
    """SHA-256 of a file as lower-case hex."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def write(folder: Path, entry: ModelEntry) -> None:
    """Write the manifest of the files that lie in ``folder``."""
    files = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
        for path in _files(folder)
    }
    content = {
        "format": _FORMAT,
        "model": entry.name,
        "conversion": entry.conversion,
        "licence": entry.licence,
        "source": {
            "requirement": entry.requirement,
            "wheel_sha256": entry.wheel_sha256,
            "member": entry.member,
            "member_sha256": entry.member_sha256,
        },
        "versions": {"python": platform.python_version(), **_versions()},
        "files": files,
    }
    (folder / FILE_NAME).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def problems(folder: Path, entry: ModelEntry, *, hashes: bool) -> list[str]:
    """Say what differs between the files in ``folder`` and its manifest; nothing means they agree.

    Args:
        folder: the converted directory.
        entry: the catalogue's entry; the manifest must name the same source.
        hashes: read every byte, and refuse files that the manifest does not name; else look at sizes only.
    """
    try:
        content: Any = json.loads((folder / FILE_NAME).read_text(encoding="utf-8"))
        source, files = content["source"]["member_sha256"], dict(content["files"])
        expected = {name: (int(item["bytes"]), str(item["sha256"])) for name, item in files.items()}
    except OSError as error:
        return [f"{FILE_NAME}: {error.strerror}"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return [f"{FILE_NAME}: not a manifest"]
    found = [] if source == entry.member_sha256 else [f"{FILE_NAME}: made from another source ({source})"]
    for name, (size_bytes, sha256) in expected.items():
        found += _file_problems(folder, name, size_bytes, sha256 if hashes else None)
    if hashes:
        present = {path.relative_to(folder).as_posix() for path in _files(folder)}
        found += [f"{name}: not in the manifest" for name in sorted(present - set(expected))]
    return found


def _file_problems(folder: Path, name: str, size_bytes: int, sha256: str | None) -> list[str]:
    path = folder / name
    if not path.is_file():
        return [f"{name}: missing"]
    actual_bytes = path.stat().st_size
    if actual_bytes != size_bytes:
        return [f"{name}: {actual_bytes} bytes, expected {size_bytes}"]
    if sha256 is None:
        return []
    actual = sha256_of(path)
    return [] if actual == sha256 else [f"{name}: sha256 {actual}, expected {sha256}"]


def _files(folder: Path) -> list[Path]:
    manifest = folder / FILE_NAME
    return sorted(path for path in folder.rglob("*") if path.is_file() and path != manifest)


def _versions() -> dict[str, str]:
    versions = {}
    for name in _CONVERTERS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "absent"
    return versions
