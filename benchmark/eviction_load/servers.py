"""The arms: one server at a time, and proof that it has the tree it should have."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from sgl_entropic.testing.servers import Server, entropic_server

LRU_RUST, LRU_PYTHON, ENTROPIC, GRAVITY = "lru_rust", "lru_python", "entropic", "entropic_gravity"
BACKEND = "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND"
COMMON = ("--incremental-streaming-output",)
_CORE = re.compile(r"Init Unified Radix Cache\..*Tree Core: (\w+)")
EVICTED = "evict"
"""In the names of our counters of eviction."""
_FLUSH_S = 60.0


class ArmError(RuntimeError):
    """A server is not what its flags say."""


@dataclass(frozen=True, slots=True)
class Arm:
    """How an arm is started.

    Attributes:
        flags: of its own.
        core: class of SGLang's tree core that it has to have; empty where it has to have one of ours.
        env: of its own; an empty value removes a variable.
    """

    flags: tuple[str, ...] = ()
    core: str = ""
    env: Mapping[str, str] = field(default_factory=lambda: {BACKEND: ""})


ARMS: Mapping[str, Arm] = {
    LRU_RUST: Arm(core="RustUnifiedTreeCore"),
    LRU_PYTHON: Arm(core="UnifiedTreeCore", env={BACKEND: "python"}),
    ENTROPIC: Arm(("--entropic-eviction", "on")),
    GRAVITY: Arm(("--entropic-eviction", "on", "--entropic-gravity", "on")),
}
OURS = (ENTROPIC, GRAVITY)
_STOCK_CORES = tuple(arm.core for arm in ARMS.values() if arm.core)


def server_of(name: str, log: Path, *flags: str) -> Server:
    """A server of the arm, not yet started."""
    arm = ARMS[name]
    return entropic_server(log, *COMMON, *flags, *arm.flags, env=arm.env)


def require_core(name: str, log: str) -> str:
    """The tree core that a started server's log names.

    Raises:
        ArmError: it is not the arm's.
    """
    found = _CORE.findall(log)
    right = ARMS[name].core
    if not found or (found[-1] != right if right else found[-1] in _STOCK_CORES):
        raise ArmError(f"{name}: the tree core is {found[-1:]}, {right or 'one of our own'} was to be")
    return str(found[-1])


def flush(server: Server) -> None:
    """Empty the cache of an idle server.

    Raises:
        ArmError: it would not, within a minute.
    """
    deadline = time.monotonic() + _FLUSH_S
    while True:
        answer = httpx.post(server.url + "/flush_cache", timeout=_FLUSH_S)
        if answer.status_code == 200:
            return
        if time.monotonic() > deadline:
            raise ArmError(f"flush_cache: status {answer.status_code}: {answer.text[:200]}")
        time.sleep(0.2)


def counters(server: Server) -> dict[str, int]:
    """All counters of the extension, summed over schedulers."""
    states = httpx.get(server.url + "/server_info", timeout=600).raise_for_status().json()["internal_states"]
    total: dict[str, int] = {}
    for state in states:
        for name, count in state["sgl_entropic"]["counters"].items():
            total[name] = total.get(name, 0) + int(count)
    return total


def require_acted(name: str, counts: Mapping[str, int]) -> None:
    """Make sure that our policy evicted in its arms and nowhere else.

    Raises:
        ArmError: it is not so.
    """
    acted = sum(count for counter, count in counts.items() if EVICTED in counter)
    if (acted > 0) != (name in OURS):
        raise ArmError(f"{name}: the counters of eviction are not what the flags say: {dict(counts)}")
