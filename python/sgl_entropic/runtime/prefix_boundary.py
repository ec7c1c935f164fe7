"""Recompute the last cached token of a prefix hit, so that the token after it has an exact surprisal.

The surprisal of a token needs the logits *before* it. After a prefix-cache hit those belong to the last cached token,
whose logits are gone: the cache keeps keys and values only. Giving back one page of the hit (one token with the
default page size) runs that token through the model again. Its own surprisal is inherited from the slot in the tree,
which stays locked by the request, and the tree keeps its own copy of the slot when the request is checkpointed.
"""

from __future__ import annotations

from typing import Any

from sgl_entropic.runtime.request_state import state_of


def give_back_boundary(req: Any, tree_cache: Any) -> None:
    """Shorten the prefix that ``req`` has just matched by one page.

    Left as it is when nothing was matched, or when the cache also carries state that cannot be shortened
    (sliding-window or Mamba components, streaming sessions); the surprisal at such a boundary stays unknown.
    """
    state = state_of(req)
    state.fresh = True
    shortens = req.session is None and not tree_cache.supports_swa() and not tree_cache.supports_mamba()
    state.boundary_given_back = shortens and req.prefix_len > 0
    if state.boundary_given_back:
        page = tree_cache.page_size
        req.prefix_len = (req.prefix_len - 1) // page * page
        req.kv.cache_protected_len = req.prefix_len
