"""Defaults, YAML and flags become one configuration: flags win over YAML, YAML over defaults."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sgl_entropic.config.knobs import sections_of, specs_of
from sgl_entropic.config.model import EntropicConfig
from sgl_entropic.config.refusals import refusal, refused_value, unknown_key
from sgl_entropic.config.yaml_source import read_yaml
from sgl_entropic.errors import ConfigError


def from_mapping(mapping: Mapping[str, Any], source: str) -> EntropicConfig:
    """Validate a mapping of sections.

    Args:
        mapping: ``{"trace": {"path": ...}, ...}``; a section that is ``None`` holds its defaults.
        source: where it came from, the first words of a refusal.

    Raises:
        ConfigError: naming source, key, flag, value and accepted range.
    """
    config = _validated(mapping, source)
    _check_file_system(config, source)
    return config


def load_yaml(path: str) -> EntropicConfig:
    """The configuration of a YAML file; ``trace.path`` in it is relative to the working directory.

    Raises:
        ConfigError: the file cannot be read, or holds what is not accepted.
    """
    return from_mapping(read_yaml(path), path)


def resolve(yaml_path: str | None, overrides: Mapping[str, object]) -> EntropicConfig:
    """The configuration of a YAML file and of flags, which win.

    Args:
        yaml_path: the file, or ``None`` for the defaults.
        overrides: values by dotted key (``"trace.path"``), as :func:`parse_flag_value` returns them.

    Raises:
        ConfigError: naming the file or the flag, the key, the value and the accepted range.
    """
    base = EntropicConfig() if yaml_path is None else _validated(read_yaml(yaml_path), yaml_path)
    merged: dict[str, dict[str, object]] = base.model_dump()
    known = {spec.dotted for spec in specs_of(EntropicConfig)}
    for dotted, value in overrides.items():
        if dotted not in known:
            raise ConfigError(f"flags: {unknown_key(EntropicConfig, tuple(dotted.split('.')), value)}")
        section, _, name = dotted.partition(".")
        merged[section][name] = value
    config = _validated(merged, "flags")
    for spec in specs_of(EntropicConfig):
        _check_place(
            config, spec.dotted, "flags" if yaml_path is None or spec.dotted in overrides else yaml_path
        )
    return config


def _validated(mapping: Mapping[str, Any], source: str) -> EntropicConfig:
    sections = sections_of(EntropicConfig)
    content = {k: {} if v is None and k in sections else v for k, v in mapping.items()}
    try:
        return EntropicConfig.model_validate(content)
    except ValidationError as error:
        raise refusal(EntropicConfig, error, source) from None


def _check_file_system(config: EntropicConfig, source: str) -> None:
    for spec in specs_of(EntropicConfig):
        _check_place(config, spec.dotted, source)


def _check_place(config: EntropicConfig, dotted: str, source: str) -> None:
    """Refuse at start a file that could not be written later."""
    if dotted == "trace.path" and config.trace.path is not None:
        reason = _why_not_writable(Path(config.trace.path))
        value = config.trace.path
    elif (
        dotted == "trace.publish"
        and config.trace.publish is not None
        and config.trace.publish.startswith("ipc://")
        and not config.trace.publish.startswith("ipc://@")  # an abstract name, in no directory
    ):
        value = config.trace.publish
        reason = _why_not_a_directory(Path(value.removeprefix("ipc://")).parent)
    else:
        return
    if reason:
        raise ConfigError(f"{source}: {refused_value(EntropicConfig, dotted, value, reason)}")


def _why_not_writable(path: Path) -> str:
    try:
        if path.is_dir():
            return "it is a directory"
        if path.exists():
            return "" if os.access(path, os.W_OK) else "no permission to write it"
    except OSError as error:
        return error.strerror or str(error)
    return _why_not_a_directory(path.parent)


def _why_not_a_directory(parent: Path) -> str:
    try:
        if not parent.is_dir():
            return f"{str(parent)!r} is not a directory"
    except OSError as error:
        return error.strerror or str(error)
    return (
        "" if os.access(parent, os.W_OK | os.X_OK) else f"no permission to create a file in {str(parent)!r}"
    )
