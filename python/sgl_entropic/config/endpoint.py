"""The form of the ZeroMQ endpoints that we publish on."""

from __future__ import annotations

import ipaddress
import re

_TCP = re.compile(r"tcp://(?P<host>\*|\[[^\[\]\s]+\]|[A-Za-z0-9_.-]+):(?P<port>[0-9]{1,5})", re.ASCII)
_MOST_PORT = 65_535
_MOST_IPC_BYTES = 107  # sockaddr_un of Linux holds 108, one of them the closing NUL


def checked_endpoint(endpoint: str) -> str:
    """Return ``endpoint`` if it is ``tcp://host:port`` or ``ipc://path``.

    Raises:
        ValueError: saying what is wrong with it.
    """
    if endpoint.startswith("ipc://"):
        path = endpoint.removeprefix("ipc://")
        if not path or path == "*" or "\0" in path:
            raise ValueError("no path after ipc://")
        if len(path.encode()) > _MOST_IPC_BYTES:
            raise ValueError(f"path of {len(path.encode())} bytes, at most {_MOST_IPC_BYTES} fit a socket")
        return endpoint
    match = _TCP.fullmatch(endpoint)
    if match is None:
        raise ValueError("neither tcp://host:port nor ipc://path")
    if not 1 <= int(match["port"]) <= _MOST_PORT:
        raise ValueError(f"port {match['port']} is not from 1 to {_MOST_PORT}")
    if match["host"].startswith("["):
        try:
            ipaddress.IPv6Address(match["host"].strip("[]").partition("%")[0])
        except ValueError:
            raise ValueError(f"{match['host']} is not an IPv6 address") from None
    return endpoint
