"""The fast path of this process, without loading the CPU kernels on another platform."""

from __future__ import annotations

import sys
from typing import Any


def fast_path() -> Any:
    """The installed :class:`.cpu.fast_path.FastPath`, or ``None``."""
    module = sys.modules.get("sgl_entropic.runtime.cpu.fast_path")
    return None if module is None else module.installed()
