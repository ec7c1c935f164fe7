"""The order of the waiting queue, as one of SGLang's schedule policies."""

from __future__ import annotations

import math
from typing import Any

import torch
from sglang.srt.managers.schedule_policy import CacheAwarePolicy, SchedulePolicy

from sgl_entropic.runtime.scheduling.notes import notes_of
from sgl_entropic.runtime.scheduling.seat import Seat
from sgl_entropic.runtime.telemetry import installed

# Matching a prompt against the tree costs tens of microseconds: beyond this many, the rest keep what was found before.
_MOST_MATCHED = 128


class EntropicSchedulePolicy(SchedulePolicy):
    """SGLang's policy object with another sort key; prefixes are matched as its cache-aware policies do."""

    seat: Seat

    def calc_priority(
        self, waiting_queue: list[Any], running_batch: Any = None, processed_tokens: int = 0
    ) -> None:
        """Sort ``waiting_queue`` in place, and decide how many of it may start."""
        running = [] if running_batch is None else running_batch.reqs
        if self.seat.starts_nobody(len(running)):
            self.seat.foresees_memory = False
            return
        deferred: set[str] = set()
        if not getattr(self.tree_cache, "disable", True):
            # Those that share a new prefix with an earlier one are named: it is computed once, and they then find it.
            deferred = self._compute_prefix_matches(waiting_queue[:_MOST_MATCHED], CacheAwarePolicy.LPM)
            read_prefixes(waiting_queue[:_MOST_MATCHED], self.tree_cache)
        self.seat.order(waiting_queue, deferred)
        self.seat.pace(running, waiting_queue)
        self.seat.look_for_memory(running, waiting_queue)


def read_prefixes(reqs: list[Any], tree_cache: Any) -> None:
    """Note the mean surprisal of each request's matched prefix, once for each length that is matched.

    Nothing where the readings lie on a GPU: the queue would wait for the device.
    """
    telemetry = installed()
    store = None if telemetry is None else telemetry.store
    if store is None or store.surprisal_nats.device.type != "cpu":
        return
    for req in reqs:
        notes = notes_of(req)
        # The prefix of a streaming session lies in its own row, not in the tree.
        lent = req.session is not None and req.session.streaming
        if notes is None or lent or req.prefix_len in (0, notes.prefix_tokens):
            continue
        slots: torch.Tensor = tree_cache.path_device_indices(req.last_node)[: req.prefix_len]
        mean = store.surprisal_nats[slots.long()].nanmean().item()
        notes.prefix_tokens = req.prefix_len
        notes.prefix_surprisal_nats = None if math.isnan(mean) else mean
