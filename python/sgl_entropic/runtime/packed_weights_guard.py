"""ASGI middleware of the CPU fast path: routes that read, write or release a model's parameters are refused.

The numbers live in the packed form only (:mod:`.cpu.weights`), so SGLang would report success and change nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import orjson

ROUTES = frozenset(
    {
        "/update_weights_from_disk",
        "/update_weights_from_tensor",
        "/update_weights_from_distributed",
        "/update_weights_from_ipc",
        "/init_weights_update_group",
        "/destroy_weights_update_group",
        "/release_memory_occupation",
        "/resume_memory_occupation",
        "/init_weights_send_group_for_remote_instance",
        "/send_weights_to_remote_instance",
        "/begin_weight_update",
        "/end_weight_update",
        "/get_weights_by_name",
        "/weights_checker",
    }
)


class PackedWeightsGuard:
    """See the module's text."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        """Wrap ``app``."""
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Handle one ASGI event stream."""
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        if scope["type"] != "http" or path not in ROUTES:
            await self._app(scope, receive, send)
            return
        message = f"{path} is not available with packed weights; accepted: a server started with --entropic-cpu-fast-path off"
        body = orjson.dumps({"error": {"message": message, "type": "BadRequestError", "code": 400}})
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 400, "headers": headers})
        await send({"type": "http.response.body", "body": body})
