"""From the JSON of a client to :class:`RequestParams`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sgl_entropic.errors import RequestParameterError
from sgl_entropic.request_params.carried import check_carried, check_key
from sgl_entropic.request_params.messages import KNOWN, PLACE, refused, shown, unknown
from sgl_entropic.request_params.parameters import BY_NAME, PARAMETERS_KEY, TOP_LEVEL, RequestParams
from sgl_entropic.request_params.spelling import check_custom_params_key, check_top_level_keys, closest

MAX_KEYS = 64


def parse_custom_params(custom_params: object, place: str = PLACE) -> RequestParams:
    """Check ``custom_params`` and read our part of it.

    Args:
        custom_params: the value as the client sent it, any JSON; it is not changed.
        place: what messages call the place of our part, :data:`PLACE` or :data:`GENERATE_PLACE`.

    Raises:
        RequestParameterError: naming the key, the value and what is accepted.
    """
    return RequestParams(**_own_values(custom_params, place))


def parse_top_level(body: Mapping[str, object], place: str = PLACE) -> RequestParams:
    """Read the top level of a request body together with its ``custom_params``.

    Args:
        body: the JSON object.
        place: what messages call the place of our part, :data:`PLACE` or :data:`GENERATE_PLACE`.

    Raises:
        RequestParameterError: a value is malformed, a key misspelt, or the two places contradict each other.
    """
    own = _own_values(body.get("custom_params"), place)
    check_top_level_keys(body, place)
    top: dict[str, Any] = {}
    for name in TOP_LEVEL:
        value = body.get(name)
        if value is None:
            continue
        if not isinstance(value, bool):
            raise refused(name, value, f"{BY_NAME[name].accepted}, or null")
        if own.get(name, value) is not value:
            raise RequestParameterError(
                f"{name} = {value} contradicts {place}.{name} = {own[name]}; expected true or false, the same in both"
                " places or in one of them only"
            )
        top[name] = value
    return RequestParams(**{**own, **top})


def _own_values(custom_params: object, place: str) -> dict[str, Any]:
    """The values that ``custom_params`` gives to our parameters, after a check of all of it."""
    if custom_params is None:
        return {}
    if not isinstance(custom_params, Mapping):
        raise refused("custom_params", custom_params, "an object, or null")
    if len(custom_params) > MAX_KEYS:
        raise RequestParameterError(
            f"custom_params has {len(custom_params)} keys; expected at most {MAX_KEYS}"
        )
    for key, value in custom_params.items():
        check_key("custom_params", key)
        if key != PARAMETERS_KEY:
            check_custom_params_key(key, value, place)
            check_carried(f"custom_params.{key}", value)
    return _checked_own(custom_params.get(PARAMETERS_KEY), place)


def _checked_own(own: object, place: str) -> dict[str, Any]:
    if own is None:
        return {}
    if not isinstance(own, Mapping):
        raise refused(place, own, f"an object with some of the keys {KNOWN}")
    for name, value in own.items():
        if name not in BY_NAME:
            raise unknown(f"{place} key {shown(name)}", value, closest(name, tuple(BY_NAME)), place)
        if not BY_NAME[name].accepts(value):
            raise refused(f"{place}.{name}", value, BY_NAME[name].accepted)
    return dict(own)
