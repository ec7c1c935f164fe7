"""Memory kept free for the running requests when new ones are admitted."""

from __future__ import annotations

from typing import Any

from sglang.srt.managers.schedule_policy import PrefillAdder

from sgl_entropic.runtime.scheduling.seat import seat


class EntropicPrefillAdder(PrefillAdder):
    """SGLang's admission with a prediction in place of a share of every request's limit."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As SGLang's, then its reserve for the running batch is replaced."""
        super().__init__(*args, **kwargs)
        here = seat()
        if here is None or not here.chooses_admission or self.running_batch is None:
            return
        running = self.running_batch.reqs
        stock = sum(self._get_running_request_total_token_offset(req) for req in running)
        ours = here.reserved_tokens(running)
        self.memory_budget.total_offset += ours - stock
        here.counters.predicted_reserves += 1
