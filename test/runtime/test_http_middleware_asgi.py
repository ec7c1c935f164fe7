"""The middleware as an ASGI application: other scopes, clients that leave, streams that must not wait."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import orjson
import pytest

from sgl_entropic.request_params import RequestParams
from sgl_entropic.runtime.http_middleware import EntropicMiddleware
from sgl_entropic.runtime.response import INFO_KEY, TOKEN_FIELDS
from sgl_entropic.runtime.response_collector import SCOPE_KEY

Message = MutableMapping[str, Any]
READINGS = {name: [0.5] for name in TOKEN_FIELDS}
SSE = [(b"content-type", b"text/event-stream; charset=utf-8")]
DISCONNECT = {"type": "http.disconnect"}


def http_scope(**more: Any) -> dict[str, Any]:
    return {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [], **more}


def part(body: bytes, *, more: bool) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


class Client:
    """Sends the messages it was given, one a call, and notes what comes back."""

    def __init__(self, *messages: Message) -> None:
        self.messages = list(messages)
        self.answers: list[Message] = []

    async def receive(self) -> Message:
        return self.messages.pop(0)

    async def send(self, message: Message) -> None:
        self.answers.append(message)


class Listener:
    """An application that reads everything and answers nothing."""

    def __init__(self, reads: int) -> None:
        self.reads = reads
        self.scopes: list[Any] = []
        self.seen: list[Message] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        for _ in range(self.reads):
            self.seen.append(await receive())


@pytest.mark.parametrize(
    "scope",
    [
        {"type": "lifespan"},
        {"type": "lifespan", "state": {}},
        {"type": "websocket", "path": "/v1/completions"},
        {"type": "websocket", "path": "/generate", "root_path": "", "headers": []},
        {"type": "http", "method": "GET", "path": "/v1/completions", "headers": []},
        {"type": "http", "method": "POST", "path": "/v1/models", "headers": []},
    ],
)
def test_other_scopes_pass_with_their_own_channels(scope: dict[str, Any]) -> None:
    """The application gets the very scope, receive and send, of which nothing was used."""
    seen: list[tuple[Any, ...]] = []

    async def app(*given: Any) -> None:
        seen.append(given)

    client = Client()
    before = dict(scope)
    receive, send = client.receive, client.send
    asyncio.run(EntropicMiddleware(app)(scope, receive, send))
    assert [[id(one) for one in given] for given in seen] == [[id(scope), id(receive), id(send)]]
    assert scope == before


@pytest.mark.parametrize("came", [b"{", b"[", b'{"return_entropi": 1}', b'{"return_entropy": true}'])
def test_a_client_that_leaves_within_its_body(came: bytes) -> None:
    """The application sees the same: the part that came, then the end of the connection. Nothing is judged or sent."""
    begin = part(came, more=True)
    client, app = Client(begin, DISCONNECT), Listener(reads=2)
    asyncio.run(EntropicMiddleware(app)(http_scope(), client.receive, client.send))
    assert app.seen == [begin, DISCONNECT]
    assert client.answers == []


def test_a_client_that_leaves_after_its_body() -> None:
    """After the body the application hears the client itself, not an echo."""
    body = part(b'{"return_entropy": true}', more=False)
    client, app = Client(body, DISCONNECT), Listener(reads=2)
    asyncio.run(EntropicMiddleware(app)(http_scope(), client.receive, client.send))
    assert app.seen == [body, DISCONNECT]


def test_the_parts_of_a_body_are_replayed_as_they_came() -> None:
    parts = [part(b"{", more=True), part(b"", more=True), part(b"}", more=False)]
    client, app = Client(*parts), Listener(reads=3)
    asyncio.run(EntropicMiddleware(app)(http_scope(), client.receive, client.send))
    assert app.seen == parts


def test_a_last_part_without_its_keys_ends_the_body() -> None:
    """ASGI lets servers leave out an empty body and ``more_body``."""
    client, app = Client({"type": "http.request"}), Listener(reads=1)
    asyncio.run(EntropicMiddleware(app)(http_scope(), client.receive, client.send))
    assert app.seen == [{"type": "http.request"}]


def test_a_stream_is_passed_on_event_by_event() -> None:
    """Each event has left before the application makes the next one, with the readings known by then."""
    client = Client(part(b'{"return_entropy": true}', more=False))
    left: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": SSE})
        left.append(len(client.answers))
        for number in range(3):
            values = {name: [float(i) for i in range(number + 1)] for name in TOKEN_FIELDS}
            scope[SCOPE_KEY].note({"index": 0, "meta_info": {INFO_KEY: values}})
            event = b"data: " + orjson.dumps({"choices": [{"index": 0}]}) + b"\n\n"
            await send({"type": "http.response.body", "body": event, "more_body": True})
            left.append(len(client.answers))
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": True})
        await send({"type": "http.response.body"})

    asyncio.run(EntropicMiddleware(app)(http_scope(), client.receive, client.send))
    assert left == [1, 2, 3, 4]
    start, *events, done, end = client.answers
    assert start == {"type": "http.response.start", "status": 200, "headers": SSE}
    shown = [orjson.loads(event["body"][6:])["choices"][0]["entropic"] for event in events]
    assert [(one["output_index"], one["entropy_nats"]) for one in shown] == [
        (0, [0.0]),
        (1, [1.0]),
        (2, [2.0]),
    ]
    assert (done["body"], done["more_body"]) == (b"data: [DONE]\n\n", True)
    assert (end["body"], end["more_body"]) == (b"", False)


def test_a_failing_application_has_sent_nothing() -> None:
    """A JSON answer that breaks off leaves the server free to say 500."""
    client = Client(part(b'{"return_entropy": true}', more=False))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        asyncio.run(EntropicMiddleware(app)(http_scope(), client.receive, client.send))
    assert client.answers == []


def test_other_messages_of_a_rewritten_answer_pass() -> None:
    """Extensions of ASGI, as trailers after a stream."""
    client = Client(part(b'{"return_entropy": true}', more=False))
    trailers = {"type": "http.response.trailers", "headers": []}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": SSE, "trailers": True})
        await send({"type": "http.response.body", "body": b": hello\n\n", "more_body": False})
        await send(trailers)

    asyncio.run(EntropicMiddleware(app)(http_scope(), client.receive, client.send))
    assert client.answers[1]["body"] == b": hello\n\n"
    assert client.answers[-1] == trailers


@pytest.mark.parametrize("own", [{"return_summary": True}, {"return_summary": False}, {}])
def test_a_summary_alone_is_worth_a_collector(own: dict[str, bool]) -> None:
    """On OpenAI routes a summary is shown to those who ask for it, and to nobody else."""
    client = Client(part(orjson.dumps({"custom_params": {"entropic": own}}), more=False))
    app = Listener(reads=1)
    asyncio.run(EntropicMiddleware(app)(http_scope(), client.receive, client.send))
    collector = app.scopes[0].get(SCOPE_KEY)
    asked = own.get("return_summary") is True
    assert (collector is not None) is asked
    if asked:
        assert collector.params == RequestParams(return_summary=True)
