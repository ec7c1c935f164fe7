"""The middleware in front of a real application: invisible to those who do not ask, strict with those who do."""

from __future__ import annotations

import asyncio
import difflib
import gzip
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import orjson
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from sgl_entropic.config import EntropicConfig, TelemetryConfig
from sgl_entropic.request_params import PARAMETERS, TOP_LEVEL
from sgl_entropic.runtime import http_middleware
from sgl_entropic.runtime.http_middleware import EntropicMiddleware
from sgl_entropic.runtime.response import INFO_KEY, TOKEN_FIELDS
from sgl_entropic.runtime.response_collector import collector_of

ROUTES = ["/generate", "/v1/completions", "/v1/chat/completions", "/invocations"]
OPENAI = ROUTES[1:]
READINGS = {name: [0.5, 1.5] for name in TOKEN_FIELDS}
ASKS = {"prompt": "Hi", "return_entropy": True}
NAMES = [parameter.name for parameter in PARAMETERS]
SILENT = sorted(http_middleware.SILENT_ROUTES)
on_every_route = pytest.mark.parametrize("route", ROUTES)
on_openai_routes = pytest.mark.parametrize("route", OPENAI)


class Server:
    """A Starlette application behind the middleware; notes what reaches its routes."""

    def __init__(self, answer: Callable[[Request], Response] | None = None) -> None:
        self.bodies: list[bytes] = []
        self.params: list[Any] = []
        self._answer = answer or self._completion
        routes = [
            Route(path, self._handle, methods=["GET", "POST", "PUT"]) for path in (*ROUTES, *SILENT, "/other")
        ]
        self.app = Starlette(routes=routes, middleware=[Middleware(EntropicMiddleware)])

    async def _handle(self, request: Request) -> Response:
        self.bodies.append(await request.body())
        collector = collector_of(request)
        self.params.append(None if collector is None else collector.params)
        if collector is not None:
            collector.note({"index": 0, "meta_info": {INFO_KEY: READINGS}})
        return self._answer(request)

    @staticmethod
    def _completion(request: Request) -> Response:
        return JSONResponse({"choices": [{"index": 0, "text": "é"}]})

    def ask(self, route: str, *, method: str = "POST", root_path: str = "", **more: Any) -> httpx.Response:
        """One request through ASGI, as ``httpx`` sends it."""

        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, root_path=root_path)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await client.request(method, route, **more)

        return asyncio.run(send())


@on_every_route
@pytest.mark.parametrize("body", [b'{"prompt":  "H\xc3\xa9"}', b'{"a" : 1}\n', b"{not json", b"", b"  \n"])
def test_a_body_that_does_not_mention_us_arrives_byte_for_byte(route: str, body: bytes) -> None:
    """And so does the response: it is not even looked at."""
    server = Server(lambda request: Response(b'{"choices":  [{}]}', media_type="application/json"))
    response = server.ask(route, content=body)
    assert server.bodies == [body]
    assert server.params == [None]
    assert response.content == b'{"choices":  [{}]}'


@on_every_route
def test_a_body_in_parts_arrives_whole(route: str) -> None:
    """Also one that mentions us, cut inside the very name."""
    parts = [b'{"prompt": "', b"", b'x", "return_ent', b'ropy": false}', b""]
    server = Server()

    async def body() -> AsyncIterator[bytes]:
        for part in parts:
            yield part

    assert server.ask(route, content=body()).status_code == 200
    assert server.bodies == [b"".join(parts)]


def test_a_huge_body_arrives_whole() -> None:
    body = orjson.dumps({"prompt": "x" * 20_000_000, "return_entropy": True})
    server = Server()
    response = server.ask("/v1/completions", content=body)
    assert server.bodies == [body]
    assert response.json()["choices"][0]["entropic"] == READINGS


@on_every_route
@pytest.mark.parametrize(
    "body", [b"[]", b"null", b'"return_entropy"', b" 7", b"-1", b"\xff\xfe", b"\xff\xfe[\0]\0", b"\0{"]
)
def test_a_body_that_is_no_object_is_refused(route: str, body: bytes) -> None:
    server = Server()
    response = server.ask(route, content=body)
    assert response.status_code == 400
    assert "JSON object" in response.text
    assert server.bodies == []


@on_every_route
def test_broken_json_that_mentions_us_is_left_to_the_route(route: str) -> None:
    server = Server()
    body = b'{"return_entropy": tru'
    assert server.ask(route, content=body).status_code == 200
    assert server.bodies == [body]
    assert server.params == [None]


@pytest.mark.parametrize(
    ("method", "route"), [("GET", "/v1/completions"), ("POST", "/other"), ("PUT", "/other")]
)
def test_other_requests_are_none_of_our_business(method: str, route: str) -> None:
    """Whatever their bodies say."""
    server = Server()
    body = b'[{"return_entropi": 7}]'
    assert server.ask(route, method=method, content=body).status_code == 200
    assert server.bodies == [body]


@on_every_route
@pytest.mark.parametrize("method", ["POST", "PUT"])
@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"return_entropy": "yes"}, "return_entropy"),
        ({"return_entropi": True}, "return_entropi"),
        ({"Return_Entropy": True}, "return_entropy"),
        ({"ENTROPIC": {"return_entropy": True}}, "entropic"),
        ({"return_prompt_surprisal": 1}, "return_prompt_surprisal"),
    ],
)
def test_a_malformed_parameter_is_refused(method: str, route: str, body: Any, named: str) -> None:
    """With 400, in the form of the route's own errors, before the route runs."""
    server = Server()
    response = server.ask(route, method=method, json=body)
    assert response.status_code == 400
    error = response.json() if route in OPENAI else response.json()["error"]
    assert named in error["message"]
    assert int(response.headers["content-length"]) == len(response.content)
    assert server.bodies == []


def message_of(response: httpx.Response, route: str) -> str:
    assert response.status_code == 400
    error = response.json() if route in OPENAI else response.json()["error"]
    message: str = error["message"]
    return message


@on_every_route
@pytest.mark.parametrize("name", [name for name in NAMES if name not in TOP_LEVEL])
@pytest.mark.parametrize("letter", ["i", "\\u0069"])
def test_a_parameter_alone_at_the_top_is_refused(route: str, name: str, letter: str) -> None:
    """With the place where this route reads it, also when JSON spells a letter by its number."""
    server = Server()
    body = f'{{"prompt": "Hi", "{name.replace("i", letter)}" : 1}}'.encode()
    message = message_of(server.ask(route, content=body), route)
    place = "custom_params.entropic" if route in OPENAI else "sampling_params.custom_params.entropic"
    assert message.startswith(f"top-level key {name!r} = 1 is not accepted there; expected {place}.{name}, ")
    assert server.bodies == []


@pytest.mark.parametrize("name", [*NAMES, "target_entropy", "entropic"])
@pytest.mark.parametrize("batch", [False, True])
def test_a_parameter_alone_in_the_sampling_params_is_refused(name: str, *, batch: bool) -> None:
    server = Server()
    sampling = {"temperature": 0, name: 2}
    body = {"text": "Hi", "sampling_params": [{}, sampling] if batch else sampling}
    message = message_of(server.ask("/generate", json=body), "/generate")
    assert f"sampling_params key {name!r} = 2" in message
    assert "expected sampling_params.custom_params.entropic" in message
    assert server.bodies == []


@on_openai_routes
@pytest.mark.parametrize(
    "sampling", [{"client_id": "a"}, {"custom_params": {"entropic": {"client_id": "a"}}}, [{"entropic": {}}]]
)
def test_the_place_of_generate_is_none_on_the_openai_routes(route: str, sampling: Any) -> None:
    server = Server()
    message = message_of(server.ask(route, json={"prompt": "Hi", "sampling_params": sampling}), route)
    assert "expected custom_params.entropic" in message
    assert server.bodies == []


@pytest.mark.parametrize("route", SILENT)
@pytest.mark.parametrize(
    "body",
    [
        {"sampling_params": {"return_entropy": True}},
        {"sampling_params": {"client_id": "a"}},
        {"sampling_params": {"custom_params": {"entropic": {}}}},
        {"sampling_params": [{}, {"custom_params": {"return_entropy": True}}]},
        {"custom_params": {"return_entropy": True}},
        {"custom_params": {"entropic": {"client_id": "a"}}},
        {"custom_param": {"client_id": "a"}},
        {"parameters": {"return_entropy": True}},
        {"parameters": {"custom_params": {"entropic": {}}}},
    ],
)
def test_routes_without_readings_look_where_the_others_do(route: str, body: Any) -> None:
    """And name those that have them."""
    server = Server()
    message = message_of(server.ask(route, json={"model": "m", **body}), route)
    assert "entrop" in message
    assert f"not on {route}, accepted routes: /generate" in message
    assert server.bodies == []


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"sampling_params": {"custom_params": {"entropic": {"return_entropy": True}}}}, "no readings here"),
        (
            {"sampling_params": [{"custom_params": {"entropic": {"return_summary": True}}}]},
            "no readings here",
        ),
        ({"sampling_params": {"custom_params": {"entropic": {"client": 1}}}}, "key 'client' = 1"),
        (
            {"sampling_params": {"client_id": "a"}},
            "expected sampling_params.custom_params.entropic.client_id",
        ),
        (
            {"return_prompt_surprisal": True},
            "return_prompt_surprisal: no readings here; not on /vertex_generate",
        ),
    ],
)
def test_the_parameters_of_vertex_are_those_of_generate(body: Any, named: str) -> None:
    """But for the readings, which its answer has no place for."""
    server = Server()
    content = {"instances": [{"text": "Hi"}], "parameters": body}
    message = message_of(server.ask("/vertex_generate", json=content), "/vertex_generate")
    assert named in message
    assert "accepted routes: /generate" in message
    assert server.bodies == []


def test_vertex_may_name_its_route() -> None:
    """As SGLang reads it, when its own module is loaded."""
    code = "from sgl_entropic.runtime.http_middleware import SILENT_ROUTES as silent; print(*sorted(silent))"
    env = {**os.environ, "AIP_PREDICT_ROUTE": "/predict"}
    said = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert said.stdout.split() == sorted({*SILENT, "/predict"} - {"/vertex_generate"})


def test_what_vertex_hands_to_generate_passes() -> None:
    server = Server()
    own = {"target_entropy_nats": 1.0, "client_id": "a", "return_entropy": False}
    for parameters in ({"return_entropy": False}, {"sampling_params": {"custom_params": {"entropic": own}}}):
        body = orjson.dumps({"instances": [{"text": "Hi", "client_id": "a"}], "parameters": parameters})
        assert server.ask("/vertex_generate", content=body).status_code == 200
        assert server.bodies.pop() == body


@pytest.mark.parametrize("route", [*ROUTES, *SILENT])
@pytest.mark.parametrize(
    "body",
    [
        b'{"client_id": "a", "temperature": NaN}',
        b'{"client_id": "a", "prompt": "\\ud800"}',
        b'\xef\xbb\xbf{"client_id": "a"}',
        '{"client_id": "a"}'.encode("utf-16"),
        '{"client_id": "a"}'.encode("utf-16-le"),
        b'{"client_id": "a", "image_data": "' + b"A" * 1_000_000 + b'"}',
        b'{"image_data": "' + b"A" * 1_000_000 + b'", "clie\\u006et_id": "a"}',
        ('{"prompt": "' + "A" * 500_000 + '", "client_id": "a"}').encode("utf-16-be"),
    ],
    ids=range(8),
)
def test_what_the_routes_would_read_is_looked_at(route: str, body: bytes) -> None:
    """Also JSON that only the library of the routes reads, and in a long body."""
    server = Server()
    assert "client_id" in message_of(server.ask(route, content=body), route)
    assert server.bodies == []


@pytest.mark.parametrize("route", [*ROUTES, *SILENT])
@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","messages":[],"retention_policy":"24h", "temperature_scale": 1}',
        b'{"client_id": null, "sampling_params": {"client_id": null}, "custom_params": {"entropic": null}}',
        b'{"temperature": NaN}',
        b'{"a": "\xff"}',
        b"[" * 5000,
        b'{"a":' * 5000,
        b'{"n": ' + b"9" * 5000 + b"}",
        b'{"image_data": "' + b"A" * 1_000_000 + b'"}',
    ],
    ids=range(8),
)
def test_what_is_not_ours_is_left_to_the_route(route: str, body: bytes) -> None:
    if body.startswith(b"["):
        body = b'{"a": ' + body
    server = Server()
    assert server.ask(route, content=body).status_code == 200
    assert server.bodies == [body]


@pytest.mark.parametrize("route", ["/generate", "/v1/completions"])
def test_a_batch_with_parameters_of_its_own_each_is_compared_with_nothing(
    route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Likeness is costly, and the event loop waits meanwhile: only what is refused is worded by it."""
    monkeypatch.setattr(difflib, "get_close_matches", None)
    sampling = {"temperature": 0.5, "max_new_tokens": 16, "top_p": 0.9, "min_new_tokens": 1, "stop": ["a"]}
    content = {"text": ["Hi"] * 5000, "sampling_params": [sampling] * 5000}
    server = Server()
    assert server.ask(route, json=content).status_code == 200
    assert len(server.bodies) == 1


@pytest.mark.parametrize("route", SILENT)
@pytest.mark.parametrize("name", NAMES)
def test_routes_without_readings_take_no_parameter(route: str, name: str) -> None:
    """And name those that do."""
    server = Server()
    message = message_of(server.ask(route, json={"model": "m", name: True}), route)
    assert name in message
    assert route in message
    assert "/v1/chat/completions" in message
    assert server.bodies == []


@pytest.mark.parametrize("route", [*ROUTES, *SILENT])
@pytest.mark.parametrize("name", NAMES)
def test_names_in_texts_and_schemas_are_nobody_s_mistake(route: str, name: str) -> None:
    """Such bodies arrive as they came."""
    schema = {"type": "object", "properties": {name: {"type": "string"}}}
    for body in (
        {"text": name, "sampling_params": {"stop": [name, f'"{name}": 1']}},
        {"prompt": f'{{"{name}": true}}'},
        {"messages": [{"role": "user", "content": name}], "tools": [{"function": {"parameters": schema}}]},
        {"prompt": "Hi", "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}},
        {"text": "Hi", "sampling_params": {"json_schema": orjson.dumps(schema).decode()}},
        {"prompt": "Hi", "metadata": {"client_id": name}},
    ):
        server = Server()
        sent = orjson.dumps(body)
        assert server.ask(route, content=sent).status_code == 200
        assert server.bodies == [sent]
        assert server.params == [None]


@pytest.mark.parametrize(
    "body",
    [
        {"sampling_params": {"custom_params": {"entropic": {"x": True}}}},
        {"sampling_params": [{}, {"custom_params": {"entropic": {"x": True}}}]},
        {
            "return_entropy": False,
            "sampling_params": {"custom_params": {"entropic": {"return_entropy": True}}},
        },
        {"custom_params": {"entropic": {"return_entropy": True}}},
    ],
)
def test_generate_takes_parameters_in_its_sampling_params(body: Any) -> None:
    """Malformed or contradicting ones there are refused; so are those at a place that is not read."""
    server = Server()
    response = server.ask("/generate", json={"text": "Hi", **body})
    assert response.status_code == 400
    assert "custom_params" in response.json()["error"]["message"]
    assert server.bodies == []


@on_every_route
@pytest.mark.parametrize("name", ["return_entropy", "return_prompt_surprisal"])
def test_parameters_at_the_top_level_reach_the_place_where_routes_meet(route: str, name: str) -> None:
    server = Server()
    assert server.ask(route, json={name: True}).status_code == 200
    assert [getattr(params, name) for params in server.params] == [True]


@on_every_route
def test_what_the_server_has_switched_off_is_refused(route: str, monkeypatch: pytest.MonkeyPatch) -> None:
    off = EntropicConfig(telemetry=TelemetryConfig(enabled=False))
    monkeypatch.setattr(http_middleware, "active_config", lambda: off)
    response = Server().ask(route, json={"return_entropy": True})
    assert response.status_code == 400
    assert "--entropic-telemetry off" in response.text


@on_openai_routes
@pytest.mark.parametrize("root_path", ["", "/behind/a/proxy"])
def test_an_answer_carries_its_readings(route: str, root_path: str) -> None:
    """With the length that it then has, also where the server lives below a prefix."""
    response = Server().ask(root_path + route, root_path=root_path, json=ASKS)
    assert response.json() == {"choices": [{"index": 0, "text": "é", "entropic": READINGS}]}
    assert response.headers.get_list("content-length") == [str(len(response.content))]


def test_generate_answers_by_itself() -> None:
    """Its readings are in ``meta_info``; the middleware leaves its response alone."""
    assert Server().ask("/generate", json=ASKS).json() == {"choices": [{"index": 0, "text": "é"}]}


@on_openai_routes
@pytest.mark.parametrize(
    "answer",
    [
        Response(b'{"choices":  [{"index": 0}]}', 500, media_type="application/json"),
        Response(b'{"choices":  [{"index": 0}]}', 404, media_type="application/json"),
        Response(b"{}  ", 200, media_type="application/json"),
        Response(b"plain", 200, media_type="text/plain"),
        Response(gzip.compress(b"{}"), 200, media_type="application/octet-stream"),
        Response(status_code=204),
    ],
)
def test_other_answers_pass_untouched(route: str, answer: Response) -> None:
    """Errors, other types, and JSON without choices."""
    response = Server(lambda request: answer).ask(route, json=ASKS)
    assert response.status_code == answer.status_code
    assert response.content == answer.body
    assert response.headers.get("content-length") == answer.headers.get("content-length")


@on_openai_routes
def test_a_json_answer_in_parts_is_rewritten_whole(route: str) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for part in (b'{"choices": [{"ind', b'ex": 0}]', b"}", b""):
            yield part

    server = Server(lambda request: StreamingResponse(parts(), media_type="application/json"))
    response = server.ask(route, json=ASKS)
    assert response.json() == {"choices": [{"index": 0, "entropic": READINGS}]}
    assert response.headers["content-length"] == str(len(response.content))
