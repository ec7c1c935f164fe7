"""How many tokens of KV a CPU server keeps when the user has not said so."""

from __future__ import annotations

import psutil

from sgl_entropic.runtime.model_facts import model_facts

_MIB = 2**20
# Of the memory that is free at start: an eighth, at most 384 MiB of 16-bit entries (17,000 tokens of the default model)
# or 768 MiB of 32-bit ones: a small server stays small, and who serves many long contexts says so.
_SHARE = 8
_CAP_MIB_PER_BYTE = 192
_FALLBACK_TOKENS = 16_384


def kv_pool_tokens(model_path: str, dtype: str, pool_mib: int | None) -> int:
    """Tokens that fit into ``pool_mib``, or into the default share of the free memory; ``dtype``: of keys and values.

    The default is never less than one full context of the model, as long as that takes at most half the free memory.
    """
    facts = model_facts(model_path)
    if facts is None:
        return _FALLBACK_TOKENS
    entry_bytes = 2 if dtype == "bfloat16" else 4
    per_token = max(1, facts.kv_bytes_per_token(entry_bytes))
    if pool_mib is not None:
        return max(1, pool_mib * _MIB // per_token)
    free = psutil.virtual_memory().available
    default = min(free // _SHARE, _CAP_MIB_PER_BYTE * entry_bytes * _MIB) // per_token
    one_context = min(facts.context_len + 1, free // 2 // per_token)
    return int(max(default, one_context, 1))
