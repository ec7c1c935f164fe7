"""Keys that mean us and miss. SGLang ignores keys that it does not know, so a slip would never be noticed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

from sgl_entropic.errors import RequestParameterError
from sgl_entropic.request_params.messages import KNOWN, PLACE, misplaced, shown, unknown
from sgl_entropic.request_params.parameters import BY_NAME, COMMON, EVERYDAY, PARAMETERS_KEY, TOP_LEVEL

# difflib ratio: "entropc" and "entropik" are above it, "entropy" is a word of its own. No field of SGLang's request
# bodies comes nearer than 0.82 to a name of ours ("custom_param" aside, which is judged by what it holds).
_MISSPELT = 0.85
_OUR_NAMES = ("sgl_entropic", "sglang_entropic", "sgl-entropic")
# In SGLang's own bodies nothing else is called so. In custom_params "entropy" may be another extension's.
_OUR_WORDS = re.compile("entrop|surprisal")
# Names that nobody else gives to anything; "sampling_mode" in an object of somebody else's is theirs.
_TELLING = tuple(name for name in BY_NAME if name not in COMMON)
# Names that a likeness tells: what is a letter away from "client_id" is a word of its own.
_LIKENESS = tuple(name for name in BY_NAME if name not in EVERYDAY)
_SEPARATORS = re.compile("[-_ ]+")
_JOINED = {name.replace("_", ""): name for name in BY_NAME}
_LONGEST = 64  # characters of a key that may mean us; more than twice the longest name
_MAX_SPELLED = 256  # keys of a body that are compared with ours; no honest body has more


def check_custom_params_key(key: str, value: object, place: str = PLACE) -> None:
    """Refuse a key of ``custom_params``, other than ours, that means us.

    Args:
        key: the key.
        value: what it holds.
        place: where the route looks for parameters, for the message.

    Raises:
        RequestParameterError: naming the key, the value and the key that was meant.
    """
    folded = key.casefold()
    what = f"custom_params key {shown(key)}"
    if folded.startswith(PARAMETERS_KEY) or closest(folded, (PARAMETERS_KEY,), _MISSPELT):
        raise unknown(what, value, PARAMETERS_KEY, place)
    if folded in _OUR_NAMES:
        raise unknown(what, value, PARAMETERS_KEY, place)
    if meant := _named(folded) or closest(folded, _TELLING, _MISSPELT):
        raise misplaced(what, value, meant, place)
    if _asks(value):
        raise unknown(what, value, PARAMETERS_KEY, place)


def check_top_level_keys(body: Mapping[str, object], place: str = PLACE) -> None:
    """Refuse keys at the top level of a body that mean us and stand where they have no effect.

    Args:
        body: the JSON object.
        place: where the route looks for parameters. On the OpenAI routes ``sampling_params`` is no field of the body.

    Raises:
        RequestParameterError: naming the key, the value and the key that was meant.
    """
    if len(body) > _MAX_SPELLED:
        for name in BY_NAME:
            if name in body and name not in TOP_LEVEL:
                raise misplaced(f"top-level key {name!r}", body[name], name, place)
        return
    for key, value in body.items():
        if key == "sampling_params":
            if place == PLACE:
                _check_unread_sampling_params(value)
        elif key not in (*TOP_LEVEL, "custom_params"):
            _check_key("top-level key", key, value, place, TOP_LEVEL)


def check_sampling_params_keys(sampling_params: Mapping[str, object], place: str) -> None:
    """Refuse keys directly in ``sampling_params`` that mean us: SGLang refuses them too, but cannot say where they belong.

    Args:
        sampling_params: the JSON object.
        place: where the route looks for parameters.

    Raises:
        RequestParameterError: naming the key, the value and the key that was meant.
    """
    if len(sampling_params) > _MAX_SPELLED:
        return
    for key, value in sampling_params.items():
        if key != "custom_params":
            _check_key("sampling_params key", key, value, place, ())


def closest(key: object, names: tuple[str, ...], cutoff: float = 0.6) -> str | None:
    """The one of ``names`` that ``key`` may have meant; long keys are not looked at, the comparison is quadratic."""
    if not isinstance(key, str) or len(key) > 2 * max(map(len, names)):
        return None
    return next(iter(difflib.get_close_matches(key, names, n=1, cutoff=cutoff)), None)


def _named(folded: str) -> str | None:
    """The name that ``folded`` is but for case and separators: ``client-id``, ``clientId``."""
    if len(folded) > _LONGEST:
        return None
    name = _SEPARATORS.sub("_", folded)
    return name if name in BY_NAME else _JOINED.get(folded)


def _asks(value: object, names: tuple[str, ...] = _TELLING) -> bool:
    """Whether ``value`` is an object that holds a name of ours, or the place of our parameters."""
    if not isinstance(value, Mapping):
        return False
    custom = value.get("custom_params")
    return any(name in value for name in (*names, PARAMETERS_KEY)) or (
        isinstance(custom, Mapping) and PARAMETERS_KEY in custom
    )


def _check_unread_sampling_params(value: object) -> None:
    for one in value if isinstance(value, list) else [value]:
        if isinstance(one, Mapping):
            check_sampling_params_keys(one, PLACE)
            if _asks(one):
                raise RequestParameterError(
                    f"sampling_params.{PLACE} is not read on this route; expected {PLACE} at the top level of the body"
                )


def _check_key(what: str, key: object, value: object, place: str, allowed: tuple[str, ...]) -> None:
    """Refuse a key of SGLang's own objects that means us; parameters in ``allowed`` may stand there, spelt as they are."""
    folded = key.casefold() if isinstance(key, str) else ""
    named = f"{what} {shown(key)}"
    if folded == PARAMETERS_KEY or folded in _OUR_NAMES:
        raise RequestParameterError(
            f"{named} = {shown(value)} is not accepted there; expected {place}, an object with some of the keys {KNOWN}"
        )
    meant = _named(folded) or closest(folded, (*_LIKENESS, "custom_params"), _MISSPELT)
    if meant is not None and meant in BY_NAME and meant not in allowed:
        raise misplaced(named, value, meant, place)
    # Another tool's "custom_param" is none of our business, unless it holds something for us.
    if meant == "custom_params" and not (isinstance(value, Mapping) and PARAMETERS_KEY in value):
        return
    if meant is None and len(folded) <= _LONGEST and _OUR_WORDS.search(folded):
        meant = closest(folded, tuple(BY_NAME))
        if meant not in allowed:
            raise unknown(named, value, meant, place)
    if meant:
        accepted = (
            f"some of {', '.join(allowed)} (true or false) and custom_params (an object)"
            if allowed
            else place
        )
        raise RequestParameterError(
            f"unknown {named} = {shown(value)}; did you mean {meant!r}? expected {accepted}"
        )
    if _asks(value, tuple(BY_NAME) if folded == "extra_body" else _TELLING):
        raise unknown(named, value, None, place)
