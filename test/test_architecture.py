"""The tree keeps its promises: import directions, light imports, small files, tests that assert."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (ROOT / "python" / "sgl_entropic", ROOT / "kernels" / "sgl_entropic_kernels")
SOURCES = sorted(path for package in PACKAGES for path in package.rglob("*.py"))
TESTS = sorted((ROOT / "test").rglob("test_*.py"))

MOST_FILE_LINES = 400
MOST_FUNCTION_LINES = 60

HEAVY = ("torch", "sglang", "transformers")
STDLIB_ONLY = (
    "sgl_entropic",
    "sgl_entropic.activation",
    "sgl_entropic.entropy.from_logprobs",
    "sgl_entropic.errors",
    "sgl_entropic.feedback.entropic_time",
    "sgl_entropic.request_params",
    "sgl_entropic.signals",
)
PURE = (
    "sgl_entropic.config",
    "sgl_entropic.models.catalog",
    "sgl_entropic.trace.record",
    "sgl_entropic.trace.sink",
)


def loaded_by(module: str) -> set[str]:
    """Names in ``sys.modules`` after importing ``module`` alone in a fresh process."""
    program = (
        f"import json, sys; sys.path[:0] = {[str(package.parent) for package in PACKAGES]}; "
        f"import {module}; print(json.dumps(list(sys.modules)))"
    )
    # Isolated: what the environment or a .pth file brings along is not what the module brings along.
    result = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    return {name.partition(".")[0] for name in json.loads(result.stdout)}


def test_import_contracts_hold() -> None:
    """Data flows downhill; SGLang, torch and pydantic are imported only where pyproject.toml allows it."""
    result = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("module", STDLIB_ONLY)
def test_what_every_process_loads_is_standard_library_only(module: str) -> None:
    """Installing the package must cost a plain ``sglang`` process nothing, in memory and in time."""
    foreign = {"numpy", "orjson", "pydantic", "yaml", "zmq", *HEAVY}
    assert loaded_by(module) & foreign == set()


@pytest.mark.parametrize("module", PURE)
def test_pure_modules_load_neither_torch_nor_sglang(module: str) -> None:
    assert loaded_by(module) & set(HEAVY) == set()


def test_the_packages_are_the_ones_of_this_clone() -> None:
    """Tests that import another copy of the package would prove nothing about this one."""
    import sgl_entropic
    import sgl_entropic_kernels

    assert Path(sgl_entropic.__file__).parent == PACKAGES[0]
    assert Path(sgl_entropic_kernels.__file__).parent == PACKAGES[1]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_stay_small(path: Path) -> None:
    """One file is one idea that fits in a reader's head; a function fits on a screen."""
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MOST_FILE_LINES
    functions = [
        n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    long = {f.name: lines for f in functions if (lines := function_lines(f)) > MOST_FUNCTION_LINES}
    assert long == {}


def function_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of ``function`` without its decorators."""
    assert function.end_lineno is not None
    return function.end_lineno - function.lineno + 1


@pytest.mark.parametrize("path", TESTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_test_asserts(path: Path) -> None:
    """A test without an assertion passes whatever the code does."""
    tests = [
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    ]
    assert tests, "no test in this file"
    assert [test.name for test in tests if not asserts(test)] == []


def asserts(test: ast.AST) -> bool:
    """Whether ``test`` asserts, expects an exception or an exit status, or calls a function that asserts, by its name."""
    for node in ast.walk(test):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            if any(
                keyword.arg == "check" and ast.unparse(keyword.value) == "True" for keyword in node.keywords
            ):
                return True
            if name == "raises" or name.startswith(("assert_", "check_", "wait_until")):
                return True
    return False


def test_every_source_file_is_reached_by_a_declared_package() -> None:
    """A folder without ``__init__.py`` would be missing from the wheel without a word."""
    assert [str(p) for p in SOURCES if not (p.parent / "__init__.py").exists()] == []
