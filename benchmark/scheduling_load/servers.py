"""The arms: servers that live at the same time, of which one at a time is awake."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import httpx

from sgl_entropic.testing.servers import Server, entropic_server

FCFS, LPM, HRRN, ENTROPIC = "fcfs", "lpm", "hrrn", "entropic"
ARMS: Mapping[str, tuple[str, ...]] = {
    **{name: ("--schedule-policy", name) for name in (FCFS, LPM, HRRN)},
    ENTROPIC: ("--entropic-scheduling", "on"),
}
# Pieces of a stream hold what is new only, so that a long answer costs no more for each token than a short one.
COMMON = ("--incremental-streaming-output",)
ACTED = "ordered_queues"
COUNTED = (
    ACTED,
    "overtaken_requests",
    "held_rows",
    "paced_starts",
    "predicted_reserves",
    "retracted_requests",
    "recomputed_tokens",
)


class ArmError(RuntimeError):
    """A server did not do what its flags say."""


@contextlib.contextmanager
def awake(server: Server) -> Iterator[Server]:
    """Let a stopped server run for a while."""
    _signal(server, signal.SIGCONT)
    try:
        yield server
    finally:
        _signal(server, signal.SIGSTOP)


@contextlib.contextmanager
def started(
    names: Sequence[str], folder: Path, flags: Sequence[str], entropic: Sequence[str]
) -> Iterator[dict[str, Server]]:
    """Servers of the arms ``names``, all stopped; ``entropic`` are further flags of that arm, ``flags`` of every one."""
    folder.mkdir(parents=True, exist_ok=True)
    servers = {}
    for name in names:
        own = (*ARMS[name], *(entropic if name == ENTROPIC else ()))
        servers[name] = entropic_server(folder / f"{name}.log", *COMMON, *flags, *own)
    try:
        for server in servers.values():
            server.start()
            _signal(server, signal.SIGSTOP)
        yield servers
    finally:
        for server in servers.values():
            if server.process is not None:
                _signal(server, signal.SIGCONT)
                server.stop()


def _signal(server: Server, number: int) -> None:
    assert server.process is not None
    # One that has ended by itself is found by the next request.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.process.pid, number)


def counters(server: Server) -> dict[str, int]:
    """The counters of scheduling of a server that is awake."""
    states = httpx.get(server.url + "/server_info", timeout=600).raise_for_status().json()["internal_states"]
    counts = [state["sgl_entropic"]["counters"] for state in states]
    return {name: sum(int(one.get(name, 0)) for one in counts) for name in COUNTED}


def require_acted(totals: Mapping[str, Mapping[str, int]]) -> None:
    """Make sure that our policy ordered queues in its arm and nowhere else.

    Raises:
        ArmError: it is not so.
    """
    wrong = [name for name, counts in totals.items() if (counts[ACTED] > 0) != (name == ENTROPIC)]
    if wrong:
        raise ArmError(f"{', '.join(wrong)}: {ACTED} is not what the flags say: {dict(totals)}")
