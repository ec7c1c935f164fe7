"""The launcher's entry: what is wrong without SGLang's help is said before SGLang, or torch, is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Runs the real entry in a process where the first import of what takes seconds ends it.
_ENTRY = """
import runpy, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("sglang", "torch", "transformers"):
            raise SystemExit("imported " + name)

sys.meta_path.insert(0, Refuse())
runpy.run_module("sgl_entropic.launch_server", run_name="__main__", alter_sys=True)
"""
_MODEL = ["--model-path", "/no/such/model"]


def said(*flags: str, **variables: str) -> str:
    """What the launcher says before it leaves."""
    result = subprocess.run(
        [sys.executable, "-c", _ENTRY, *_MODEL, *flags],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, **variables},
    )
    assert result.returncode == 1, result.stderr
    assert "Traceback" not in result.stderr
    return result.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--entropic-cpu-weights", "int8"], "unknown flag '--entropic-cpu-weights'; did you mean"),
        (["--entropic-weights", "int4"], "flags: cpu.weights = 'int4' is not accepted; expected float32 or"),
        (["--entropic-cpu-threads=0", "--port", "1"], "flags: cpu.threads = 0 is not accepted; expected an"),
        (["--entropic-weights"], "flag --entropic-weights has no value; expected float32 or int8"),
        (["--entropic-config", "/no/such.yaml"], "--entropic-config '/no/such.yaml': cannot be read"),
        (
            ["--entropic-telemetry", "off", "--entropic-trace-publish", "tcp://127.0.0.1:5555"],
            "trace.path and trace.publish have nothing to write",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_flag_is_refused_without_sglang(flags: list[str], message: str) -> None:
    assert said(*flags).startswith(f"sgl_entropic: {message}")


def test_a_wrong_file_is_refused_without_sglang(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("cpu:\n  weight: int8\n")
    line = said("--entropic-config", str(path))
    assert line.startswith(
        f"sgl_entropic: --entropic-config {path}: unknown key 'cpu.weight' = 'int8'; did you mean"
    )


def test_a_wrong_environment_is_refused_without_sglang() -> None:
    assert said(SGLANG_RUST_SERVER="1").startswith("sgl_entropic: SGLANG_RUST_SERVER is not available")


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--entropic-weights", "INT8"],
        ["--entropic-weights", "int4", "--help"],
        # A file of SGLang's may hold flags of ours, so nothing is final before it is read.
        ["--entropic-weights", "int4", "--config", "sglang.yaml"],
    ],
    ids=" ".join,
)
def test_what_only_sglang_can_judge_is_left_to_it(flags: list[str]) -> None:
    """And the tests above would have seen the import."""
    assert said(*flags).startswith("imported ")
