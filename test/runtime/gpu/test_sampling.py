"""The kernel in place of the tensor operations: what it is handed, and the comparison at start, in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import torch
from sgl_entropic.runtime.gpu import sampling
from sgl_entropic.sampling.temperature_control import EXACT, FIXED, ControlRows, solve_log_temperature

sampling.check(torch.device("cpu"), 700)
torch.manual_seed(3)
logits = 4 * torch.randn(6, 300)
logits[2, 1:] = -torch.inf
ones = torch.ones(6)
rows = ControlRows(
    torch.tensor([1.0, 2.5, 1.0, torch.nan, 9.0, 1.5]),
    ones,
    torch.tensor([EXACT, EXACT, EXACT, EXACT, EXACT, FIXED]),
    -ones,
    ones,
    torch.tensor([True, True, True, True, True, True]),
)
start = torch.full((6,), 0.25)
got, expected = sampling.solve(logits, rows, start), solve_log_temperature(logits, rows, start)
assert torch.equal(got.saturated, expected.saturated), (got, expected)
assert got.saturated.tolist() == [False, False, False, False, True, False] or got.saturated[4]
assert torch.allclose(got.log_temperature, expected.log_temperature, atol=2e-3), (got, expected)
assert got.log_temperature[[2, 3, 5]].tolist() == start[[2, 3, 5]].tolist()
assert torch.allclose(got.entropy_nats, expected.entropy_nats, atol=3e-3), (got, expected)
print("alike")
"""
TAMPERED = """
import torch
from sgl_entropic.runtime.gpu import sampling
right = sampling.solve
sampling.solve = lambda *a: right(*a)._replace(entropy_nats=right(*a).entropy_nats + 0.1)
sampling.check(torch.device("cpu"), 700)
"""


def run(program: str, cache: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TRITON_INTERPRET": "1"}
    environment["TRITON_CACHE_DIR"] = str(cache)
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)


def test_the_kernel_is_handed_what_the_operations_are(tmp_path: Path) -> None:
    done = run(PROGRAM, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "alike"


def test_a_kernel_that_differs_stops_the_start(tmp_path: Path) -> None:
    done = run(TAMPERED, tmp_path)
    assert done.returncode != 0
    assert "SeamError" in done.stderr
    assert "differs from the tensor operations" in done.stderr


@pytest.mark.gpu
def test_on_the_device() -> None:
    import torch

    from sgl_entropic.runtime.gpu import sampling

    assert torch.cuda.is_available()
    sampling.check(torch.device("cuda"), 128_256)
