"""What would fail only after the weights have loaded is tried before, so that the error is one sentence, at once."""

from __future__ import annotations

import socket

from sgl_entropic.config import EntropicConfig
from sgl_entropic.errors import ConfigError, UnsupportedError
from sgl_entropic.trace.counters import Counters
from sgl_entropic.trace.publisher import ZmqPublisher
from sgl_entropic.trace.sink import JsonlSink


def probe_outlets(config: EntropicConfig) -> None:
    """Open and close the outlets of the trace.

    Raises:
        ConfigError: one of them cannot be had, naming the key and the value.
    """
    if not config.telemetry.enabled:
        if config.trace.path is not None or config.trace.publish is not None:
            raise ConfigError(
                "trace.path and trace.publish have nothing to write with --entropic-telemetry off; accepted: telemetry"
                " on, or no outlet"
            )
        return
    if config.trace.path is not None:
        JsonlSink(config.trace.path, config.trace.queue_records, Counters()).close()
    if config.trace.publish is not None:
        ZmqPublisher(config.trace.publish, config.trace.queue_records, Counters()).close()


def probe_port(host: str | None, port: int) -> None:
    """Bind and release the HTTP port.

    Raises:
        UnsupportedError: somebody else has it, or may not be bound here.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host or "127.0.0.1", port, type=socket.SOCK_STREAM)[
            0
        ]
        with socket.socket(family, kind) as probe:
            # As the HTTP server does: a port that was just released is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UnsupportedError(
            f"--host {host} --port {port} cannot be listened on ({reason}); accepted: a free port"
        ) from None
