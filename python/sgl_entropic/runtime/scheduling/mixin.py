"""Where SGLang's scheduler asks: the overrides that carry a :class:`.seat.Seat`."""

from __future__ import annotations

import time
from typing import Any

from sglang.srt.managers.schedule_policy import PrefillAdder
from sglang.srt.managers.scheduler import Scheduler

from sgl_entropic.config import EntropicConfig
from sgl_entropic.runtime.eviction.evictor import Evictor
from sgl_entropic.runtime.eviction.settings import evictor_of
from sgl_entropic.runtime.scheduling.admission import EntropicPrefillAdder
from sgl_entropic.runtime.scheduling.hold import can_hold, split
from sgl_entropic.runtime.scheduling.queue_order import EntropicSchedulePolicy
from sgl_entropic.runtime.scheduling.seat import Seat, install
from sgl_entropic.runtime.scheduling.settings import seat_of
from sgl_entropic.trace.counters import Counters


class ScheduledByEntropy(Scheduler):
    """SGLang's scheduler with a seat for the policy; without one it only counts."""

    entropic_config: EntropicConfig
    entropic_counters: Counters
    entropic_seat: Seat | None = None
    entropic_evictor: Evictor | None = None
    _entropic_held: Any = None
    running_batch: Any

    def init_schedule_policy(self) -> None:
        """As SGLang's; the queue's order is then ours where that was asked for."""
        super().init_schedule_policy()
        self.entropic_seat = seat_of(self)
        install(self.entropic_seat)
        self.entropic_evictor = evictor_of(self)
        if self.entropic_seat.chooses_order:
            self.policy = EntropicSchedulePolicy(
                self.schedule_policy,
                self.tree_cache,
                self.enable_hierarchical_cache,
                self.enable_priority_scheduling,
                self.schedule_low_priority_values_first,
            )
            self.policy.seat = self.entropic_seat

    def get_prefill_adder_class(self) -> type[PrefillAdder]:
        """Ours where memory is predicted or starts are paced."""
        here = self.entropic_seat
        return (
            EntropicPrefillAdder
            if here is not None and (here.chooses_admission or here.chooses_pace)
            else super().get_prefill_adder_class()
        )

    def _add_request_to_queue(self, req: Any, is_retracted: bool = False) -> None:
        super()._add_request_to_queue(req, is_retracted)
        if self.entropic_seat is not None:
            self.entropic_seat.queued(req, retracted=is_retracted)

    def _release_aborted_request(self, req: Any) -> None:
        super()._release_aborted_request(req)
        if self.entropic_seat is not None:
            self.entropic_seat.withdrawn(req)

    def get_new_batch_prefill(self, running_batch: Any) -> Any:
        """As SGLang's, noting who was admitted before whom."""
        if self.entropic_evictor is not None:
            self.entropic_evictor.lookahead.pass_began()
        plan = super().get_new_batch_prefill(running_batch)
        if plan.batch_to_run is not None:
            if self.entropic_evictor is not None:
                self.entropic_evictor.started(plan.batch_to_run.reqs)
            if self.entropic_seat is not None:
                self.entropic_seat.started(plan.batch_to_run.reqs, self.waiting_queue)
        return plan

    def update_running_batch(self, batch: Any) -> Any:
        """As SGLang's, for the part of the batch that decodes in this step."""
        here = self.entropic_seat
        if (
            here is not None
            and here.chooses_holds
            and self._entropic_held is None
            and not here.holds_nobody()
            and can_hold(batch)
        ):
            rows = here.held(batch.reqs, len(self.waiting_queue))
            if rows:
                self._entropic_held = split(batch, rows)
        return super().update_running_batch(batch)

    def ingest_requests(self, stop_at_pause: bool = False) -> Any:
        """As SGLang's, with all running requests in one batch again: messages may be about any of them."""
        self._join_held()
        return super().ingest_requests(stop_at_pause)

    def _join_held(self) -> None:
        held, self._entropic_held = self._entropic_held, None
        if held is None:
            return
        if self.running_batch.is_empty():
            self.running_batch = held
        else:
            self.running_batch.merge_batch(held)

    def run_batch(self, batch: Any, pp_proxy_tensors: Any = None) -> Any:
        """As SGLang's; the time between two launches is what a step takes, on every device."""
        if self.entropic_seat is not None:
            if self._sched_idled:
                self.entropic_seat.woke([*batch.reqs, *self.waiting_queue, *self.running_batch.reqs])
            self.entropic_seat.launched(batch, time.perf_counter(), after_idle=self._sched_idled)
        return super().run_batch(batch, pp_proxy_tensors)

    def process_batch_result(self, batch: Any, result: Any) -> None:
        """As SGLang's, then look who has ended."""
        super().process_batch_result(batch, result)
        if self.entropic_evictor is not None:
            self.entropic_evictor.ended(batch.reqs)
        if self.entropic_seat is not None:
            self.entropic_seat.ended(batch.reqs)

    def entropic_scheduling_state(self) -> dict[str, Any]:
        """Who waits and runs, and why in this order."""
        here = self.entropic_seat
        if here is None:
            return {"enabled": False}
        running = list(self.running_batch.reqs)
        if self.last_batch is not None and self.last_batch.forward_mode.is_extend():
            # Prefilled, and not yet among those that decode.
            known = {req.rid for req in running}
            running += [req for req in self.last_batch.reqs if req.rid not in known and not req.finished()]
        return here.state(self.waiting_queue, running)
