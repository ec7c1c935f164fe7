"""From the configuration and SGLang's arguments to a tree core that evicts by it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Any

from sglang.srt.mem_cache.unified_cache.tree_core_registry import (
    get_tree_core_factory,
    register_tree_core_backend,
)
from sglang.srt.runtime_context import get_parallel

from sgl_entropic.config.model import EvictionConfig
from sgl_entropic.errors import SeamError, UnsupportedError
from sgl_entropic.eviction import EvictionPolicy, EvictionSettings
from sgl_entropic.runtime import telemetry
from sgl_entropic.runtime.eviction.book import Book
from sgl_entropic.runtime.eviction.evictor import Evictor
from sgl_entropic.runtime.eviction.tree_core import EntropicTreeCore
from sgl_entropic.runtime.gravity import fleet_share
from sgl_entropic.runtime.scheduling.seat import seat
from sgl_entropic.runtime.seam_table_eviction import EVICTION_SEAMS
from sgl_entropic.runtime.seams import problems_of
from sgl_entropic.trace.counters import Counters

logger = logging.getLogger(__name__)

BACKEND = "entropic"
VARIABLE = "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND"
# What stands for a second where ranks must decide alike: about what a busy server does in one.
_TOKENS_A_SECOND = 1000.0
_builders: list[Callable[[Any, dict[Any, Any]], EntropicTreeCore]] = []


def install(config: EvictionConfig, counters: Counters) -> None:
    """Make the tree that this process is about to build ours.

    Raises:
        SeamError: the installed SGLang is not the one that this is made for.
    """
    problems = problems_of(EVICTION_SEAMS)
    if problems:
        raise SeamError("--entropic-eviction on does not fit the installed SGLang: " + "; ".join(problems))

    def build(params: Any, components: dict[Any, Any]) -> EntropicTreeCore:
        return EntropicTreeCore(params, components, _book(params, config, counters))

    # The registry takes a name once; the trees of a later server of this process are made with its own settings.
    _builders[:] = [build]
    if get_tree_core_factory(BACKEND) is None:
        register_tree_core_backend(BACKEND, _built)
    os.environ[VARIABLE] = BACKEND


def _built(params: Any, components: dict[Any, Any]) -> EntropicTreeCore:
    return _builders[0](params, components)


def _book(params: Any, config: EvictionConfig, counters: Counters) -> Book:
    settings = EvictionSettings(
        surprisal_weight=config.surprisal_weight,
        work_weight=config.work_weight,
        work_per_context=config.work_per_context,
    )
    alone = get_parallel().tp_size == 1
    allocator = params.token_to_kv_pool_allocator
    ghost_tokens = int(config.ghost_ratio * (0 if allocator is None else allocator.size))
    clock: Callable[[], float] = time.monotonic
    more: dict[str, Callable[[], Any]] = {"gravity": fleet_share, "readings": _readings}
    if not alone:
        # Clocks and the last digits of readings differ from rank to rank; what was processed does not.
        clock, more = _token_clock, {}
        logger.info("Eviction: ages are counted in tokens processed, and surprisals are left out.")
    return Book(EvictionPolicy(settings), clock, counters, ghost_tokens, params.page_size, **more)


def _readings() -> Any:
    here = telemetry.installed()
    return None if here is None or here.store is None else here.store.surprisal_nats


def _token_clock() -> float:
    here = seat()
    return 0.0 if here is None else here.token_clock / _TOKENS_A_SECOND


def evictor_of(scheduler: Any) -> Evictor | None:
    """The evictor of a scheduler that has its tree; ``None`` where SGLang evicts.

    Raises:
        UnsupportedError: it was asked for, and the model has another cache.
    """
    config: EvictionConfig = scheduler.entropic_config.eviction
    if not config.enabled:
        return None
    core = getattr(scheduler.tree_cache, "tree_core", None)
    if not isinstance(core, EntropicTreeCore) or scheduler.tree_cache.disable:
        raise UnsupportedError(
            f"--entropic-eviction on is not available with this model: its prefix cache is {type(scheduler.tree_cache).__name__} "
            "or switched off; use --entropic-eviction off"
        )
    logger.info(
        "Eviction by return time: %d tokens of evicted prefixes are remembered.",
        core.book.ghosts.most_tokens,
    )
    return Evictor.of(core, lambda: scheduler.waiting_queue, config.lookahead_requests)
