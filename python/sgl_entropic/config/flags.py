"""Command-line flags, generated from the model."""

from __future__ import annotations

import re

from sgl_entropic.config.knobs import FlagSpec, specs_of
from sgl_entropic.config.model import EntropicConfig
from sgl_entropic.config.refusals import refused_value
from sgl_entropic.config.sources import from_mapping
from sgl_entropic.errors import ConfigError

_SWITCH = {"on": True, "true": True, "off": False, "false": False}
_INTEGER = re.compile(r"[-+]?[0-9]{1,19}", re.ASCII)
_NUMBER = re.compile(r"[-+]?([0-9]{1,19}(\.[0-9]{0,19})?|\.[0-9]{1,19})([eE][-+]?[0-9]{1,3})?", re.ASCII)


def flag_specs() -> tuple[FlagSpec, ...]:
    """One flag for every setting."""
    return specs_of(EntropicConfig)


def parse_flag_value(spec: FlagSpec, text: str) -> bool | int | float | str | None:
    """The value that ``text`` means as the value of a flag; ``none`` unsets what can be unset.

    Raises:
        ConfigError: naming flag, key, value and accepted range.
    """
    value: bool | int | float | str | None
    if spec.nullable and text.casefold() == "none":
        value = None
    elif spec.kind == "bool" and text.casefold() in _SWITCH:
        value = _SWITCH[text.casefold()]
    elif spec.kind == "int" and _INTEGER.fullmatch(text):
        value = int(text)
    elif spec.kind == "number" and _NUMBER.fullmatch(text):
        value = float(text)
    elif spec.kind in {"text", "choice"} or (spec.kind == "number" and text.isalpha()):
        value = text
    else:
        raise ConfigError(f"flags: {refused_value(EntropicConfig, spec.dotted, text)}")
    section, _, name = spec.dotted.partition(".")
    config = from_mapping({section: {name: value}}, "flags")
    accepted: bool | int | float | str | None = getattr(getattr(config, section), name)
    return accepted
