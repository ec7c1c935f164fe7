"""Turns what pydantic found into a :class:`ConfigError` that names key, flag, value and accepted range."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from sgl_entropic.activation import FLAG_PREFIX
from sgl_entropic.config.knobs import sections_of, shown, specs_of
from sgl_entropic.errors import ConfigError

_MOST_LISTED = 5
_MOST_COMPARED = 64  # characters of what was given; the comparison is quadratic
_BETWEEN_WORDS = re.compile("[-_.]")
_SAME_WORD = 0.75  # difflib ratio of a word and its misspelling
_LEAST_SHARED = 0.25  # of the words of both
_LEAST_RATIO = 0.6


def refusal(model: type[BaseModel], error: ValidationError, source: str) -> ConfigError:
    """The error to raise instead of ``error``.

    Args:
        model: the model that was validated.
        error: what pydantic found.
        source: where the values came from: a file, the command line.
    """
    # A setting that is a number or a word has one finding for each; both lead to the same sentence.
    details = list({detail["loc"][:2]: detail for detail in error.errors(include_url=False)}.values())
    lines = [f"{source}: {_line(model, detail)}" for detail in details[:_MOST_LISTED]]
    if len(details) > _MOST_LISTED:
        lines.append(f"{source}: and {len(details) - _MOST_LISTED} more")
    return ConfigError("\n".join(lines))


def refused_value(model: type[BaseModel], dotted: str, value: object, reason: str = "") -> str:
    """Say that a value is not accepted, and which ones are."""
    spec = next(spec for spec in specs_of(model) if spec.dotted == dotted)
    because = f" ({reason})" if reason else ""
    return f"{dotted} = {shown(value)} is not accepted{because}; expected {spec.accepted} (flag {spec.flag})"


def unknown_flag(model: type[BaseModel], flag: str, also: Sequence[str] = ()) -> str:
    """Say that a flag does not exist, which one may have been meant, and where all are listed.

    Args:
        model: the model of all settings.
        flag: as it was given, without its value.
        also: flags that stand for no setting.
    """
    specs = specs_of(model)
    # Compared without the prefix, which would make all alike; a flag with a name of its own by its key as well.
    names = {name.removeprefix(FLAG_PREFIX): name for name in (*also, *(spec.flag for spec in specs))}
    names |= {spec.dotted.replace(".", "-").replace("_", "-"): spec.flag for spec in specs}
    close = nearest(flag.lower().replace("_", "-").removeprefix(FLAG_PREFIX), [*names])
    hint = f"did you mean {names[close]!r}? " if close else ""
    return f"unknown flag {shown(flag)}; {hint}--help lists all"


def unknown_key(model: type[BaseModel], path: tuple[str, ...], value: object) -> str:
    """Say that a key does not exist, which one may have been meant, and which ones there are."""
    sections = sections_of(model)
    known = (
        [f"{path[0]}.{name}" for name in sections[path[0]].model_fields]
        if path[0] in sections
        else [*sections]
    )
    dotted = ".".join(path)
    elsewhere = [spec.dotted for spec in specs_of(model) if spec.dotted.rpartition(".")[2] == path[-1]]
    meant = next(iter(elsewhere), None) or nearest(dotted, known)
    hint = f"did you mean {meant!r}? " if meant else ""
    return f"unknown key {shown(dotted)} = {shown(value)}; {hint}known: {', '.join(known)}"


def nearest(given: str, known: Sequence[str]) -> str | None:
    """The one of ``known`` that ``given`` may have meant.

    Names are made of the same few words, so letters alone mislead: what counts twice is the share of words in common, where a
    misspelt word counts by its likeness.
    """
    given = given[:_MOST_COMPARED]
    words = _words(given)

    def likeness(name: str) -> tuple[float, str]:
        others, ratio = _words(name), _ratio(given, name)
        alike = sum(max(_same_word(word, other) for other in others) for word in words)
        shared = alike / (len(words) + len(others) - alike)
        return (2 * shared + ratio, name) if shared >= _LEAST_SHARED or ratio >= _LEAST_RATIO else (0.0, name)

    score, name = max(map(likeness, known))
    return name if score > 0 else None


def _words(name: str) -> frozenset[str]:
    return frozenset(_BETWEEN_WORDS.split(name))


def _same_word(word: str, other: str) -> float:
    ratio = _ratio(word, other)
    return ratio if ratio >= _SAME_WORD else 0.0


def _ratio(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


def _line(model: type[BaseModel], detail: ErrorDetails) -> str:
    path, value = tuple(str(item) for item in detail["loc"]), detail["input"]
    sections = sections_of(model)
    if detail["type"] == "json_invalid":
        return f"{shown(value)} is not JSON; expected an object with some of the keys {', '.join(sections)}"
    if not path:
        return f"{_not_a_mapping(value)} {', '.join(sections)}"
    if detail["type"] in ("extra_forbidden", "invalid_key"):
        return unknown_key(model, path, value)
    if len(path) == 1:
        return f"{path[0]} = {_not_a_mapping(value)} {', '.join(sections[path[0]].model_fields)}"
    dotted = ".".join(path[:2])
    if detail["type"] == "value_error":
        return refused_value(model, dotted, value, str(detail["ctx"]["error"]))
    kind = next(spec.kind for spec in specs_of(model) if spec.dotted == dotted)
    # The commonest slip of YAML: enabled: "off".
    return refused_value(
        model,
        dotted,
        value,
        "it is text" if isinstance(value, str) and kind not in {"text", "choice"} else "",
    )


def _not_a_mapping(value: object) -> str:
    return f"{shown(value)} is not accepted; expected a mapping with some of the keys"
