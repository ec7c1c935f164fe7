"""Keys that mean us and miss. SGLang ignores keys that it does not know, so a slip would never be noticed.

A name made of common words means us by its own letters only, whatever their case and separators. Names that nobody else
gives to anything are known by one wrong letter too. Each key costs a look into tables, so no body can hold the server up.
"""

from __future__ import annotations

import difflib
import string
from collections.abc import Iterator, Mapping

from sgl_entropic.errors import RequestParameterError
from sgl_entropic.request_params.messages import KNOWN, PLACE, misplaced, shown, unknown
from sgl_entropic.request_params.parameters import BY_NAME, COMMON, PARAMETERS_KEY, TOP_LEVEL

LONGEST = 64  # characters of a key that may mean us; more than twice the longest name

# Names that nobody else gives to anything; "client_id" in an object of somebody else's is theirs.
_TELLING = tuple(name for name in BY_NAME if name not in COMMON)
# Fields whose keys are the client's own words: stock SGLang's and OpenAI's.
_FREE = frozenset(
    {
        "metadata",
        "custom_labels",
        "logit_bias",
        "chat_template_kwargs",
        "mm_processor_kwargs",
        "external_trace_header",
    }
)


def check_custom_params_key(key: str, value: object, place: str = PLACE) -> None:
    """Refuse a key of ``custom_params``, other than ours, that means us.

    Args:
        key: the key.
        value: what it holds; null asks for nothing.
        place: where the route looks for parameters, for the message.

    Raises:
        RequestParameterError: naming the key, the value and the key that was meant.
    """
    if value is None:
        return
    folded = _folded(key)
    meant = _NAMES.get(folded)
    if meant == PARAMETERS_KEY or folded.startswith(PARAMETERS_KEY):
        raise unknown(f"custom_params key {shown(key)}", value, PARAMETERS_KEY, place)
    if meant:
        raise misplaced(f"custom_params key {shown(key)}", value, meant, place)
    if "entropynats" in folded or (folded.startswith("return") and _has_our_word(folded)):
        raise unknown(f"custom_params key {shown(key)}", value, closest(folded, tuple(BY_NAME)), place)
    if _asks(value) or (folded in _FOR_US and _holds(value)):
        raise unknown(f"custom_params key {shown(key)}", value, PARAMETERS_KEY, place)


def check_top_level_keys(body: Mapping[str, object], place: str = PLACE) -> None:
    """Refuse keys at the top level of a body that mean us and stand where they have no effect.

    Args:
        body: the JSON object.
        place: where the route looks for parameters. On the OpenAI routes ``sampling_params`` is no field of the body.

    Raises:
        RequestParameterError: naming the key, the value and the key that was meant.
    """
    for key, value in body.items():
        if key == "sampling_params":
            if place == PLACE:
                check_unread_sampling_params(value, f"expected {PLACE} at the top level of the body", PLACE)
        elif key not in TOP_LEVEL and key != "custom_params":
            _check_key("top-level key", key, value, place, TOP_LEVEL)


def check_sampling_params_keys(sampling_params: Mapping[str, object], place: str) -> None:
    """Refuse keys directly in ``sampling_params`` that mean us: SGLang refuses them too, but cannot say where they belong.

    Args:
        sampling_params: the JSON object.
        place: where the route looks for parameters.

    Raises:
        RequestParameterError: naming the key, the value and the key that was meant.
    """
    for key, value in sampling_params.items():
        if key != "custom_params":
            _check_key("sampling_params key", key, value, place, ())


def check_unread_sampling_params(value: object, instead: str, place: str) -> None:
    """Refuse all that means us in the ``sampling_params`` of a route that does not read them.

    Args:
        value: what the body holds there, an object or a list of them.
        instead: what to do instead, for the message.
        place: where the route looks for parameters.

    Raises:
        RequestParameterError: naming the key and the place.
    """
    for one in value if isinstance(value, list) else [value]:
        if isinstance(one, Mapping):
            check_sampling_params_keys(one, place)
            check_unread_custom_params(one.get("custom_params"), "sampling_params.", instead, place)


def check_unread_custom_params(value: object, where: str, instead: str, place: str) -> None:
    """Refuse all that means us in a ``custom_params`` that the route does not read; ``where`` is what stands before it."""
    if not isinstance(value, Mapping):
        return
    if value.get(PARAMETERS_KEY) is not None:
        raise RequestParameterError(f"{where}{PLACE} is not read on this route; {instead}")
    for key, inner in value.items():
        check_custom_params_key(key, inner, place)


def means_us(key: str) -> bool:
    """Whether a key may mean us where it stands; no other key is refused or read by any check."""
    folded = _folded(key)
    return folded in _NAMES or folded in _FOR_US or _has_our_word(folded)


def closest(key: object, names: tuple[str, ...], cutoff: float = 0.6) -> str | None:
    """The one of ``names`` that ``key`` may have meant; long keys are not looked at, the comparison is quadratic.

    For messages only: it costs as much as a thousand other keys.
    """
    if not isinstance(key, str) or len(key) > 2 * max(map(len, names)):
        return None
    return next(iter(difflib.get_close_matches(key, names, n=1, cutoff=cutoff)), None)


def _letters(key: str) -> str:
    # Ten times as fast as str.translate.
    return key.lower().replace("_", "").replace("-", "").replace(" ", "")


def _folded(key: object) -> str:
    """``key`` without case and separators: ``client-id``, ``clientId``; nothing when it is too long to mean us."""
    return _letters(key) if isinstance(key, str) and len(key) <= LONGEST else ""


def _has_our_word(folded: str) -> bool:
    # In SGLang's own bodies nothing else is called so. In custom_params "entropy" may be another extension's.
    return "entrop" in folded or "surprisal" in folded


def _slips(word: str) -> Iterator[str]:
    """One letter left out, swapped with the next, mistaken or too many."""
    for at in range(len(word) + 1):
        head, tail = word[:at], word[at:]
        yield head + tail[1:]
        yield head + tail[1:2] + tail[:1] + tail[2:]
        for letter in string.ascii_lowercase:
            yield head + letter + tail[1:]
            yield head + letter + tail


# From folded keys to the parameter, or the place of all of them, that they name.
_NAMES = {
    **{slip: name for name in (*_TELLING, PARAMETERS_KEY) for slip in _slips(_letters(name))},
    **dict.fromkeys(("sglentropic", "sglangentropic"), PARAMETERS_KEY),
    **{_letters(name): name for name in BY_NAME},
}
_CUSTOM = frozenset({"customparams", "customparam"})
# Folded keys of objects that can only be for us when they hold one of our names, even a common one.
_FOR_US = _CUSTOM | {"extrabody"}


def _asks(value: object) -> bool:
    """Whether ``value``, under any key, is an object that holds a telling name of ours, or the place of our parameters."""
    if not isinstance(value, Mapping):
        return False
    custom = value.get("custom_params")
    return any(value.get(name) is not None for name in (*_TELLING, PARAMETERS_KEY)) or (
        isinstance(custom, Mapping) and custom.get(PARAMETERS_KEY) is not None
    )


def _holds(value: object) -> bool:
    """Whether ``value``, under a key of :data:`_FOR_US`, holds any name of ours, however it is spelt."""
    return isinstance(value, Mapping) and any(
        inner is not None
        and (
            (folded := _folded(key)) in _NAMES or (folded in _CUSTOM and (_asks(inner) or _names_one(inner)))
        )
        for key, inner in value.items()
    )


def _names_one(value: object) -> bool:
    return isinstance(value, Mapping) and any(
        inner is not None and _folded(key) in _NAMES for key, inner in value.items()
    )


def _check_key(what: str, key: object, value: object, place: str, allowed: tuple[str, ...]) -> None:
    """Refuse a key of SGLang's own objects that means us; parameters in ``allowed`` may stand there, spelt as they are."""
    if value is None:  # asks for nothing
        return
    folded = _folded(key)
    meant = _NAMES.get(folded)
    if meant == PARAMETERS_KEY:
        raise RequestParameterError(
            f"{what} {shown(key)} = {shown(value)} is not accepted there; expected {place}, an object with some of the"
            f" keys {KNOWN}"
        )
    if meant is not None and meant not in allowed:
        raise misplaced(f"{what} {shown(key)}", value, meant, place)
    if meant is None and _has_our_word(folded):
        meant = closest(folded, tuple(BY_NAME))
        if meant not in allowed:
            raise unknown(f"{what} {shown(key)}", value, meant, place)
    if meant:
        raise RequestParameterError(
            f"unknown {what} {shown(key)} = {shown(value)}; did you mean {meant!r}? expected some of"
            f" {', '.join(allowed)} (true or false) and custom_params (an object)"
        )
    if (
        isinstance(value, Mapping)
        and key not in _FREE
        and (_asks(value) or (folded in _FOR_US and _holds(value)))
    ):
        hint = "custom_params" if folded in _CUSTOM else None
        raise unknown(f"{what} {shown(key)}", value, hint, place)
