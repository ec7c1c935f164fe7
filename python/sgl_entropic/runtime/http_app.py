"""Our part of the HTTP application, in the main process."""

from __future__ import annotations

from typing import Any

from sgl_entropic.errors import SeamError
from sgl_entropic.runtime.active_config import active_config
from sgl_entropic.runtime.http_middleware import EntropicMiddleware
from sgl_entropic.runtime.packed_weights_guard import PackedWeightsGuard
from sgl_entropic.runtime.routes import add_routes
from sgl_entropic.runtime.scheduler import STATE_KEY


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
    if weights_are_packed():
        wanted.append(PackedWeightsGuard)
    for cls in wanted:
        if not any(entry.cls is cls for entry in app.user_middleware):
            app.user_middleware.append(Middleware(cls))


def weights_are_packed() -> bool:
    """Whether the schedulers run the CPU fast path."""
    from sglang.srt.platforms import current_platform  # noqa: PLC0415 -- resolves the platform on first use

    return type(current_platform).__name__ == "PortableCpuPlatform" and active_config().cpu.fast_path
