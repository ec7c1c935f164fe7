"""On the CPU platform, SGLang's processes start as copies of the first one.

A process that SGLang spawns imports PyTorch and all of SGLang again: ten seconds and 800 MB each, for what its parent
holds already. A fork shares both. It is safe here because nothing that a fork breaks is there yet: no accelerator
context, no second thread (checked), and the compiled kernels start their threads at first use.
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import threading
from collections.abc import Callable
from typing import Any

from sgl_entropic.runtime.active_config import active_config

logger = logging.getLogger(__name__)


def around_set_envs_and_config(original: Callable[..., Any], config: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``engine._set_envs_and_config``, which chooses how processes start."""
    result = original(config, *args, **kwargs)
    if may_fork():
        multiprocessing.set_start_method("fork", force=True)
        # Objects that are there now are left out of later collections, which would write to their shared pages.
        gc.collect()
        gc.freeze()
    return result


def may_fork() -> bool:
    """Whether the setting, the platform and this process allow it."""
    from sglang.srt.platforms import current_platform  # noqa: PLC0415 -- resolves the platform on first use

    if type(current_platform).__name__ != "PortableCpuPlatform" or not active_config().cpu.fork:
        return False
    others = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    if others or threading.current_thread() is not threading.main_thread():
        logger.info("Processes are spawned, not forked: threads are running (%s).", ", ".join(others))
        return False
    return True
