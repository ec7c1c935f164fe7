"""The refusals: each names the key, the value that was given and what is accepted."""

from __future__ import annotations

import reprlib

from sgl_entropic.errors import RequestParameterError
from sgl_entropic.request_params.parameters import BY_NAME, PARAMETERS_KEY

# Where parameters stand: on the OpenAI routes, for whom the first half is a key of the body, and on /generate.
PLACE = f"custom_params.{PARAMETERS_KEY}"
GENERATE_PLACE = f"sampling_params.{PLACE}"
KNOWN = ", ".join(BY_NAME)

_MAX_SHOWN = 100

_repr = reprlib.Repr()
_repr.maxlevel = 2
_repr.maxstring = _repr.maxother = _repr.maxlong = 80


def refused(path: str, value: object, accepted: str) -> RequestParameterError:
    """The value at ``path`` is not accepted."""
    return RequestParameterError(f"{cut(path)} = {shown(value)} is not accepted; expected {accepted}")


def unknown(what: str, value: object, meant: str | None, place: str = PLACE) -> RequestParameterError:
    """A key does not exist; ``meant`` may have been. ``place`` is where the route looks for parameters."""
    hint = f"did you mean {meant!r}? " if meant else ""
    return RequestParameterError(
        f"unknown {what} = {shown(value)}; {hint}expected {place}, an object with some of the keys {KNOWN}"
    )


def misplaced(what: str, value: object, name: str, place: str = PLACE) -> RequestParameterError:
    """Parameter ``name`` stands where it has no effect; ``place`` is where the route looks for it."""
    return RequestParameterError(
        f"{what} = {shown(value)} is not accepted there; expected {place}.{name}, {BY_NAME[name].accepted}"
    )


def shown(value: object) -> str:
    """``repr`` of a value, cut to a length that a message can hold."""
    try:
        return cut(_repr.repr(value))
    except ValueError:  # Python refuses to write out an integer of thousands of digits
        return f"{type(value).__name__} of thousands of digits"


def cut(text: str) -> str:
    """``text`` at a bearable length, and encodable."""
    printable = text.encode("utf-8", "backslashreplace").decode()
    return printable if len(printable) <= _MAX_SHOWN else printable[: _MAX_SHOWN - 3] + "..."
