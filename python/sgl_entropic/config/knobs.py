"""What the models say about each of their leaves: its key, its flag, its type, its range. One description, many uses."""

from __future__ import annotations

import reprlib
import types
import typing
from dataclasses import dataclass
from functools import cache
from typing import Any

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from sgl_entropic.activation import FLAG_PREFIX

Kind = typing.Literal["bool", "int", "number", "text", "choice"]

_METAVARS: dict[Kind, str] = {"bool": "on|off", "int": "N", "number": "X", "text": "TEXT", "choice": "NAME"}
_MOST_SHOWN = 100

_repr = reprlib.Repr()
_repr.maxlevel = 2
_repr.maxstring = _repr.maxother = _repr.maxlong = 80


@dataclass(frozen=True, slots=True)
class FlagSpec:
    """One setting, as a flag and as a key.

    Attributes:
        flag: ``--entropic-trace-path``; a leaf named ``enabled`` drops its name (``--entropic-telemetry``).
        dotted: the key in YAML, ``trace.path``.
        kind: type of the value.
        nullable: whether ``none`` (YAML: ``null``) is a value, meaning unset.
        accepted: type and range in words, used by every refusal.
        metavar: placeholder in the help.
        help: one line with effect, unit, range and default.
    """

    flag: str
    dotted: str
    kind: Kind
    nullable: bool
    accepted: str
    metavar: str
    help: str


@cache
def specs_of(model: type[BaseModel]) -> tuple[FlagSpec, ...]:
    """Every leaf of a model of sections, in the order of declaration."""
    return tuple(
        _spec(section_name, name, field)
        for section_name, section in sections_of(model).items()
        for name, field in section.model_fields.items()
    )


@cache
def sections_of(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """The sections of a model by their key."""
    sections: dict[str, type[BaseModel]] = {}
    for name, field in model.model_fields.items():
        assert isinstance(field.annotation, type), f"{name} is not a section"
        assert issubclass(field.annotation, BaseModel), f"{name} is not a section"
        sections[name] = field.annotation
    return sections


def choices_of(field: FieldInfo) -> tuple[str, ...]:
    """The names that a field accepts, alone or beside numbers; none for a field that is no choice."""
    return tuple(
        name
        for part in _parts(field.annotation)
        if typing.get_origin(part) is typing.Literal
        for name in typing.get_args(part)
    )


def shown(value: object) -> str:
    """``repr`` of a value that a user gave, cut to a length that a message can hold."""
    try:
        text = _repr.repr(value)
    except ValueError:  # Python refuses to write out an integer of thousands of digits
        return f"{type(value).__name__} of thousands of digits"
    return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 3] + "..."


def setting(value: object) -> str:
    """A value as a user would write it: ``on``, ``off``, ``none``, ``256``."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def _spec(section: str, name: str, field: FieldInfo) -> FlagSpec:
    kind, nullable = _kind(field)
    accepted = _accepted(kind, field) + (", or none" if nullable else "")
    words = [section] if name == "enabled" else [section, *name.split("_")]
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    return FlagSpec(
        flag=str(extra.get("flag", FLAG_PREFIX + "-".join(words))),
        dotted=f"{section}.{name}",
        kind=kind,
        nullable=nullable,
        accepted=accepted,
        metavar=str(extra.get("metavar", _METAVARS[kind])),
        help=f"{field.description} Accepted: {accepted}. Default: {setting(field.default)}.",
    )


def _kind(field: FieldInfo) -> tuple[Kind, bool]:
    parts = _parts(field.annotation)
    nullable = type(None) in parts
    kinds: dict[object, Kind] = {bool: "bool", int: "int", float: "number", str: "text"}
    plain = [kinds[part] for part in parts if part in kinds]
    return (plain[0] if plain else "choice"), nullable


def _parts(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, or the annotation itself; without what a member is annotated with."""
    union = isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union
    members = typing.get_args(annotation) if union else (annotation,)
    return tuple(
        typing.get_args(part)[0] if typing.get_origin(part) is typing.Annotated else part for part in members
    )


def _range(field: FieldInfo) -> tuple[Any, Any]:
    metadata = list(field.metadata)
    for part in typing.get_args(field.annotation):
        if typing.get_origin(part) is typing.Annotated:
            for item in typing.get_args(part)[1:]:
                metadata += item.metadata if isinstance(item, FieldInfo) else [item]
    low = next(item.ge for item in metadata if isinstance(item, annotated_types.Ge))
    high = next(item.le for item in metadata if isinstance(item, annotated_types.Le))
    return low, high


def _accepted(kind: Kind, field: FieldInfo) -> str:
    if kind == "bool":
        return "on or off"
    if kind == "int":
        low, high = _range(field)
        return f"an integer from {low} to {high}"
    if kind == "number":
        low, high = _range(field)
        return ", or ".join([f"a number from {low:g} to {high:g}", *choices_of(field)])
    if kind == "choice":
        return " or ".join(choices_of(field))
    assert isinstance(field.json_schema_extra, dict), "a text field says in words what it accepts"
    return str(field.json_schema_extra["accepted"])
