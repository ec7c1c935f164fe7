"""Counts of what the extension did; each has one writer, so plain integers do."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class Counters:
    """Counters of one scheduler process, named as on ``/metrics``.

    Attributes:
        measured_tokens: generated tokens with a reading.
        invalid_rows: readings that were undefined (NaN in the logits, or no legal token).
        scored_prompt_tokens: prompt rows that passed through the LM head to be scored.
        inherited_prompt_tokens: prompt tokens whose readings came with a prefix-cache hit.
        boundary_recomputed_tokens: cached tokens computed again for the exact surprisal after them.
        unscored_prompt_tokens: prompt tokens that could not be scored; their readings are unknown.
        steered_tokens: tokens drawn at a temperature or min-p threshold that follows a target entropy.
        saturated_tokens: those among them whose target was out of reach.
        ordered_queues: waiting queues sorted by the scheduling policy.
        overtaken_requests: waiting requests that a later one was started before, summed over the starts.
        held_rows: rows left out of a decode step.
        tier_grouped_rows: rows that a plan runs because they are of the batch's gravity tier.
        paced_starts: passes over the queue that ended at the pace although a place was free.
        predicted_reserves: admissions that kept a predicted amount of memory free.
        retracted_requests: requests that gave up their KV, whoever chose them.
        recomputed_tokens: tokens computed again because of that.
        context_tokens: tokens of context that decode steps could have read, of requests that may leave some out.
        read_tokens: those among them that were read, the mean over layers, rounded.
        pruned_rows: rows of decode steps that left something out.
        scored_blocks: blocks that each KV head of each layer chose from by its query.
        choosing_bytes: read in order to choose, of what stands for the keys of these blocks.
        rescored_contexts: times that the blocks of a context were chosen anew.
        attention_spikes: times that an entropy spike brought a whole context back.
        prefix_hit_tokens: prompt tokens found cached, so not computed; those that the copies of one request of several answers
            find count too. Like the next six, counted where eviction is by return time.
        evict_calls: times that memory was short and something was evicted.
        evicted_tokens: cached tokens that were evicted.
        evicted_needed_tokens: those among them that a waiting request would have matched.
        evicted_predictable_tokens: those among them that went because they were predictable, and would have stayed
            without a look at surprisal.
        recomputed_evicted_tokens: tokens computed again that had been cached and evicted, as far as is remembered.
        lookahead_saved_tokens: tokens that stayed because a waiting request needed them.
        gravity_rows: hidden states that were compared with those before them.
        strong_tokens: tokens in strong gravity.
        medium_tokens: likewise in medium.
        weak_tokens: likewise in weak; all three stay 0 while gravity is off.
        trace_written: step records in the JSONL file.
        trace_dropped: step records that found the file's queue full or the file broken.
        publish_sent: step records handed to the live stream.
        publish_dropped: step records that found its queue full or a subscriber too slow.
    """

    measured_tokens: int = 0
    invalid_rows: int = 0
    scored_prompt_tokens: int = 0
    inherited_prompt_tokens: int = 0
    boundary_recomputed_tokens: int = 0
    unscored_prompt_tokens: int = 0
    steered_tokens: int = 0
    saturated_tokens: int = 0
    ordered_queues: int = 0
    overtaken_requests: int = 0
    held_rows: int = 0
    tier_grouped_rows: int = 0
    paced_starts: int = 0
    predicted_reserves: int = 0
    retracted_requests: int = 0
    recomputed_tokens: int = 0
    context_tokens: int = 0
    read_tokens: int = 0
    pruned_rows: int = 0
    scored_blocks: int = 0
    choosing_bytes: int = 0
    rescored_contexts: int = 0
    attention_spikes: int = 0
    prefix_hit_tokens: int = 0
    evict_calls: int = 0
    evicted_tokens: int = 0
    evicted_needed_tokens: int = 0
    evicted_predictable_tokens: int = 0
    recomputed_evicted_tokens: int = 0
    lookahead_saved_tokens: int = 0
    gravity_rows: int = 0
    strong_tokens: int = 0
    medium_tokens: int = 0
    weak_tokens: int = 0
    trace_written: int = 0
    trace_dropped: int = 0
    publish_sent: int = 0
    publish_dropped: int = 0

    def snapshot(self) -> dict[str, int]:
        """All counters by name."""
        return asdict(self)
