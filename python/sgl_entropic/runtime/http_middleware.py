"""ASGI middleware: refuses malformed entropic parameters before any route runs, and answers on the OpenAI routes.

Innermost in the stack, behind authentication and decompression. Whatever is not refused is passed on with the bytes it
came with; the response to a request that asks for nothing is not looked at.
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import orjson

from sgl_entropic.errors import RequestParameterError
from sgl_entropic.request_params import (
    GENERATE_PLACE,
    PARAMETERS_KEY,
    TOP_LEVEL,
    RequestParams,
    check_sampling_params_keys,
    check_top_level_keys,
    check_unread_custom_params,
    check_unread_sampling_params,
    may_mention,
    parse_custom_params,
    parse_top_level,
)
from sgl_entropic.request_params.messages import shown
from sgl_entropic.runtime.active_config import active_config
from sgl_entropic.runtime.openai_response import JsonRewriter, SseRewriter
from sgl_entropic.runtime.response_collector import SCOPE_KEY, ResponseCollector
from sgl_entropic.runtime.tokenizer_manager import require_available

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

GENERATE_ROUTES = frozenset({"/generate"})
OPENAI_ROUTES = frozenset({"/v1/completions", "/v1/chat/completions", "/invocations"})
# The route that hands what is below its key "parameters" to /generate; Vertex AI names it, and SGLang asks there too.
_VERTEX = os.environ.get("AIP_PREDICT_ROUTE", "/vertex_generate")
# Routes that generate, and have no place for readings in what they answer.
SILENT_ROUTES = frozenset({"/v1/responses", "/v1/messages", "/api/chat", "/api/generate", _VERTEX})
_LONG = 262_144  # bytes of a body that may take longer to parse than to look through


class EntropicMiddleware:
    """See the module's text."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        """Wrap ``app``."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI event stream."""
        # Behind --fastapi-root-path, the path comes with that prefix.
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        openai = path in OPENAI_ROUTES
        if (
            scope["type"] != "http"
            or scope.get("method") not in ("POST", "PUT")
            or not (openai or path in GENERATE_ROUTES or path in SILENT_ROUTES)
        ):
            await self._app(scope, receive, send)
            return
        body, replay = await _read_body(receive)
        if body is not None and not _may_be_an_object(body):
            await _refuse(send, "the body is not a JSON object; accepted: a JSON object", openai=openai)
            return
        content = None if body is None else _parsed(body)
        if content is None:
            await self._app(scope, replay, send)
            return
        try:
            if path in SILENT_ROUTES:
                _refuse_asking(content, path)
                params = RequestParams()
            else:
                params = parse_top_level(content) if openai else _checked_generate(content)
                require_available(params, active_config())
        except RequestParameterError as error:
            await _refuse(send, str(error), openai=openai)
            return
        if not _shows_anything(params):
            await self._app(scope, replay, send)
            return
        # It also takes what stands at the top level of the body to where the routes meet.
        collector = ResponseCollector(params)
        scope[SCOPE_KEY] = collector
        await self._app(scope, replay, _Response(send, collector) if openai else send)


def _shows_anything(params: RequestParams) -> bool:
    return params.return_entropy or params.return_prompt_surprisal or params.return_summary is True


def _may_be_an_object(body: bytes) -> bool:
    # Some of SGLang's routes answer anything else with an internal error.
    start = body.lstrip()[:1]
    if start == b"\0" or start >= b"\x80":
        # A mark of byte order, or UTF-16: the routes read that too.
        try:
            return isinstance(json.loads(body), dict)
        except (ValueError, RecursionError):
            return False
    return start in (b"", b"{")


def _parsed(body: bytes) -> dict[str, Any] | None:
    """The JSON object in ``body``; ``None`` where there is none, which the route refuses, or none that can mean us."""
    if len(body) >= _LONG and not may_mention(body):
        return None
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError:
        try:
            content = json.loads(body)  # as the routes do: other encodings, NaN, any Unicode
        except (ValueError, RecursionError):
            return None
    return content if isinstance(content, dict) else None


def _refuse_asking(content: dict[str, Any], path: str) -> None:
    """Refuse readings where they could not be given, rather than ignore the asking."""
    handed_on = content.get("parameters") if path == _VERTEX else None
    try:
        if isinstance(handed_on, dict):
            _refuse_asking_in(handed_on)
            _refuse_readings(handed_on.get("sampling_params"))
            content = {key: value for key, value in content.items() if key != "parameters"}
        _refuse_asking_in(content)
        check_unread_sampling_params(content.get("sampling_params"), "no readings here", GENERATE_PLACE)
    except RequestParameterError as error:
        accepted = ", ".join(sorted(GENERATE_ROUTES | OPENAI_ROUTES))
        raise RequestParameterError(f"{error}; not on {path}, accepted routes: {accepted}") from None


def _refuse_asking_in(place: dict[str, Any]) -> None:
    named = [name for name in TOP_LEVEL if place.get(name) not in (None, False)]
    if named:
        raise RequestParameterError(f"{', '.join(named)}: no readings here")
    check_top_level_keys(place, GENERATE_PLACE)
    check_unread_custom_params(place.get("custom_params"), "", "no readings here", GENERATE_PLACE)


def _refuse_readings(sampling: object) -> None:
    """Refuse what asks to return something in the ``sampling_params`` of a route without a place for it."""
    for one in sampling if isinstance(sampling, list) else [sampling]:
        if isinstance(one, dict):
            check_sampling_params_keys(one, GENERATE_PLACE)
            custom = one.get("custom_params")
            if custom and _shows_anything(parse_custom_params(custom, GENERATE_PLACE)):
                raise RequestParameterError(f"{GENERATE_PLACE} = {shown(custom)}: no readings here")


async def _read_body(receive: Receive) -> tuple[bytes | None, Receive]:
    """The whole body, and a ``receive`` that delivers it again; ``None`` when the client left before its end."""
    messages: list[Message] = []
    while True:
        message = await receive()
        messages.append(message)
        if message["type"] != "http.request" or not message.get("more_body", False):
            break
    complete = messages[-1]["type"] == "http.request"
    body = b"".join(message.get("body", b"") for message in messages) if complete else None
    pending = iter(messages)

    async def replay() -> Message:
        for message in pending:
            return message
        return await receive()

    return body, replay


def _checked_generate(content: dict[str, Any]) -> RequestParams:
    """Parameters at the top level of a body of ``/generate``, after a check of those in its ``sampling_params``."""
    misplaced = content.get("custom_params")
    if isinstance(misplaced, dict) and misplaced.get(PARAMETERS_KEY) is not None:
        raise RequestParameterError(
            f"custom_params.entropic is not read at the top level of this route; expected {GENERATE_PLACE}"
        )
    parse_custom_params(misplaced, GENERATE_PLACE)
    params = parse_top_level({k: v for k, v in content.items() if k != "custom_params"}, GENERATE_PLACE)
    top = {name: content[name] for name in TOP_LEVEL if name in content}
    sampling = content.get("sampling_params")
    for one in sampling if isinstance(sampling, list) else [sampling]:
        if isinstance(one, dict):
            check_sampling_params_keys(one, GENERATE_PLACE)
            if one.get("custom_params") is not None:
                both = parse_top_level({**top, "custom_params": one["custom_params"]}, GENERATE_PLACE)
                require_available(both, active_config())
    return params


async def _refuse(send: Send, message: str, *, openai: bool) -> None:
    error: dict[str, Any] = {"message": message, "type": "BadRequest", "param": None, "code": 400}
    content = {"object": "error", **error} if openai else {"error": {"message": message}}
    body = orjson.dumps(content)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 400, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class _Response:
    """Rewrites the response of a client that asked: a JSON document at its end, a stream event by event."""

    def __init__(self, send: Send, collector: ResponseCollector) -> None:
        self._send = send
        self._collector = collector
        self._start: Message | None = None
        self._rewriter: JsonRewriter | SseRewriter | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            kind = dict(message.get("headers", ())).get(b"content-type", b"")
            if message["status"] == 200 and kind.startswith(b"text/event-stream"):
                self._rewriter = SseRewriter(self._collector)
                await self._send(message)
            elif message["status"] == 200 and kind.startswith(b"application/json"):
                self._rewriter = JsonRewriter(self._collector)
            else:
                await self._send(message)
            return
        if message["type"] != "http.response.body" or self._rewriter is None:
            await self._send(message)
            return
        more = message.get("more_body", False)
        body = self._rewriter.feed(message.get("body", b""), end=not more)
        if isinstance(self._rewriter, JsonRewriter):
            if more:
                return
            await self._send(_with_length(self._start, len(body)))
        await self._send({"type": "http.response.body", "body": body, "more_body": more})


def _with_length(start: Message | None, length: int) -> Message:
    assert start is not None
    headers = [(k, v) for k, v in start.get("headers", ()) if k.lower() != b"content-length"]
    return {**start, "headers": [*headers, (b"content-length", str(length).encode())]}
