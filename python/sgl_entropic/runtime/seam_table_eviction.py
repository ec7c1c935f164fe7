"""What eviction touches in SGLang; checked where it is installed, in a scheduler process that was asked for it.

A table of its own, because nothing of it is registered elsewhere, and because its registry is another one than that of the
rows of :mod:`.seam_table`.
"""

from __future__ import annotations

from sgl_entropic.runtime.seam import Mechanism, Seam

_HERE = "sgl_entropic.runtime.eviction."
_CACHE = "sglang.srt.mem_cache."
_CORE = _CACHE + "unified_cache.unified_tree_core.UnifiedTreeCore"
_PROCESSES = ("scheduler",)
_OBSERVER = "the tree tells an observer of new, split and evicted nodes"
_VECTORS = "eviction strategies rank leaves in one call"
_READS = "never: it only reads"

EVICTION_SEAMS: tuple[Seam, ...] = (
    Seam(
        _CACHE + "unified_cache.tree_core_registry.register_tree_core_backend",
        ("name", "factory"),
        Mechanism.REGISTRY,
        _HERE + "settings.install",
        "our tree core, where it was asked for",
        _PROCESSES,
        "never: it is an official door",
    ),
    Seam(
        _CORE,
        ("self", "params", "components"),
        Mechanism.OVERRIDE,
        _HERE + "tree_core.EntropicTreeCore",
        "facts on nodes",
        _PROCESSES,
        _OBSERVER,
    ),
    Seam(
        _CORE + ".reset",
        ("self",),
        Mechanism.OVERRIDE,
        _HERE + "tree_core.EntropicTreeCore.reset",
        "the set of evictable nodes tells a table who is in it",
        _PROCESSES,
        _OBSERVER,
    ),
    Seam(
        _CORE + ".begin_insert",
        ("self", "params"),
        Mechanism.OVERRIDE,
        _HERE + "tree_core.EntropicTreeCore.begin_insert",
        "which nodes are new",
        _PROCESSES,
        _OBSERVER,
    ),
    Seam(
        _CORE + ".resume_insert",
        ("self",),
        Mechanism.OVERRIDE,
        _HERE + "tree_core.EntropicTreeCore.resume_insert",
        "which nodes are new",
        _PROCESSES,
        _OBSERVER,
    ),
    Seam(
        _CORE + "._split_node",
        ("self", "key", "child", "split_len"),
        Mechanism.OVERRIDE,
        _HERE + "tree_core.EntropicTreeCore._split_node",
        "both parts of a node keep its facts",
        _PROCESSES,
        _OBSERVER,
    ),
    Seam(
        _CORE + ".evict_device_start",
        ("self", "component_type", "request_cnt"),
        Mechanism.OVERRIDE,
        _HERE + "tree_core.EntropicTreeCore.evict_device_start",
        "all leaves are ranked at once",
        _PROCESSES,
        _VECTORS,
    ),
    Seam(
        _CORE + ".evict_device_next_node",
        ("self", "component_type", "tracker"),
        Mechanism.OVERRIDE,
        _HERE + "tree_core.EntropicTreeCore.evict_device_next_node",
        "who goes next",
        _PROCESSES,
        _VECTORS,
    ),
    Seam(
        _CORE + ".evict_device_leaf",
        ("self", "node_id", "is_write_back"),
        Mechanism.OVERRIDE,
        _HERE + "tree_core.EntropicTreeCore.evict_device_leaf",
        "what is known of a node outlives it",
        _PROCESSES,
        _OBSERVER,
    ),
    Seam(
        _CORE + ".evict_device_end",
        ("self", "component_type"),
        Mechanism.OVERRIDE,
        _HERE + "tree_core.EntropicTreeCore.evict_device_end",
        "counters",
        _PROCESSES,
        _VECTORS,
    ),
    Seam(
        _CORE + ".match_full_device_prefix",
        ("self", "key"),
        Mechanism.USE,
        "",
        "what waiting requests will match, without touching it",
        _PROCESSES,
        _READS,
    ),
    Seam(
        _CORE + ".node_by_id",
        ("self", "node_id"),
        Mechanism.USE,
        "",
        "nodes behind SGLang's handles",
        _PROCESSES,
        _OBSERVER,
    ),
    Seam(
        _CACHE + "radix_cache.RadixKey",
        ("self", "token_ids", "extra_key", "is_bigram", "limit", "cache_salt"),
        Mechanism.USE,
        "",
        "tokens of a node and of a waiting request",
        _PROCESSES,
        _READS,
    ),
    Seam(
        _CACHE + "radix_cache.RadixKey.match",
        ("self", "other", "page_size"),
        Mechanism.USE,
        "",
        "how much of an evicted node returns",
        _PROCESSES,
        _READS,
    ),
    Seam(
        "sglang.srt.managers.utils.is_health_check_generate_req",
        ("recv_req",),
        Mechanism.USE,
        _HERE + "evictor.Evictor.started",
        "health checks, which are nobody's requests",
        _PROCESSES,
        _READS,
    ),
)
