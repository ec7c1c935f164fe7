"""``--entropic-*`` flags beside SGLang's own, and the one place where the configuration becomes final."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable
from typing import Any

from sgl_entropic import activation
from sgl_entropic.config import (
    AttentionConfig,
    EntropicConfig,
    add_arguments,
    configuration,
    refuse_unknown,
    without_effect,
)
from sgl_entropic.errors import EntropicError, UnsupportedError
from sgl_entropic.runtime.active_config import active_config
from sgl_entropic.runtime.attention.settings import check_config as check_attention
from sgl_entropic.runtime.control import check_settings as check_sampling
from sgl_entropic.runtime.cpu_refusals import refuse_on_cpu
from sgl_entropic.runtime.gpu.refusals import gpu_problems, policy_problem
from sgl_entropic.runtime.gravity.settings import check_config as check_gravity
from sgl_entropic.runtime.gravity.start import ask_for_hidden_states
from sgl_entropic.runtime.refusals import raise_if_any, refuse_combinations
from sgl_entropic.runtime.seams import verify
from sgl_entropic.runtime.start_probes import probe_outlets, probe_port

logger = logging.getLogger(__name__)


def around_add_cli_args(original: Callable[..., None], parser: argparse.ArgumentParser) -> None:
    """Around ``ServerArgs.add_cli_args``."""
    try:
        # The parser would say it too, but neither what was meant nor what there is.
        refuse_unknown(sys.argv[1:])
    except EntropicError as error:
        raise SystemExit(f"sgl_entropic: {error}") from None
    original(parser)
    add_arguments(parser)


def around_from_cli_args(original: Callable[..., Any], cls: type, namespace: argparse.Namespace) -> Any:
    """Around ``ServerArgs.from_cli_args``: resolve, refuse what cannot work, and export to the child processes."""
    try:
        verify("main")
        config = configuration(namespace)
        if _on_portable_cpu():
            refuse_on_cpu(namespace)
            if config.cpu.fast_path:
                _load_kernels()
            # SGLang resolves an unset device before it asks the platform for its defaults.
            namespace.device = namespace.device or "cpu"
            # An idle scheduler that polls takes a whole core from everybody else on the machine.
            namespace.sleep_on_idle = True
        elif config.attention.enabled:
            raise_if_any(
                [
                    *gpu_problems(namespace),
                    *filter(None, [policy_problem(config.attention.policy or "surprisal")]),
                ]
            )
        _check_settings(namespace, config)
        refuse_combinations(namespace, config)
        ask_for_hidden_states(namespace, config.gravity)
        probe_outlets(config)
        if (getattr(namespace, "node_rank", 0) or 0) == 0:
            probe_port(namespace.host, namespace.port)
    except EntropicError as error:
        # Said here and not by a traceback, whichever command started SGLang.
        raise SystemExit(f"sgl_entropic: {error}") from None
    for warning in without_effect(config):
        logger.warning("sgl_entropic: %s.", warning)
    activation.export_config(config.to_json())
    active_config.cache_clear()
    return original(cls, namespace)


def _check_settings(namespace: argparse.Namespace, config: EntropicConfig) -> None:
    """Refuse settings that contradict each other; also of what is off, since its switch may only have been forgotten.

    What only the model can contradict is looked at when it is there.
    """
    attention = config.attention
    # The default size of a block is nobody's wish where nothing is pruned.
    asked = attention.enabled or attention.block_tokens != AttentionConfig().block_tokens
    page_size = (getattr(namespace, "page_size", None) or 1) if asked else 1
    check_attention(attention, page_size, None, compiled=_on_portable_cpu() and config.cpu.fast_path)
    check_gravity(config.gravity)
    check_sampling(config.sampling)


def _load_kernels() -> None:
    """Said before a model loads: kernels that are missing, or an instruction set that is not there."""
    from sgl_entropic_kernels.native import KernelsMissingError, library  # noqa: PLC0415 -- the CPU platform only

    try:
        library()
    except KernelsMissingError as error:
        raise UnsupportedError(str(error)) from None


def _on_portable_cpu() -> bool:
    from sglang.srt.platforms import current_platform  # noqa: PLC0415 -- resolves the platform on first use

    return type(current_platform).__name__ == "PortableCpuPlatform"
