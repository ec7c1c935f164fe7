"""The library's interface: names, paths, and what importing it costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sgl_entropic import models as api
from sgl_entropic.errors import ModelFetchError
from sgl_entropic.models import catalog


@pytest.fixture
def fake(shelf, monkeypatch) -> None:
    """The fake is the only model of the catalogue, and already in the cache."""
    monkeypatch.setattr(catalog, "CATALOG", (shelf.entry,))
    return shelf.fetch()


def test_no_value_means_the_default_model(fake: Path) -> None:
    assert api.default_model().name == "fake-model"
    assert api.resolve_model_path(None) == str(fake)


@pytest.mark.parametrize("name", ["fake-model", "Fake-Model", "FAKE-MODEL"])
def test_a_catalogue_name_in_any_case_becomes_its_directory(fake: Path, name: str) -> None:
    assert api.resolve_model_path(name) == str(fake)


@pytest.mark.parametrize(
    "value", ["HuggingFaceTB/SmolLM2-135M-Instruct", "/no/such/dir", "./x", "", "fake-model-v1"]
)
def test_anything_else_is_left_to_sglang(fake: Path, value: str) -> None:
    assert api.resolve_model_path(value) == value


def test_a_local_directory_wins_over_an_equal_catalogue_name(
    fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fake-model").mkdir()
    assert api.resolve_model_path("fake-model") == "fake-model"


def test_cached_path_tells_absence_from_an_unknown_name(
    shelf: Any, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "CATALOG", (shelf.entry,))
    assert api.cached_path("fake-model") is None
    shelf.fetch()
    assert api.cached_path("fake-model") == models / "fake-model-v1"
    with pytest.raises(ModelFetchError, match="no model 'other'"):
        api.cached_path("other")


def test_neither_the_import_nor_the_list_loads_torch_or_transformers(cache: Path) -> None:
    source = (
        "import json, sys\nimport sgl_entropic.models.__main__ as command\ncommand.main(['list'])\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(api.__file__).parents[2])}
    output = subprocess.run(
        [sys.executable, "-c", source], env=environment, capture_output=True, text=True, check=True
    ).stdout
    loaded = set(json.loads(output.splitlines()[-1]))
    assert "sgl_entropic" in loaded
    assert loaded.isdisjoint({"torch", "transformers", "sglang", "numpy", "gguf", "pydantic"})
    assert not cache.exists()
