"""The main process before it serves: every scheduler must be ours, and the middleware is added once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.entrypoints import http_server
from starlette.middleware import Middleware

from sgl_entropic.errors import SeamError
from sgl_entropic.runtime.http_app import add_middleware, before_http_server
from sgl_entropic.runtime.http_middleware import EntropicMiddleware
from sgl_entropic.runtime.scheduler import STATE_KEY

OURS = {STATE_KEY: {"version": "1"}, "max_total_num_tokens": 1}
PLAIN = {"max_total_num_tokens": 1}


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An application with a middleware of SGLang's."""
    routes: list[Any] = []

    def add_api_route(path: str, endpoint: Any, methods: list[str]) -> None:
        routes.append(SimpleNamespace(path=path, endpoint=endpoint, methods=methods))

    made = SimpleNamespace(user_middleware=[Middleware(object)], routes=routes, add_api_route=add_api_route)  # type: ignore[arg-type]
    monkeypatch.setattr(http_server, "app", made)
    return made


def classes(app: Any) -> list[Any]:
    return [entry.cls for entry in app.user_middleware]


def test_ours_is_innermost_and_added_once(app: Any) -> None:
    add_middleware()
    add_middleware()
    assert classes(app) == [object, EntropicMiddleware]


@pytest.mark.parametrize("by_name", [True, False])
def test_schedulers_of_ours_are_served(app: Any, *, by_name: bool) -> None:
    if by_name:
        before_http_server("args", "manager", "templates", "ports", scheduler_infos=[OURS, OURS])
    else:
        before_http_server("args", "manager", "templates", "ports", [OURS, OURS], "more")
    assert classes(app) == [object, EntropicMiddleware]
    assert [(route.path, route.methods) for route in app.routes] == [
        ("/entropic/scheduling", ["GET"]),
        ("/entropic/eviction", ["GET"]),
    ]


def test_a_plain_scheduler_is_named_and_not_served(app: Any) -> None:
    with pytest.raises(SeamError, match=r"\[1, 2\]"):
        before_http_server("args", "manager", "templates", "ports", [OURS, PLAIN, PLAIN])
    assert classes(app) == [object]
    assert app.routes == []
