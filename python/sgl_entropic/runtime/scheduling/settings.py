"""From the configuration and SGLang's arguments to a seat."""

from __future__ import annotations

import logging
from typing import Any

from sglang.srt.runtime_context import get_parallel, get_schedule

from sgl_entropic.config.scheduling import SchedulingConfig
from sgl_entropic.runtime.scheduling.seat import Seat
from sgl_entropic.scheduling import CostModel, EntropicPolicy, SchedulingSettings

logger = logging.getLogger(__name__)


def settings_of(config: SchedulingConfig) -> SchedulingSettings:
    """The policy's settings."""
    return SchedulingSettings(
        alpha=config.compute_weight,
        beta=config.memory_weight,
        gamma=config.latency_weight,
        flow_weight=config.flow_weight,
        ageing=config.ageing,
        client_weight=config.client_weight,
        max_wait_tokens=config.max_wait_tokens,
        max_overtaken_tokens=config.max_overtaken_tokens,
        hold=config.hold,
        pace=config.pace,
        max_held_steps=config.max_held_steps,
        tier_margin=config.tier_margin,
    )


def seat_of(scheduler: Any) -> Seat:
    """The seat of a scheduler that has its pools, its tree and its policy."""
    config: SchedulingConfig = scheduler.entropic_config.scheduling
    seat = Seat(
        policy=None,
        counters=scheduler.entropic_counters,
        allocator=scheduler.token_to_kv_pool_allocator,
        tree_cache=scheduler.tree_cache,
        most_running=scheduler.max_running_requests,
    )
    if scheduler.enable_priority_scheduling:
        seat.priority_sign = -1 if scheduler.schedule_low_priority_values_first else 1
    if not config.enabled or not scheduler.is_generation:
        return seat
    # Times differ from rank to rank, decisions must not: with several ranks in one group nothing is learnt from them.
    alone = get_parallel().tp_size == 1
    seat.policy = EntropicPolicy(settings_of(config), CostModel(frozen=not alone))
    seat.chooses_order = True
    # Ranks of data-parallel attention run their steps together, so a row that one leaves out saves nothing.
    seat.chooses_holds = config.hold and alone and not scheduler.require_mlp_sync
    seat.chooses_admission = config.admission
    # Among measured costs only; and a prefill that decodes along holds nobody up.
    one_by_one = scheduler.spec_algorithm.is_none() and not scheduler.is_mixed_chunk
    seat.chooses_pace = config.pace and alone and not scheduler.require_mlp_sync and one_by_one
    seat.chooses_retractions = config.retraction and get_schedule().retraction_policy == "length"
    logger.info(
        "Entropy-aware scheduling: order%s%s%s%s.",
        ", holds" * seat.chooses_holds,
        ", pace" * seat.chooses_pace,
        ", admission" * seat.chooses_admission,
        ", retraction" * seat.chooses_retractions,
    )
    return seat
