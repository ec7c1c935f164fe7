"""``--entropic-*`` flags beside SGLang's own, and the one place where the configuration becomes final."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from sgl_entropic import activation
from sgl_entropic.config import EntropicConfig, FlagSpec, flag_specs, parse_flag_value, resolve
from sgl_entropic.errors import ConfigError, EntropicError, UnsupportedError
from sgl_entropic.runtime.active_config import active_config
from sgl_entropic.runtime.cpu_refusals import refuse_on_cpu
from sgl_entropic.runtime.refusals import refuse_combinations
from sgl_entropic.runtime.seams import verify
from sgl_entropic.runtime.start_probes import probe_outlets, probe_port

_CONFIG_DEST = "entropic_config"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add our flags as a group of their own."""
    group = parser.add_argument_group(
        "sgl_entropic", "Uncertainty as a control signal; see the configuration reference."
    )
    group.add_argument(
        "--entropic-config",
        dest=_CONFIG_DEST,
        metavar="FILE.yaml",
        default=None,
        help="YAML file; flags win over it.",
    )
    for spec in flag_specs():
        group.add_argument(
            spec.flag, dest=_dest(spec), metavar=spec.metavar, default=None, help=spec.help.replace("%", "%%")
        )


def configuration(namespace: argparse.Namespace) -> EntropicConfig:
    """The configuration that the parsed flags describe.

    Raises:
        ConfigError: naming the key or flag, the value and the accepted range.
    """
    overrides = {}
    for spec in flag_specs():
        text = getattr(namespace, _dest(spec), None)
        if text is not None:
            overrides[spec.dotted] = parse_flag_value(spec, text)
    path: str | None = getattr(namespace, _CONFIG_DEST, None)
    try:
        return resolve(path, overrides)
    except ConfigError as error:
        if path is not None and path in str(error):
            raise ConfigError(f"--entropic-config {error}") from None
        raise


def around_add_cli_args(original: Callable[..., None], parser: argparse.ArgumentParser) -> None:
    """Around ``ServerArgs.add_cli_args``."""
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
        refuse_combinations(namespace, config)
        probe_outlets(config)
        if (getattr(namespace, "node_rank", 0) or 0) == 0:
            probe_port(namespace.host, namespace.port)
    except EntropicError as error:
        # Said here and not by a traceback, whichever command started SGLang.
        raise SystemExit(f"sgl_entropic: {error}") from None
    activation.export_config(config.to_json())
    active_config.cache_clear()
    return original(cls, namespace)


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


def _dest(spec: FlagSpec) -> str:
    return "entropic__" + spec.dotted.replace(".", "__")
