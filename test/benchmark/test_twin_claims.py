"""Ratios, claims and tables of the comparison; the servers it starts; pausing, weighing and foreseeing."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmark"))

from twin_parts import claims, processes
from twin_parts.arms import make, named_flags
from twin_parts.bandwidth import read_bytes_per_s
from twin_parts.progress import Progress

# ------------------------------------------------------------------------------------------------- ratios and claims


def rows(arm: str, values: list[float], workload: str = "clients_8") -> list[dict[str, Any]]:
    common = {"arm": arm, "workload": workload, "figure": "output_tokens_per_s"}
    return [{**common, "round": at, "output_tokens_per_s": value} for at, value in enumerate(values)]


def test_a_ratio_is_of_the_same_round() -> None:
    # Both sides vary tenfold between rounds, their ratio not at all.
    samples = rows("ours", [10.0, 100.0, 20.0]) + rows("peer", [2.0, 20.0, 4.0])
    assert claims.ratios(samples, "ours", "peer", "clients_8") == [5.0, 5.0, 5.0]
    (one,) = claims.against(samples, "ours", "peer", "stock", claims.STOCK_BARS, seed=1)
    assert (one.name, one.value, one.low, one.high, one.ok) == ("cpu_8_clients_vs_stock", 5.0, 5.0, 5.0, True)


@pytest.mark.parametrize("peer", [[], [2.0, 20.0], [2.0, 20.0, 0.0], [2.0, 20.0, float("nan")]])
def test_what_is_not_there_has_no_ratio(peer: list[float]) -> None:
    samples = rows("ours", [10.0, 100.0, 20.0]) + rows("peer", peer)
    with pytest.raises(claims.NoRatioError):
        claims.ratios(samples, "ours", "peer", "clients_8")


def test_a_cost_is_that_of_the_worst_arm() -> None:
    made = claims.worst("cpu_rss_gb", {"a": [1.0, 1.2, 1.1], "b": [2.7, 2.6, 2.8]}, "GB", "<= 2.5", seed=1)
    assert (made.value, made.ok) == (2.7, False)


def test_share_of_bandwidth_is_taken_round_by_round() -> None:
    samples = rows("ours", [10.0, 20.0, 30.0], "clients_1")
    share = claims.bandwidth_share(samples, "ours", 100, {0: 2e3, 1: 4e3, 2: 6e3}, ">= 0", seed=1)
    assert share.value == pytest.approx(0.5)
    with pytest.raises(claims.NoRatioError):
        claims.bandwidth_share(samples, "other", 100, {0: 2e3}, ">= 0", seed=1)


def test_the_table_shows_every_arm_and_ratio() -> None:
    more = {"ttft_s": [0.1], "latency_s": [1.0], "inter_token_ms": ["5.0 7.0"]}
    samples = [{**row, **more} for row in rows("ours", [10.0] * 3) + rows("peer", [4.0] * 3)]
    text = claims.table(samples, ["ours"], seed=1)
    assert "ours / peer" in text
    assert "2.50" in text
    assert "peer / ours" not in text


# ------------------------------------------------------------------------------------------------ arms and processes


def test_flags_by_name() -> None:
    assert named_flags(["a=--x 1 --y 'b c'", "b="]) == {"a": ("--x", "1", "--y", "b c"), "b": ()}
    for wrong in ("--x 1", "=--x", "stock=--x"):
        with pytest.raises(ValueError, match="--arm"):
            named_flags([wrong])
    with pytest.raises(ValueError, match="already"):
        named_flags(["a=--x", "a=--y"])


def test_an_arm_is_our_server_with_its_flags(tmp_path: Path) -> None:
    arm = make("a", {"a": ("--x", "1")}, Path("/models/m"), tmp_path)
    assert arm.server.command[1:] == [
        "-m",
        "sgl_entropic.launch_server",
        "--model-path",
        "/models/m",
        "--x",
        "1",
    ]
    assert "/models" not in arm.described["command"]
    with pytest.raises(ValueError, match="no arm 'b'"):
        make("b", {}, Path("m"), tmp_path)


def test_a_paused_tree_stands_still_and_goes_on() -> None:
    # The grandchild leaves the group of its parent; it has to stop all the same.
    child = "import time; print('up', flush=True); time.sleep(60)"
    program = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}], start_new_session=True)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True
    )
    pids: list[int] = []
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        pids = processes.tree(process.pid)
        assert len(pids) == 2
        found = processes.memory(process.pid)
        assert 0 < found.pss_bytes <= found.rss_bytes
        processes.pause(process.pid)
        wait_until(pids, stopped=True)
        processes.resume(process.pid)
        wait_until(pids, stopped=False)
    finally:
        for pid in [*pids, process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate()
    with pytest.raises(RuntimeError, match="has ended"):
        processes.memory(process.pid)


def wait_until(pids: list[int], *, stopped: bool) -> None:
    """Until all are stopped, or none is: a signal takes effect a moment after it was sent."""
    for _ in range(1000):
        states = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids]
        if all((state == "T") is stopped for state in states):
            return
        time.sleep(0.01)
    pytest.fail(f"states {states}")


def test_bandwidth_is_positive() -> None:
    assert read_bytes_per_s(threads=2, buffer_bytes=1 << 22, passes=1) > 0


def test_progress_foresees_from_like_steps(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    progress = Progress(["slow", "fast", "slow", "fast"], sys.stderr, lambda: now[0])
    assert progress.left_s() is None
    for kind, seconds in (("slow", 90.0), ("fast", 10.0)):
        now[0] += seconds
        progress.done(kind, kind)
    assert progress.left_s() == 100.0
    assert capsys.readouterr().err.splitlines() == ["[1:30 of 6:00] slow", "[1:40 of 3:20] fast"]
