"""The scheduler's end: it says which requests found and left which path, and answers why a node would go next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sglang.srt.managers.utils import is_health_check_generate_req

from sgl_entropic.eviction import plain_rank
from sgl_entropic.eviction.arrays import FloatArray
from sgl_entropic.eviction.groups import FACTS_OF_GROUP
from sgl_entropic.runtime.eviction.lookahead import Lookahead
from sgl_entropic.runtime.eviction.tree_core import EntropicTreeCore

_ADMITTED = "_sgl_entropic_admitted"
_MOST_EXPLAINED = 16


def _is_copy(req: Any) -> bool:
    """Whether ``req`` is one of the ``n`` answers of a client's request.

    SGLang first runs the prompt with no output, which counts as the request, and then its copies: they find the prompt
    because it was put there for them.
    """
    sampling: Any = getattr(req, "sampling_params", None)
    return sampling is not None and sampling.n > 1 and sampling.max_new_tokens != 0


@dataclass(slots=True)
class Evictor:
    """Of one scheduler.

    Attributes:
        core: the tree.
        lookahead: what its queue needs.
    """

    core: EntropicTreeCore
    lookahead: Lookahead

    @classmethod
    def of(
        cls, core: EntropicTreeCore, queue: Callable[[], Sequence[Any]], lookahead_requests: int
    ) -> Evictor:
        """For the tree ``core``, whose scheduler's waiting requests ``queue`` gives."""
        lookahead = Lookahead(core, queue, lookahead_requests)
        core.before_ranking = lookahead.refresh
        return cls(core, lookahead)

    def started(self, reqs: Sequence[Any]) -> None:
        """``reqs`` go into a prefill; those that did so before, in chunks or before a retraction, count once."""
        book = self.core.book
        for req in reqs:
            if getattr(req, _ADMITTED, None) is None and not is_health_check_generate_req(req):
                setattr(req, _ADMITTED, True)
                book.counters.prefix_hit_tokens += req.prefix_len
                if req.prefix_len and not _is_copy(req):
                    book.returned(self.core.path_to(req.last_node))

    def ended(self, reqs: Sequence[Any]) -> None:
        """Look through the requests of a step for those that have just ended."""
        for req in reqs:
            if req.finished() and getattr(req, _ADMITTED, None):
                # An overlapped step has the request once more.
                setattr(req, _ADMITTED, False)
                path = self.core.path_to(req.last_node)
                if path and _is_copy(req):
                    self.core.book.touched(path)
                elif path:
                    self.core.book.visited(path, len(req.origin_input_ids))

    def state(self) -> dict[str, Any]:
        """For the internal state: what would be evicted next, and why."""
        book = self.core.book
        table, now_s, gravity = book.table, book.clock(), book.gravity()
        self.lookahead.pass_began()
        self.lookahead.refresh()
        rows = table.leaf_rows()
        ranks: FloatArray = book.ranks(gravity)[rows]
        order = np.argsort(ranks, kind="stable")[:_MOST_EXPLAINED]
        shown = plain_rank(ranks)
        return {
            "enabled": True,
            "evictable_tokens": self.core.full_evictable_size(),
            "evictable_nodes": len(rows),
            "ghosts": len(book.ghosts),
            "ghost_tokens": book.ghosts.tokens,
            "fleet_gravity": gravity,
            "next": [self._explain(int(rows[place]), float(shown[place]), now_s) for place in order],
        }

    def _explain(self, row: int, rank: float, now_s: float) -> dict[str, Any]:
        table = self.core.book.table
        node, surprisal = table.nodes[row], float(table.surprisal_nats[row])
        facts = table.facts(node)
        _, new_tokens, _, _, turn = FACTS_OF_GROUP[:, table.group[row]].tolist()
        return {
            "rank": rank,
            "needed": bool(table.needed[row]),
            "tokens": len(node.key),
            "context_tokens": int(table.context_tokens[row]),
            "idle_s": round(max(0.0, now_s - float(table.last_s[row])), 3),
            "hits": facts.hits,
            "continuations": facts.continuations,
            "turn": turn,
            "new_tokens_level": new_tokens,
            "surprisal_nats": None if np.isnan(surprisal) else round(surprisal, 6),
        }
