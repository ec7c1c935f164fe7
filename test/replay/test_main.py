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
        (["--pools", "900", "2"], "a pool of 2 blocks cannot hold request 1"),
        (["--ttft", "nan", "1", "1"], "--ttft is"),
        (["--ttft", "1", "inf", "1"], "--ttft is"),
        (["--block-tokens", "100"], "line 1: 3 hash_ids do not make 1100 tokens"),
    ],
)
def test_what_cannot_be_run_is_said(trace, capsys, arguments, text) -> None:
    assert main([str(trace), *arguments]) == 1
    said = capsys.readouterr()
    assert text in said.err
    # Nothing was replayed.
    assert "%" not in said.err
    assert not said.out


@pytest.mark.parametrize(
    ("option", "name", "text"),
    [
        ("--json", "none/x.json", "No such file or directory"),
        ("--json", ".", "Is a directory"),
        ("--json", "trace.jsonl", "that is the trace"),
        ("--json", "./none/../trace.jsonl/x", "cannot be written"),
        ("--plot", "none/x.png", "No such file or directory"),
        ("--plot", "x.qqq", ".eps, "),
        ("--plot", "x", ".eps, "),
        ("--plot", "trace.jsonl", "that is the trace"),
    ],
)
def test_an_output_that_cannot_be_written_is_said_first(trace, tmp_path, capsys, option, name, text) -> None:
    before = trace.read_bytes()
    assert main([str(trace), "--pools", "4", option, f"{tmp_path}/{name}"]) == 1
    said = capsys.readouterr()
    assert said.err.startswith(f"error: {option} is {Path(f'{tmp_path}/{name}')}: ")
    assert said.err.count("\n") == 1
    assert text in said.err
    assert not said.out
    assert [path.name for path in tmp_path.iterdir()] == ["trace.jsonl"]
    assert trace.read_bytes() == before


def test_a_run_that_fails_leaves_no_file_behind_a_link(trace, tmp_path) -> None:
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    link.symlink_to(target)
    assert main([str(trace), "--json", str(link), "--plot", str(tmp_path / "p.qqq")]) != 0
    assert link.is_symlink()
    assert not target.exists()


def test_two_outputs_may_not_be_one_file(trace, tmp_path, capsys) -> None:
    out = str(tmp_path / "x.png")
    assert main([str(trace), "--pools", "4", "--json", out, "--plot", out]) == 1
    assert "--plot is" in (said := capsys.readouterr().err)
    assert "that is --json" in said


def test_a_failed_run_leaves_what_was_written_before(trace, tmp_path, capsys) -> None:
    out = tmp_path / "out.json"
    out.write_text("before")
    assert main([str(trace), "--pools", "2", "--json", str(out)]) == 1
    assert out.read_text() == "before"


def test_a_name_that_looks_like_a_formula_is_drawn(trace, tmp_path, capsys) -> None:
    odd = trace.rename(tmp_path / "a$_{b$.jsonl")
    picture = tmp_path / "A.PNG"
    assert main([str(odd), "--pools", "4", "--policies", "lru", "--plot", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_hashes_of_64_bits_are_ids(trace, tmp_path, capsys) -> None:
    """The same trace with large ids gives the same figures, and surprisals are read only by those that need them."""
    large = tmp_path / "large.jsonl"
    large.write_text(
        "".join(
            json.dumps({**row, "hash_ids": [2**64 - 1 - one for one in row["hash_ids"]]}) + "\n"
            for row in _ROWS
        )
    )
    found = []
    for path in (trace, large):
        out = tmp_path / "out.json"
        assert (
            main(
                [str(path), "--pools", "5", "--gravity", "1", "--surprisal-weight", "0.5", "--json", str(out)]
            )
            == 0
        )
        rows = json.loads(out.read_text())["rows"]
        found.append([{key: value for key, value in row.items() if key != "replay_s"} for row in rows])
    assert found[0] == found[1]
    missing = ["--surprisal", str(tmp_path / "none.jsonl"), "--pools", "5", "--policies"]
    assert main([str(large), *missing, "lru", "belady"]) == 0
    assert main([str(large), *missing, "lru", "ours"]) == 1
    assert "none.jsonl" in capsys.readouterr().err


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe", b"[" * 100_000, b'{"timestamp": 1' + b"0" * 400 + b"}", b"\x1f\x8b\x00", b"{}", b"\x00"],
)
def test_any_file_gives_one_line_with_its_name(trace, tmp_path, capsys, content) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(content)
    for arguments in ([str(bad)], [str(trace), "--surprisal", str(bad)]):
        assert main([*arguments, "--pools", "5"]) == 1
        said = capsys.readouterr().err
        assert said.startswith(f"error: {bad}, line 1: ")
        assert said.count("\n") == 1


def test_a_missing_file_is_said(tmp_path, capsys) -> None:
    assert main([str(tmp_path / "none.jsonl")]) == 1
    assert "No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--pools", "0"],
        ["--gravity", "2"],
        ["--policies", "best"],
        ["--skip", "-1"],
        ["--seed", "-1"],
    ],
)
def test_options_out_of_range_are_refused(trace, capsys, arguments) -> None:
    with pytest.raises(SystemExit):
        main([str(trace), *arguments])
