"""The launcher's command line: which model is served, and that nothing else of it changes."""

from __future__ import annotations

import os
from typing import Any

import pytest

from sgl_entropic import activation
from sgl_entropic.config import EntropicConfig
from sgl_entropic.errors import ModelFetchError, UnsupportedError
from sgl_entropic.models import default_model
from sgl_entropic.runtime import server

NAME = default_model().name
DEFAULT = "/cache/default"
SERVED = ["--served-model-name", NAME]


@pytest.fixture(autouse=True)
def catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    """No model is fetched: a name of the catalogue becomes a directory at once."""

    def resolve(value: str | None) -> str:
        return DEFAULT if value is None or value == NAME else value

    monkeypatch.setattr(server, "resolve_model_path", resolve)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], ["--model-path", DEFAULT, "--served-model-name", NAME]),
        (["--port", "1"], ["--model-path", DEFAULT, "--served-model-name", NAME, "--port", "1"]),
        (["--served-model-name", "x"], ["--model-path", DEFAULT, "--served-model-name", "x"]),
        (["--served-model-name=x"], ["--model-path", DEFAULT, "--served-model-name=x"]),
        (["--model-path", "org/m"], ["--model-path", "org/m"]),
        (["--model-path=org/m"], ["--model-path=org/m"]),
        (["--model", "/a/b=c", "--port", "1"], ["--model", "/a/b=c", "--port", "1"]),
        (["--model=/a/b=c"], ["--model=/a/b=c"]),
        (["--model-path", NAME, "--port", "1"], ["--model-path", DEFAULT, "--port", "1", *SERVED]),
        (["--port", "1", f"--model-path={NAME}"], ["--port", "1", f"--model-path={DEFAULT}", *SERVED]),
        (["--port=1", "--model", NAME], ["--port=1", "--model", DEFAULT, *SERVED]),
        ([f"--model={NAME}", "--port=1"], [f"--model={DEFAULT}", "--port=1", *SERVED]),
        (["--config", "c.yaml"], ["--config", "c.yaml"]),
        (["--config=c.yaml"], ["--config", "c.yaml"]),
        (
            ["--config", "c.yaml", "--model-path", NAME],
            ["--config", "c.yaml", "--model-path", DEFAULT, *SERVED],
        ),
        (["--model-path", NAME, "--config=c.yaml"], ["--model-path", DEFAULT, "--config", "c.yaml", *SERVED]),
        (
            ["--model-path", "m", "--model-path", NAME],
            ["--model-path", "m", "--model-path", DEFAULT, *SERVED],
        ),
        (["--model-path", NAME, "--model-path", "m"], ["--model-path", NAME, "--model-path", "m"]),
        (
            ["--model-path", NAME, "--served-model-name", "x"],
            ["--model-path", DEFAULT, "--served-model-name", "x"],
        ),
        (["--port", "1", "--model-path"], ["--port", "1", "--model-path"]),
    ],
    ids=lambda items: " ".join(items) or "nothing",
)
def test_the_model_is_found_and_the_rest_is_left_alone(argv: list[str], expected: list[str]) -> None:
    """A catalogue name in either spelling, SGLang's own file, and a flag without its value (SGLang's to refuse)."""
    before = list(argv)
    assert server._with_model(argv) == expected
    assert argv == before


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_fetches_no_model(flag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang's parser wants a model even then."""

    def resolve(value: str | None) -> str:
        raise AssertionError("a model was fetched for the help")

    monkeypatch.setattr(server, "resolve_model_path", resolve)
    argv = server._with_model(["--port", "1", flag])
    assert argv[-3:] == ["--port", "1", flag]
    assert argv[:2] == ["--model-path", NAME]


class Started:
    """Stands for the server; notes what it was started with."""

    def __init__(self) -> None:
        self.argv: list[str] | None = None
        self.config: str | None = None

    def __call__(self, argv: list[str]) -> None:
        self.argv, self.config = argv, activation.exported_config()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    stand_in = Started()
    monkeypatch.setattr(server, "_run", stand_in)
    # Written by the launcher; set here so that it is taken back after the test.
    monkeypatch.setenv("SGLANG_ENTROPIC_CONFIG", "{}")
    return stand_in


def test_the_extension_is_asked_for_before_sglang_is_loaded(started: Started) -> None:
    server.main(["--port", "1"])
    assert started.argv == ["--model-path", DEFAULT, "--served-model-name", NAME, "--port", "1"]
    assert started.config == EntropicConfig().to_json()
    assert os.environ["SGLANG_ENTROPIC_CONFIG"] == started.config


@pytest.mark.parametrize("error", [ModelFetchError("no network"), UnsupportedError("--pp-size 2 is not")])
def test_an_error_of_ours_is_one_line_and_no_traceback(
    started: Started, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*args: Any) -> str:
        raise error

    monkeypatch.setattr(server, "resolve_model_path", fail)
    with pytest.raises(SystemExit) as leaving:
        server.main([])
    assert leaving.value.code == f"sgl_entropic: {error}"
    assert started.argv is None
