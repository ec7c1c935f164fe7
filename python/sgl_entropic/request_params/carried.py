"""What other extensions may put into ``custom_params``: the shapes that SGLang carries, within bounds.

SGLang checks none of this in front and promises, by its own type, scalars, lists of scalars and objects of scalars.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from sgl_entropic.errors import RequestParameterError
from sgl_entropic.request_params.messages import cut, refused

MAX_ITEMS = 65_536  # in one list or object: allow-lists of token ids are long
MAX_KEY_CHARACTERS = 256
MAX_TEXT_BYTES = 65_536  # of one text, as UTF-8

_INT64 = (-(2**63), 2**63 - 1)


def check_carried(path: str, value: object) -> None:
    """Refuse what is not sure to arrive.

    Raises:
        RequestParameterError: naming the path, the value and what is accepted.
    """
    if not isinstance(value, list | tuple | Mapping):
        _check_scalar(path, value)
        return
    if len(value) > MAX_ITEMS:
        raise RequestParameterError(f"{cut(path)} has {len(value)} items; expected at most {MAX_ITEMS}")
    if isinstance(value, Mapping):
        for key, item in value.items():
            check_key(path, key)
            _check_scalar(f"{path}.{key}", item)
    else:
        for index, item in enumerate(value):
            _check_scalar(f"{path}[{index}]", item)


def check_key(path: str, key: object) -> None:
    """Refuse a key of the object at ``path`` that is not text of a sensible length."""
    if not isinstance(key, str):
        raise refused(f"a key of {path}", key, "text")
    if len(key) > MAX_KEY_CHARACTERS:
        raise refused(f"a key of {path}", key, f"at most {MAX_KEY_CHARACTERS} characters")
    _check_text(f"a key of {path}", key)


def _check_scalar(path: str, value: object) -> None:
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, str):
        _check_text(path, value)
    elif isinstance(value, int):
        if not _INT64[0] <= value <= _INT64[1]:
            raise refused(path, value, f"an integer from {_INT64[0]} to {_INT64[1]}")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise refused(path, value, "a finite number")
    else:
        raise refused(
            path,
            value,
            "null, true, false, a number or a text: lists and objects nest one level deep at most",
        )


def _check_text(path: str, value: str) -> None:
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise refused(path, value, "text that UTF-8 can encode") from None
    if size > MAX_TEXT_BYTES:
        raise refused(path, value, f"at most {MAX_TEXT_BYTES} bytes of text, not {size}")
