"""Which nodes the first requests of the waiting queue will match: they are evicted last.

Nothing is locked. The marks are made anew from the queue before the first eviction of a scheduler pass, so that they
cannot outlive a request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from sglang.srt.mem_cache.radix_cache import RadixKey

from sgl_entropic.runtime.eviction.tree_core import EntropicTreeCore

# On SGLang's ``Req``, so that it dies with it: ids may be used again.
_ATTRIBUTE = "_sgl_entropic_lookahead"


@dataclass(frozen=True, slots=True)
class _Found:
    """Where a request's match ends, and what would tell that it no longer does.

    Attributes:
        node: the deepest one that is matched, at least in part; ``None`` for none.
        births: of that node, then.
        node_tokens: its length then.
        tokens: length of the request's sequence then.
    """

    node: Any
    births: int
    node_tokens: int
    tokens: int


class Lookahead:
    """The marks of one tree.

    Args:
        core: the tree.
        queue: gives the waiting requests, first one first.
        most_requests: that are looked at.
    """

    def __init__(
        self, core: EntropicTreeCore, queue: Callable[[], Sequence[Any]], most_requests: int
    ) -> None:
        self._core = core
        self._queue = queue
        self._most = most_requests
        self._stale = True

    def pass_began(self) -> None:
        """The queue may have changed."""
        self._stale = True

    def refresh(self) -> None:
        """Mark what the queue needs, unless that was done in this pass."""
        if not self._stale:
            return
        self._stale = False
        table = self._core.book.table
        table.needed[:] = False
        for req in islice(self._queue(), self._most):
            found = getattr(req, _ATTRIBUTE, None)
            if found is None or not self._holds(found, req):
                found = self._match(req)
                setattr(req, _ATTRIBUTE, found)
            if found.node is not None:
                table.needed[table.facts(found.node).row] = True
        table.saved &= table.needed

    def _holds(self, found: _Found, req: Any) -> bool:
        """Whether a new match would end in the same node."""
        table = self._core.book.table
        node = self._core.root_node if found.node is None else found.node
        return (
            found.tokens == len(req.origin_input_ids) + len(req.output_ids)
            and table.has(node)
            and found.births == table.facts(node).births
            and found.node_tokens == len(node.key)
        )

    def _match(self, req: Any) -> _Found:
        core = self._core
        tokens = req.origin_input_ids + req.output_ids if req.output_ids else req.origin_input_ids
        key = RadixKey(token_ids=tokens, extra_key=req.extra_key, cache_salt=req.cache_salt)
        _, node_id, _ = core.match_full_device_prefix(key)
        node = core.node_by_id(node_id)
        births = core.book.table.facts(node).births
        length = len(node.key)
        return _Found(None if node is core.root_node else node, births, length, len(tokens))
