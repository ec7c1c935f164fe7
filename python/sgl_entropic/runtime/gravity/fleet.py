"""How much of the fleet of active requests is in strong gravity."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sgl_entropic.gravity import tiers
from sgl_entropic.gravity.settings import Tier

_tiers: Callable[[], list[Tier]] | None = None


def install(of_running: Callable[[], list[Tier]] | None) -> None:
    """Take the tiers of the process's active requests from ``of_running``; ``None`` where gravity is off."""
    global _tiers  # noqa: PLW0603 -- one scheduler a process; who asks holds no state of ours
    _tiers = of_running


def fleet_share() -> float:
    """Share of the active (running) requests in the strong tier, 0 to 1; 0 when gravity is off."""
    return 0.0 if _tiers is None else tiers.fleet_share(_tiers())


def running(scheduler: Any) -> list[Any]:
    """Requests of SGLang's ``scheduler`` that have left the queue and not finished."""
    held = getattr(scheduler, "_entropic_held", None)
    reqs = [*scheduler.running_batch.reqs, *(() if held is None else held.reqs)]
    last = scheduler.last_batch
    if last is not None and last.forward_mode.is_extend():
        # Prefilled, and not yet among those that decode.
        known = set(map(id, reqs))
        reqs += [req for req in last.reqs if id(req) not in known]
    return [req for req in reqs if not req.finished()]
