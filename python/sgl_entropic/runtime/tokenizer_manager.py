"""Hooks on the front process: check what clients ask, and put the readings into what they get."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from sgl_entropic.config import EntropicConfig
from sgl_entropic.errors import RequestParameterError
from sgl_entropic.request_params import PARAMETERS_KEY, RequestParams, parse_custom_params
from sgl_entropic.request_params.parameters import OFF
from sgl_entropic.runtime.active_config import active_config
from sgl_entropic.runtime.attention.settings import check_request
from sgl_entropic.runtime.control import check_control
from sgl_entropic.runtime.refusals import steering_problems
from sgl_entropic.runtime.request_guard import check_sampling
from sgl_entropic.runtime.response import INFO_KEY, ResponseReadings
from sgl_entropic.runtime.response_collector import collector_of

_ATTRIBUTE = "_sgl_entropic"
_FACTS = "_sgl_entropic_facts"


def around_generate_request(
    original: Callable[..., AsyncIterator[Any]], manager: Any, obj: Any, request: Any = None
) -> AsyncIterator[Any]:
    """Around ``TokenizerManager.generate_request``, the one door of every route and of the offline engine."""
    return _generate(original, manager, obj, request)


async def _generate(
    original: Callable[..., AsyncIterator[Any]], manager: Any, obj: Any, request: Any
) -> AsyncIterator[Any]:
    collector = collector_of(request)
    admit(obj, None if collector is None else collector.params, _facts(manager))
    responses = original(manager, obj, request)
    try:
        async for response in responses:
            if collector is not None:
                collector.note(response)
            yield response
    finally:
        # A client that goes away must reach SGLang's own clean-up at once, not when the generator is collected.
        await responses.aclose()  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What the front process knows of its server.

    Attributes:
        vocabulary: tokens of the model.
        no_steering: why no request can have a target entropy; empty where it can.
    """

    vocabulary: int
    no_steering: str = ""


def _facts(manager: Any) -> ServerFacts:
    facts: ServerFacts | None = getattr(manager, _FACTS, None)
    if facts is None:
        problems = "; ".join(steering_problems(manager.server_args))
        facts = ServerFacts(int(manager.model_config.vocab_size), problems)
        setattr(manager, _FACTS, facts)
    return facts


def admit(obj: Any, top_level: RequestParams | None, server: ServerFacts) -> None:
    """Check the entropic parameters of a ``GenerateReqInput`` and write them where the scheduler looks.

    Args:
        obj: the request; embedding requests carry none and pass.
        top_level: what the HTTP layer found in the body beside ``custom_params``.
        server: what is known of this server.

    Raises:
        RequestParameterError: a parameter is unknown, malformed, or asks for what this server has switched off.
    """
    if not hasattr(obj, "return_entropy"):
        return
    asked = top_level or RequestParams()
    if obj.return_entropy is True:
        asked = asked.merged(RequestParams(return_entropy=True))
    if asked.return_prompt_surprisal and obj.input_embeds is not None:
        raise RequestParameterError(
            "return_prompt_surprisal=true is not available with input_embeds: they are no tokens"
        )
    params = obj.sampling_params
    if isinstance(params, list):
        obj.sampling_params = [_admit_one(one, asked, server) for one in params]
    else:
        obj.sampling_params = _admit_one(params, asked, server)


def _admit_one(sampling_params: Any, asked: RequestParams, server: ServerFacts) -> Any:
    if sampling_params is not None and not isinstance(sampling_params, dict):
        return sampling_params
    own = dict(sampling_params or {})
    wanted = parse_custom_params(own.get("custom_params")).merged(asked)
    require_available(wanted, active_config())
    config = active_config()
    prompts = config.telemetry.enabled and config.telemetry.prompt_surprisal
    check_control(wanted, config.sampling, own, server.vocabulary, prompts=prompts)
    check_request(wanted, config.attention)
    if server.no_steering and wanted.target_entropy_nats not in (None, OFF):
        raise RequestParameterError(
            f"target_entropy_nats = {wanted.target_entropy_nats!r} is not available: {server.no_steering}"
        )
    # Before SGLang makes n requests of this one.
    check_sampling(own, sys.maxsize)
    if (own.get("beam_width") or 1) != 1 and (wanted.return_entropy or wanted.return_prompt_surprisal):
        raise RequestParameterError(
            "readings are not available with beam_width > 1; accepted: beam_width 1, or no readings"
        )
    if wanted != RequestParams():
        own["custom_params"] = {**(own.get("custom_params") or {}), PARAMETERS_KEY: wanted.to_custom_params()}
        return own
    return sampling_params


def require_available(wanted: RequestParams, config: EntropicConfig) -> None:
    """Refuse what this server has switched off."""
    if not config.telemetry.enabled and (wanted.return_entropy or wanted.return_summary):
        name = "return_entropy" if wanted.return_entropy else "return_summary"
        msg = f"{name}=true is not available: this server runs with --entropic-telemetry off"
        raise RequestParameterError(msg)
    if wanted.return_prompt_surprisal and not (
        config.telemetry.enabled and config.telemetry.prompt_surprisal
    ):
        msg = (
            "return_prompt_surprisal=true is not available: this server runs with --entropic-telemetry off or"
            " --entropic-telemetry-prompt-surprisal off"
        )
        raise RequestParameterError(msg)


def around_update_request_meta_info(
    original: Callable[..., None],
    manager: Any,
    meta_info: dict[str, Any],
    state: Any,
    customized_info: dict[str, Any],
    index: int,
    finish_reason: Any,
) -> None:
    """Around ``TokenizerManager.update_request_meta_info``: merge our chunks, leave every other key to SGLang."""
    chunks = customized_info.get(INFO_KEY)
    if chunks is not None:
        rest = {key: values for key, values in customized_info.items() if key != INFO_KEY}
        _merge(manager, meta_info, state, chunks[index])
        customized_info = rest
    original(manager, meta_info, state, customized_info, index, finish_reason)


def _merge(manager: Any, meta_info: dict[str, Any], state: Any, chunks: list[dict[str, Any]]) -> None:
    readings = getattr(state, _ATTRIBUTE, None)
    if readings is None:
        readings = ResponseReadings()
        setattr(state, _ATTRIBUTE, readings)
    before = len(readings)
    first_prompt = not readings.prompt
    for chunk in chunks:
        readings.add(chunk)
    incremental = getattr(state.obj, "stream", False) and manager.incremental_streaming_output
    document = readings.document(
        start=before if incremental else 0,
        with_prompt=first_prompt or not incremental,
        with_summary=readings.summary is not None and _summary_wanted(state.obj),
    )
    if document:
        meta_info[INFO_KEY] = document


def _summary_wanted(obj: Any) -> bool:
    params = obj.sampling_params
    if not isinstance(params, dict):
        return True
    return parse_custom_params(params.get("custom_params")).return_summary is not False
