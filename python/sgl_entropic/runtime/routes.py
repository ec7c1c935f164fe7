"""Routes of our own, beside SGLang's and behind the same API key."""

from __future__ import annotations

from typing import Any

from sgl_entropic.runtime.scheduler import STATE_KEY

SCHEDULING = "/entropic/scheduling"


async def scheduling() -> dict[str, Any]:
    """What the scheduling policy decides on and why, one entry for each scheduler."""
    from sglang.srt.entrypoints.http_server import get_global_state  # noqa: PLC0415 -- loaded by now

    states = await get_global_state().tokenizer_manager.get_internal_state()
    return {"schedulers": [state[STATE_KEY]["scheduling"] for state in states]}


def add_routes() -> None:
    """Add them to SGLang's application; idempotent."""
    from sglang.srt.entrypoints.http_server import app  # noqa: PLC0415 -- loaded by now

    if not any(getattr(route, "path", None) == SCHEDULING for route in app.routes):
        app.add_api_route(SCHEDULING, scheduling, methods=["GET"])
