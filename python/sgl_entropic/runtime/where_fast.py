"""The fast path of this process, without loading the CPU kernels on another platform."""

from __future__ import annotations

import sys
from typing import Any

from sgl_entropic.runtime.active_config import active_config


def fast_path() -> Any:
    """The installed :class:`.cpu.fast_path.FastPath`, or ``None``."""
    module = sys.modules.get("sgl_entropic.runtime.cpu.fast_path")
    return None if module is None else module.installed()


def compiled_kernels_asked_for() -> bool:
    """Whether this server's schedulers run the CPU platform's compiled kernels; true in every process of it."""
    from sglang.srt.platforms import current_platform  # noqa: PLC0415 -- resolves the platform on first use

    return type(current_platform).__name__ == "PortableCpuPlatform" and active_config().cpu.fast_path
