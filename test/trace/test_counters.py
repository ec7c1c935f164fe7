"""Counter names are part of the interface: dashboards and tests read them."""

from __future__ import annotations

from sgl_entropic.trace.counters import Counters


def test_names_and_zeros() -> None:
    """All start at zero, under the documented names."""
    assert Counters().snapshot() == dict.fromkeys(
        (
            "measured_tokens",
            "invalid_rows",
            "scored_prompt_tokens",
            "inherited_prompt_tokens",
            "boundary_recomputed_tokens",
            "unscored_prompt_tokens",
            "steered_tokens",
            "saturated_tokens",
            "ordered_queues",
            "overtaken_requests",
            "held_rows",
            "tier_grouped_rows",
            "paced_starts",
            "predicted_reserves",
            "retracted_requests",
            "recomputed_tokens",
            "context_tokens",
            "read_tokens",
            "pruned_rows",
            "scored_blocks",
            "choosing_bytes",
            "rescored_contexts",
            "attention_spikes",
            "gravity_rows",
            "strong_tokens",
            "medium_tokens",
            "weak_tokens",
            "prefix_hit_tokens",
            "evict_calls",
            "evicted_tokens",
            "evicted_needed_tokens",
            "evicted_predictable_tokens",
            "recomputed_evicted_tokens",
            "lookahead_saved_tokens",
            "trace_written",
            "trace_dropped",
            "publish_sent",
            "publish_dropped",
        ),
        0,
    )


def test_a_snapshot_does_not_move() -> None:
    """It is a copy."""
    counters = Counters()
    snapshot = counters.snapshot()
    counters.measured_tokens += 1
    assert snapshot["measured_tokens"] == 0
    assert counters.snapshot()["measured_tokens"] == 1
