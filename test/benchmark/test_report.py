"""Figures in the README and the docs are those of the result files, and every result file has the promised form."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = sorted((ROOT / "benchmark/results").glob("*.json"))


def test_pages_quote_the_result_files() -> None:
    """``benchmark/report.py`` would change nothing."""
    command = [sys.executable, "benchmark/report.py", "--check"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_result_file(path: Path) -> None:
    """Claims with interval and bar, beside commit, date, host, versions, seed and samples; verdicts follow the bars."""
    content = json.loads(path.read_text())
    assert {"claims", "commit", "date", "host", "versions", "seed", "samples"} <= set(content)
    assert content["claims"]
    for claim in content["claims"]:
        assert set(claim) == {"name", "value", "low", "high", "unit", "bar", "ok"}
        assert claim["low"] <= claim["value"] <= claim["high"]
        relation, limit = claim["bar"].split()
        reached = claim["value"] >= float(limit) if relation == ">=" else claim["value"] <= float(limit)
        assert claim["ok"] is reached
