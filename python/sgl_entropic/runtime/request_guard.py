"""Requests that would end the scheduler process are refused in the front process.

Stock SGLang 0.5.23 passes these on, and the scheduler dies of an index or a shape that its tensors cannot hold, with every
other request of the server. Each check says which stock failure it stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from sgl_entropic.errors import RequestParameterError
from sgl_entropic.request_params.messages import shown

MAX_CHOICES = 4096
_INT32_MAX = 2**31 - 1
# Kept as float32, in which these are still far from 0 and from infinity.
_MOST_TEMPERATURE = 1e6
_LEAST_TOP_P = 1e-30


def around_validate_one_request(
    original: Callable[..., None], manager: Any, obj: Any, input_ids: Any
) -> None:
    """Around ``TokenizerManager._validate_one_request``: the last stop before a request goes to the scheduler."""
    original(manager, obj, input_ids)
    if not hasattr(obj, "sampling_params"):
        return
    vocabulary = int(manager.model_config.vocab_size)
    if input_ids is not None:
        _check_prompt(obj, input_ids, vocabulary)
        for name in ("token_indices_to_pool", "multi_item_delimiter_indices"):
            # Rows of the prompt's hidden states.
            _check_ids(name, getattr(obj, name, None), len(input_ids), "position of the prompt")
    overrides = getattr(obj, "positional_embed_overrides", None)
    if isinstance(overrides, bool | int | float | str | list | dict):
        # A tensor of the offline engine, which the scheduler unpacks; JSON has none.
        raise RequestParameterError("positional_embed_overrides is not accepted in JSON; accepted: null")
    check_sampling(obj.sampling_params, vocabulary)
    # The scheduler takes that many of a row, and gathers log-probabilities at these ids.
    _check_range("top_logprobs_num", getattr(obj, "top_logprobs_num", None), 0, vocabulary)
    _check_ids("token_ids_logprob", getattr(obj, "token_ids_logprob", None), vocabulary)


def _check_prompt(obj: Any, input_ids: Any, vocabulary: int) -> None:
    if len(input_ids) == 0:
        # A tensor of no elements cannot be reshaped to heads.
        raise RequestParameterError("the prompt has no tokens; accepted: at least 1 token")
    if not obj.contains_mm_input():  # the placeholders of images and audio are hashes
        # The embedding is indexed with them.
        _check_ids("input_ids", input_ids, vocabulary)


def check_sampling(params: Any, vocabulary: int) -> None:
    """Refuse sampling parameters that no tensor of the scheduler can hold.

    Args:
        params: ``sampling_params`` of one request; anything but an object is left to SGLang.
        vocabulary: size of the model's vocabulary.

    Raises:
        RequestParameterError: naming the key, the value and the accepted range.
    """
    if not isinstance(params, dict):
        return
    # Kept in int32 tensors.
    _check_range("top_k", params.get("top_k"), -1, _INT32_MAX)
    temperature, top_p = params.get("temperature"), params.get("top_p")
    if isinstance(temperature, int | float) and temperature > _MOST_TEMPERATURE:
        raise RequestParameterError(
            f"temperature = {shown(temperature)} is not accepted; accepted: a number from 0 to {_MOST_TEMPERATURE:g}"
        )
    if isinstance(top_p, int | float) and 0 < top_p < _LEAST_TOP_P:
        raise RequestParameterError(
            f"top_p = {shown(top_p)} is not accepted; accepted: a number from {_LEAST_TOP_P:g} to 1"
        )
    # That many requests are made of it before any is checked.
    _check_range("n", params.get("n"), 1, MAX_CHOICES)
    if params.get("min_new_tokens"):
        # The penalty that forbids an early stop is written at these ids.
        _check_ids("stop_token_ids", params.get("stop_token_ids"), vocabulary)


def _check_range(name: str, value: Any, low: int, high: int) -> None:
    if isinstance(value, bool) or value is None or not isinstance(value, int | float):
        return
    if isinstance(value, float) or not low <= value <= high:
        raise RequestParameterError(
            f"{name} = {shown(value)} is not accepted; accepted: an integer from {low} to {high}"
        )


def _check_ids(name: str, ids: Any, end: int, what: str = "token of this model") -> None:
    if not isinstance(ids, Iterable) or isinstance(ids, str | bytes | dict):
        return
    for token in ids:
        if isinstance(token, int) and not 0 <= token < end:
            raise RequestParameterError(f"{name} holds {token}, which is no {what}; accepted: 0 to {end - 1}")
