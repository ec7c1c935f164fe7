"""Reads a small, plain YAML file: no tags, anchors, aliases or merge keys, and no key twice."""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from sgl_entropic.errors import ConfigError

MOST_FILE_BYTES = 65_536
_MOST_DEPTH = 16
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,18}|[1-9][0-9]{0,2}(?:_[0-9]{3}){1,6})\Z")
_KEPT_TAGS = {"tag:yaml.org,2002:bool", "tag:yaml.org,2002:float", "tag:yaml.org,2002:null"}


def read_yaml(path: str) -> dict[str, Any]:
    """The mapping at the top of a YAML file; an empty file is an empty mapping.

    Raises:
        ConfigError: the file cannot be read, is not UTF-8, not YAML, too large, or not a mapping with text keys.
    """
    text = _read_text(path)
    try:
        # Safe: the loader below derives from yaml.SafeLoader and knows fewer types.
        content = yaml.load(text, Loader=_PlainLoader)  # noqa: S506
    except yaml.MarkedYAMLError as error:
        raise ConfigError(_located(path, error)) from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: holds a {type(content).__name__}; expected a mapping of sections")
    return content


def _read_text(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            data = file.read(MOST_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{path!r}: cannot be read: {reason}; expected a YAML file") from None
    if len(data) > MOST_FILE_BYTES:
        raise ConfigError(f"{path}: more than {MOST_FILE_BYTES} bytes; expected a YAML file of settings")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8: {error.reason} at byte {error.start}") from None


def _located(path: str, error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark is not None else path
    return f"{place}: {error.problem or error.context}"


class _PlainLoader(yaml.SafeLoader):
    """Plain mappings, lists and scalars; ``on``/``off``/``true``/``false``, decimal integers, floats, ``null``, text."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Refuse what can name another node or another type, and what is nested too deep."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise yaml.MarkedYAMLError(
                problem="anchors and aliases are not accepted", problem_mark=event.start_mark
            )
        if getattr(event, "tag", None) is not None:
            raise yaml.MarkedYAMLError(problem="tags are not accepted", problem_mark=event.start_mark)
        if self._depth >= _MOST_DEPTH:
            problem = f"nested deeper than {_MOST_DEPTH}"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002 -- PyYAML's signature
        """Refuse a key that comes twice, or that is not text."""
        seen: dict[str, yaml.Mark] = {}
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:str":
                problem = f"key {str(key.value)[:80]!r} is not text"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            if key.value in seen:
                problem = f"key {key.value[:80]!r} comes twice, first in line {seen[key.value].line + 1}"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen[key.value] = key.start_mark
        return super().construct_mapping(node, deep)


# YAML 1.1 would read 010 as eight, 1:30 as ninety and 2026-03-01 as a date.
_PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag in _KEPT_TAGS]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_PlainLoader.add_implicit_resolver("tag:yaml.org,2002:int", _INTEGER, list("-+0123456789"))
