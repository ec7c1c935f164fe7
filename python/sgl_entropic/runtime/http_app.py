"""Our part of the HTTP application, in the main process."""

from __future__ import annotations

from typing import Any

from sgl_entropic.errors import SeamError
from sgl_entropic.runtime.http_middleware import EntropicMiddleware
from sgl_entropic.runtime.packed_weights_guard import PackedWeightsGuard
from sgl_entropic.runtime.routes import add_routes
from sgl_entropic.runtime.scheduler import STATE_KEY
from sgl_entropic.runtime.where_fast import compiled_kernels_asked_for


def before_http_server(*args: Any, **kwargs: Any) -> None:
    """Before ``http_server._setup_and_run_http_server``: check the schedulers' handshake, add middleware and routes.

    Raises:
        SeamError: a scheduler process came up without the extension; serving would measure nothing.
    """
    infos = kwargs["scheduler_infos"] if "scheduler_infos" in kwargs else args[4]
    silent = [rank for rank, info in enumerate(infos) if STATE_KEY not in info]
    if silent:
        msg = f"scheduler process(es) {silent} came up as plain SGLang; see their log for the plugin's error"
        raise SeamError(msg)
    add_middleware()
    add_routes()


def add_middleware() -> None:
    """Put our middleware innermost, behind authentication and decompression; idempotent."""
    from sglang.srt.entrypoints.http_server import app  # noqa: PLC0415 -- loaded by now
    from starlette.middleware import Middleware  # noqa: PLC0415

    wanted: list[Any] = [EntropicMiddleware]
    if compiled_kernels_asked_for():
        wanted.append(PackedWeightsGuard)
    for cls in wanted:
        if not any(entry.cls is cls for entry in app.user_middleware):
            app.user_middleware.append(Middleware(cls))
