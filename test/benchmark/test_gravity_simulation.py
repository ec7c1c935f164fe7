"""The essay's 30 steps: the gate opens in the second part and nowhere else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmark"))

from gravity_parts.simulation import CONVERGING, EXPLORING, SETTINGS, simulate

BENCHMARK = Path(__file__).parents[2] / "benchmark"


@given(st.integers(0, 2**31))
def test_it_triggers_only_where_the_text_converges(seed: int) -> None:
    steps = simulate(seed)
    tiers = [step.reading.tier for step in steps]
    assert len(tiers) == EXPLORING + CONVERGING == 30
    assert set(tiers[:EXPLORING]) == {"weak"}
    # The first converging state has no other to be like; after a window of them nothing else is left.
    assert tiers[EXPLORING] == "weak"
    assert set(tiers[EXPLORING + SETTINGS.window :]) == {"strong"}


def test_the_parts_differ_as_the_essay_describes_them() -> None:
    steps = simulate()
    first, second = steps[:EXPLORING], steps[EXPLORING:]
    assert min(step.entropy_nats for step in first) > max(step.entropy_nats for step in second)
    units = np.stack([step.hidden / np.linalg.norm(step.hidden) for step in second])
    assert (units @ units.T).min() > 0.7
    costs = [
        np.mean([s.reading.free_energy for s in part if s.reading.free_energy is not None])
        for part in (first, second)
    ]
    assert costs[0] > 2 * costs[1]


def test_the_script_shows_it(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARK / "gravity_simulation.py")]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = [line for line in answer.splitlines() if "exploring" in line or "converging" in line]
    assert len(rows) == 30
    assert not any("strong" in row for row in rows[:EXPLORING])
    assert rows[-1].endswith("strong")


def test_the_picture(tmp_path: Path) -> None:
    path = tmp_path / "simulation.png"
    command = [sys.executable, str(BENCHMARK / "gravity_simulation.py"), "--plot", str(path)]
    subprocess.run(command, capture_output=True, text=True, check=True)
    assert path.read_bytes().startswith(b"\x89PNG")
