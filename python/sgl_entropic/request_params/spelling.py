"""Keys that mean us and miss. SGLang ignores keys that it does not know, so a slip would never be noticed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

from sgl_entropic.errors import RequestParameterError
from sgl_entropic.request_params.messages import KNOWN, PLACE, misplaced, shown, unknown
from sgl_entropic.request_params.parameters import BY_NAME, COMMON, PARAMETERS_KEY, TOP_LEVEL

# difflib ratio: "entropc" and "entropik" are above it, "entropy" is a word of its own. No field of SGLang's request
# bodies comes nearer than 0.72 to a name of ours.
_MISSPELT = 0.85
_OUR_NAMES = ("sgl_entropic", "sglang_entropic", "sgl-entropic")
_ASKING = re.compile(r"return_?\w*(entrop|surprisal)")
# Names that nobody else gives to anything; "sampling_mode" in an object of somebody else's is theirs.
_TELLING = tuple(name for name in BY_NAME if name not in COMMON)
_MAX_SPELLED = 256  # keys of a body that are compared with ours; no honest body has more


def check_custom_params_key(key: str, value: object) -> None:
    """Refuse a key of ``custom_params``, other than ours, that means us.

    Raises:
        RequestParameterError: naming the key, the value and the key that was meant.
    """
    folded = key.casefold()
    if folded.startswith(PARAMETERS_KEY) or closest(folded, (PARAMETERS_KEY,), _MISSPELT):
        raise unknown(f"custom_params key {shown(key)}", value, PARAMETERS_KEY)
    if folded in _OUR_NAMES:
        raise unknown(f"custom_params key {shown(key)}", value, PARAMETERS_KEY)
    if meant := folded if folded in BY_NAME else closest(folded, _TELLING, _MISSPELT):
        raise misplaced(f"custom_params key {shown(key)}", value, meant)
    if _asks(value):
        raise unknown(f"custom_params key {shown(key)}", value, PARAMETERS_KEY)


def check_top_level_keys(body: Mapping[str, object]) -> None:
    """Refuse keys at the top level of a body that mean us.

    Raises:
        RequestParameterError: naming the key, the value and the key that was meant.
    """
    if len(body) > _MAX_SPELLED:
        return
    for key, value in body.items():
        if key not in (*TOP_LEVEL, "custom_params"):
            _check_top_level_key(key, value)


def _asks(value: object) -> bool:
    """Whether ``value`` is an object that holds a name of ours."""
    return isinstance(value, Mapping) and any(name in value for name in (*_TELLING, PARAMETERS_KEY))


def closest(key: object, names: tuple[str, ...], cutoff: float = 0.6) -> str | None:
    """The one of ``names`` that ``key`` may have meant; long keys are not looked at, the comparison is quadratic."""
    if not isinstance(key, str) or len(key) > 2 * max(map(len, names)):
        return None
    return next(iter(difflib.get_close_matches(key, names, n=1, cutoff=cutoff)), None)


def _check_top_level_key(key: object, value: object) -> None:
    folded = key.casefold() if isinstance(key, str) else ""
    if folded == PARAMETERS_KEY or folded in _OUR_NAMES:
        raise RequestParameterError(
            f"{shown(key)} = {shown(value)} is not accepted at the top level; expected {PLACE}, an object with some of"
            f" the keys {KNOWN}"
        )
    if folded in BY_NAME and folded not in TOP_LEVEL:
        raise misplaced(f"top-level key {shown(key)}", value, folded)
    meant = closest(folded, (*TOP_LEVEL, "custom_params"), _MISSPELT)
    # Another tool's "custom_param" is none of our business, unless it holds something for us.
    if meant == "custom_params" and not (isinstance(value, Mapping) and PARAMETERS_KEY in value):
        return
    if meant:
        raise RequestParameterError(
            f"unknown top-level key {shown(key)} = {shown(value)}; did you mean {meant!r}? expected some of"
            f" {', '.join(TOP_LEVEL)} (true or false) and custom_params (an object)"
        )
    if _ASKING.match(folded) or (key != "sampling_params" and _asks(value)):
        raise RequestParameterError(
            f"unknown top-level key {shown(key)} = {shown(value)}; expected some of {', '.join(TOP_LEVEL)} (true or"
            f" false) at the top level, and {PLACE}, an object with some of the keys {KNOWN}"
        )
