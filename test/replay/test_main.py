"""The command line: its figures and its refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sgl_entropic.replay.__main__ import main

_ROWS = [
    {"timestamp": 1000 * at, "input_length": 1100, "output_length": 5, "hash_ids": [0, at % 4, 100 + at % 4]}
    for at in range(40)
]


@pytest.fixture
def trace(tmp_path) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in _ROWS))
    return path


def test_a_run_leaves_table_figures_and_claims(trace, tmp_path, capsys) -> None:
    assert main([str(trace), "--pools", "4", "9", "--skip", "4", "--json", str(tmp_path / "out.json")]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[0].split()[:3] == ["POOL", "POLICY", "BLOCKS"]
    assert "100%" in said.err
    written = json.loads((tmp_path / "out.json").read_text())
    assert len(written["rows"]) == 20
    assert written["settings"]["pools"] == [4, 9]
    by_name = {(row["pool_blocks"], row["policy"]): row for row in written["rows"]}
    # all four conversations fit
    assert by_name[9, "lru"]["hit_blocks_share"] == 1.0
    # one conversation fits: only the shared beginning is found
    assert by_name[4, "lru"]["hit_blocks_share"] == pytest.approx(1 / 3)
    assert by_name[4, "belady"]["hit_blocks_share"] > 0.4
    assert set(written["summary"]) == {
        "hits_vs_best_plain_min",
        "belady_gap_closed_mean",
        "surprisal_vs_placebo_mean",
    }


def test_a_picture_is_drawn(trace, tmp_path, capsys) -> None:
    assert main([str(trace), "--pools", "4", "--policies", "lru", "--plot", str(tmp_path / "a.png")]) == 0
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--pools", "2"], "a pool of 2 blocks cannot hold request 1"),
        (["--skip", "40"], "--skip is 40"),
        (["--ttft", "1", "0", "1"], "--ttft is"),
        (["--block-tokens", "100"], "line 1: 3 hash_ids do not make 1100 tokens"),
    ],
)
def test_what_cannot_be_run_is_said(trace, capsys, arguments, text) -> None:
    assert main([str(trace), *arguments]) == 1
    assert text in capsys.readouterr().err


def test_a_missing_file_is_said(tmp_path, capsys) -> None:
    assert main([str(tmp_path / "none.jsonl")]) == 1
    assert "No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["--pools", "0"], ["--gravity", "2"], ["--policies", "best"], ["--skip", "-1"]]
)
def test_options_out_of_range_are_refused(trace, capsys, arguments) -> None:
    with pytest.raises(SystemExit):
        main([str(trace), *arguments])
