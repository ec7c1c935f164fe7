"""Seeds, Hypothesis profiles, and what becomes of tests for hardware that is not there."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# No deadline: on a shared machine the slowest example says nothing about the code. Derandomised where a run has to be
# repeatable by somebody else; at a desk every run tries new examples.
settings.register_profile("desk", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "desk")

_NVIDIA_DEVICE = Path("/dev/nvidia0")
_SEED = 20_260_301


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test starts from the same random state; libraries that no test has loaded stay unloaded."""
    random.seed(_SEED)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(_SEED)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(_SEED)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that need an NVIDIA device on a machine without one."""
    if _NVIDIA_DEVICE.exists():
        return
    gpu = [item for item in items if item.get_closest_marker("gpu") is not None]
    if gpu:
        config.hook.pytest_deselected(items=gpu)
        items[:] = [item for item in items if item not in gpu]
