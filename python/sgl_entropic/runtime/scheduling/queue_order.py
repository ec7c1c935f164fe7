"""The order of the waiting queue, as one of SGLang's schedule policies."""

from __future__ import annotations

from typing import Any

from sglang.srt.managers.schedule_policy import CacheAwarePolicy, SchedulePolicy

from sgl_entropic.runtime.scheduling.seat import Seat

# Matching a prompt against the tree costs tens of microseconds: beyond this many, the rest keep what was found before.
_MOST_MATCHED = 128


class EntropicSchedulePolicy(SchedulePolicy):
    """SGLang's policy object with another sort key; prefixes are matched as its cache-aware policies do."""

    seat: Seat

    def calc_priority(
        self, waiting_queue: list[Any], running_batch: Any = None, processed_tokens: int = 0
    ) -> None:
        """Sort ``waiting_queue`` in place."""
        deferred: set[str] = set()
        if not getattr(self.tree_cache, "disable", True):
            # Those that share a new prefix with an earlier one are named: it is computed once, and they then find it.
            deferred = self._compute_prefix_matches(waiting_queue[:_MOST_MATCHED], CacheAwarePolicy.LPM)
        self.seat.order(waiting_queue, deferred)
