"""Routes that touch a model's parameters are refused while these are packed; everything else passes untouched."""

from __future__ import annotations

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from sgl_entropic.runtime.packed_weights_guard import ROUTES, PackedWeightsGuard


async def answer(request: Request) -> PlainTextResponse:
    return PlainTextResponse(f"route {request.url.path}")


APP = PackedWeightsGuard(
    Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])]),
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def ask(method: str, path: str) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(APP), base_url="http://server") as client:
        return await client.request(method, path, content=b"{}" if method == "POST" else None)


@pytest.mark.anyio
@pytest.mark.parametrize("path", sorted(ROUTES))
async def test_a_route_that_touches_parameters_is_refused(path: str) -> None:
    response = await ask("POST", path)
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert path in message
    assert "--entropic-cpu-fast-path off" in message


@pytest.mark.anyio
@pytest.mark.parametrize("path", ["/generate", "/v1/models", "/flush_cache", "/update_weights_from_disk/x"])
async def test_other_routes_pass(path: str) -> None:
    assert (await ask("GET", path)).text == f"route {path}"


def test_every_route_exists_in_sglang() -> None:
    """A route that SGLang renamed would slip past the guard."""
    from sglang.srt.entrypoints.http_server import app

    assert {getattr(route, "path", None) for route in app.routes} >= ROUTES
