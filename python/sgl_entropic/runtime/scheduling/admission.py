"""Which requests are started: whom the KV memory has room for, by what is expected of it, and whom the pace lets in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sglang.srt.managers.schedule_policy import CLIP_MAX_NEW_TOKENS, AddReqResult, PrefillAdder

from sgl_entropic.runtime.scheduling.seat import Seat, seat


class EntropicPrefillAdder(PrefillAdder):
    """SGLang's admission with the predicted peak in place of a share of every request's limit, at the policy's pace.

    SGLang keeps that share free for each running request and the whole limit for a new one, as if none ended before
    another.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As SGLang's, which asks for what each running request is to keep free."""
        here = seat()
        self._entropic_pace: Seat | None = here
        self._entropic_seat: Seat | None = here if here is not None and here.foresees_memory else None
        running_batch = kwargs["running_batch"] if "running_batch" in kwargs else args[3]
        self._entropic_shares: dict[str, int] = {}
        if self._entropic_seat is not None and running_batch is not None:
            self._entropic_shares = shares(self._entropic_seat, running_batch.reqs)
            self._entropic_seat.counters.predicted_reserves += 1
        super().__init__(*args, **kwargs)

    def budget_state(self) -> AddReqResult:
        """As SGLang's, and spent where as many run as the pace allows."""
        here, batch = self._entropic_pace, self.running_batch
        if here is not None:
            rows = len(self.can_run_list) + (0 if batch is None else len(batch.reqs))
            if not here.may_start(rows):
                return AddReqResult.OTHER
        return super().budget_state()

    def _get_running_request_total_token_offset(self, req: Any) -> Any:
        # Also what SGLang takes back when it preempts a request: the same number both times.
        share = self._entropic_shares.get(req.rid)
        return super()._get_running_request_total_token_offset(req) if share is None else share

    def add_one_req(self, req: Any, has_chunked_req: bool, truncation_align_size: int | None) -> Any:
        """As SGLang's, with what ``req`` adds to the peak in place of its limit."""
        here = self._entropic_seat
        if here is None:
            return super().add_one_req(req, has_chunked_req, truncation_align_size)
        gone = {id(other) for other in self.preempt_list}
        batch = self.running_batch
        running = [] if batch is None else [other for other in batch.reqs if id(other) not in gone]
        adds = here.reserved_tokens(running, [*self.can_run_list, req])
        adds -= here.reserved_tokens(running, self.can_run_list)
        sampling, limit = req.sampling_params, req.sampling_params.max_new_tokens
        most = min(max(limit - len(req.output_ids), 0), CLIP_MAX_NEW_TOKENS)
        # SGLang reads the limit here for nothing but memory; it is put back before anything else can see it.
        sampling.max_new_tokens = len(req.output_ids) + min(max(adds, min(most, 1)), most)
        try:
            return super().add_one_req(req, has_chunked_req, truncation_align_size)
        finally:
            sampling.max_new_tokens = limit


def shares(here: Seat, running: Sequence[Any]) -> dict[str, int]:
    """What each running request keeps free, by request id: parts of their common peak, as their limits are."""
    limits = {req.rid: max(0, req.sampling_params.max_new_tokens - len(req.output_ids)) for req in running}
    peak, whole = here.reserved_tokens(running, ()), sum(limits.values())
    # Rounded up: what is kept free is never less than the peak.
    return {rid: -(-peak * limit // whole) if whole else 0 for rid, limit in limits.items()}
