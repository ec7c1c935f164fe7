"""The compiled kernels, and the checks that several tests and processes share."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def native() -> ModuleType:
    from sgl_entropic_kernels.native import library

    return library()
