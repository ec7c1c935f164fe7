"""Which requests the KV memory has room for, by what running and new ones are expected to need at a time."""

from __future__ import annotations

from typing import Any

from sglang.srt.managers.schedule_policy import CLIP_MAX_NEW_TOKENS, PrefillAdder

from sgl_entropic.runtime.scheduling.seat import seat


class EntropicPrefillAdder(PrefillAdder):
    """SGLang's admission with the predicted peak in place of a share of every request's limit.

    SGLang keeps that share free for each running request and the whole limit for a new one, as if none ended before
    another.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As SGLang's, then its reserve for the running batch is replaced."""
        super().__init__(*args, **kwargs)
        self._entropic_seat = seat()
        self._entropic_reserve = 0
        if self._entropic_seat is None or not self._entropic_seat.chooses_admission:
            self._entropic_seat = None
            return
        running = [] if self.running_batch is None else self.running_batch.reqs
        stock = sum(self._get_running_request_total_token_offset(req) for req in running)
        self._entropic_reserve = self._entropic_seat.reserved_tokens(running, ())
        self.memory_budget.total_offset += self._entropic_reserve - stock
        self._entropic_seat.counters.predicted_reserves += 1

    def add_one_req(self, req: Any, has_chunked_req: bool, truncation_align_size: int | None) -> Any:
        """As SGLang's, with what ``req`` adds to the peak in place of its limit."""
        here = self._entropic_seat
        if here is None:
            return super().add_one_req(req, has_chunked_req, truncation_align_size)
        running = [] if self.running_batch is None else self.running_batch.reqs
        peak = here.reserved_tokens(running, [*self.can_run_list, req])
        sampling, limit = req.sampling_params, req.sampling_params.max_new_tokens
        most = min(max(limit - len(req.output_ids), 0), CLIP_MAX_NEW_TOKENS)
        adds = min(max(peak - self._entropic_reserve, min(most, 1)), most)
        admitted = len(self.can_run_list)
        # SGLang reads the limit here for nothing but memory; it is put back before anything else can see it.
        sampling.max_new_tokens = len(req.output_ids) + adds
        try:
            result = super().add_one_req(req, has_chunked_req, truncation_align_size)
        finally:
            sampling.max_new_tokens = limit
        if len(self.can_run_list) > admitted:
            self._entropic_reserve += adds
        return result
