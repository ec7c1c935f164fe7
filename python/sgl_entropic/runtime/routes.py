"""Routes of our own, beside SGLang's and behind the same API key."""

from __future__ import annotations

from typing import Any

from sgl_entropic.runtime.scheduler import STATE_KEY

SCHEDULING = "/entropic/scheduling"
EVICTION = "/entropic/eviction"


async def scheduling() -> dict[str, Any]:
    """What the scheduling policy decides on and why, one entry for each scheduler."""
    return await _states("scheduling")


async def eviction() -> dict[str, Any]:
    """What is evicted next and why, one entry for each scheduler."""
    return await _states("eviction")


async def _states(name: str) -> dict[str, Any]:
    from sglang.srt.entrypoints.http_server import get_global_state  # noqa: PLC0415 -- loaded by now

    states = await get_global_state().tokenizer_manager.get_internal_state()
    return {"schedulers": [state[STATE_KEY][name] for state in states]}


def add_routes() -> None:
    """Add them to SGLang's application; idempotent."""
    from sglang.srt.entrypoints.http_server import app  # noqa: PLC0415 -- loaded by now

    there = {getattr(route, "path", None) for route in app.routes}
    for path, answer in ((SCHEDULING, scheduling), (EVICTION, eviction)):
        if path not in there:
            app.add_api_route(path, answer, methods=["GET"])
