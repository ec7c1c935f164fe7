"""Our flags on a command line that is another program's as well; read by the standard library's parser."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn

from sgl_entropic.config.flags import flag_specs, parse_flag_value
from sgl_entropic.config.knobs import FlagSpec
from sgl_entropic.config.model import EntropicConfig
from sgl_entropic.config.refusals import unknown_flag
from sgl_entropic.config.sources import resolve
from sgl_entropic.errors import ConfigError

_CONFIG_FLAG = "--entropic-config"
_CONFIG_DEST = "entropic_config"
_OURS = "--entropic"  # without the hyphen: --entropic_weights can only have meant us, too


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add our flags as a group of their own."""
    group = parser.add_argument_group(
        "sgl_entropic", "Uncertainty as a control signal; see the configuration reference."
    )
    group.add_argument(
        _CONFIG_FLAG,
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
        if path is not None and str(error).startswith((f"{path}:", f"{path!r}:")):
            raise ConfigError(f"{_CONFIG_FLAG} {error}") from None
        raise


def read_command_line(argv: Sequence[str]) -> EntropicConfig:
    """The configuration that the ``--entropic-*`` flags among ``argv`` describe; all others are left to their owner.

    Raises:
        ConfigError: a flag of ours that does not exist, has no value or a wrong one, or a file that is not accepted.
    """
    refuse_unknown(argv)
    return configuration(_parsed(argv)[0])


def refuse_unknown(argv: Sequence[str]) -> None:
    """Refuse a flag that can only have meant us and is none of ours; who asks for help gets it first.

    Raises:
        ConfigError: naming the flag, and the one that may have been meant.
    """
    if "-h" in argv or "--help" in argv:
        return
    _, others = _parsed(argv)
    for item in others:
        name = item.partition("=")[0]
        # What holds a space is somebody's value, for argparse too.
        if name.startswith(_OURS) and " " not in name:
            raise ConfigError(unknown_flag(EntropicConfig, name, also=(_CONFIG_FLAG,)))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Say it as everything else is said, without the usage of a parser that knows only some of the flags."""
        raise ConfigError(message)


def _parsed(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = _Parser(add_help=False, exit_on_error=False)
    add_arguments(parser)
    try:
        return parser.parse_known_args(list(argv))
    except argparse.ArgumentError as error:
        if error.argument_name is None:  # an abbreviation of several flags, from Python 3.12 on
            raise ConfigError(error.message) from None
        accepted = {spec.flag: spec.accepted for spec in flag_specs()} | {_CONFIG_FLAG: "a YAML file"}
        name = error.argument_name
        raise ConfigError(f"flag {name} has no value; expected {accepted[name]}") from None


def _dest(spec: FlagSpec) -> str:
    return "entropic__" + spec.dotted.replace(".", "__")
