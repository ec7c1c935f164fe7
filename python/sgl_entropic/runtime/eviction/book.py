"""The facts of all nodes of one tree, and what the policy is told of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from sgl_entropic.eviction import EvictionPolicy, Touch, group_of, turn_of
from sgl_entropic.eviction.arrays import FloatArray
from sgl_entropic.runtime.eviction.ghosts import Ghost, Ghosts, extended, hash_of_nothing
from sgl_entropic.runtime.eviction.surprisal import read_surprisals
from sgl_entropic.runtime.eviction.table import Facts, NodeTable
from sgl_entropic.trace.counters import Counters

logger = logging.getLogger(__name__)


class Book:
    """Kept by the tree core, which reports what happens to nodes, and by the scheduler, which reports requests.

    Args:
        policy: learns and ranks.
        clock: seconds, or what stands for them; the same on every rank that decides together, and never going back.
        counters: of this process.
        ghost_tokens: evicted tokens that are remembered.
        page_size: SGLang's.
        gravity: share of running requests in strong gravity.
        readings: surprisal of each KV slot, or ``None`` where it is unknown.
    """

    def __init__(
        self,
        policy: EvictionPolicy,
        clock: Callable[[], float],
        counters: Counters,
        ghost_tokens: int,
        page_size: int,
        gravity: Callable[[], float] = lambda: 0.0,
        readings: Callable[[], Any] = lambda: None,
    ) -> None:
        self.policy = policy
        self.clock = clock
        self.counters = counters
        self.gravity = gravity
        self.table = NodeTable()
        self.ghosts = Ghosts(ghost_tokens, page_size, policy.divided)
        self._readings = readings

    def cleared(self) -> None:
        """The tree is empty. How long nodes stay away is still known; who they were is not."""
        self.table.clear()
        self.ghosts.clear()
        self.policy.flushed()

    # -------------------------------------------------------------------------------------------------------- nodes

    def divided(self, upper: Any, lower: Any) -> None:
        """``upper`` now holds the first tokens of what was ``lower``; both were touched by the same requests."""
        table = self.table
        below, above = table.facts(lower), table.facts(upper)
        for column in (table.group, table.last_s, table.context_tokens, table.needed, table.saved):
            column[above.row] = column[below.row]
        table.context_tokens[below.row] += len(upper.key)
        table.surprisal_read[below.row] = False
        above.placed, above.hits, above.visit = below.placed, below.hits, below.visit
        above.continuations = above.births = 1
        if below.visit is not None:
            self.policy.divided(below.visit, int(table.group[below.row]))

    def born(self, node: Any) -> None:
        """``node`` was computed, and is not known to have been there before."""
        facts = self._place(node)
        self.table.facts(node.parent).continuations += 1
        touch = Touch(cut_short=False, new_tokens=len(node.key), hits=0, continuations=0, turn=0)
        # Until its request ends.
        self.table.group[facts.row] = group_of(touch)

    def revived(self, node: Any, ghost: Ghost) -> None:
        """``node`` was computed again."""
        facts = self._place(node)
        facts.hits, facts.continuations = ghost.hits + 1, ghost.continuations
        self.table.group[facts.row] = ghost.group
        self.counters.recomputed_evicted_tokens += len(node.key)
        if ghost.visit is not None:
            self.policy.returned([(ghost.visit, ghost.group)], self.clock())

    def _place(self, node: Any) -> Facts:
        table = self.table
        facts, above = table.facts(node), table.facts(node.parent)
        facts.placed = True
        above.births += 1
        length = 0 if node.parent.parent is None else len(node.parent.key)
        table.context_tokens[facts.row] = table.context_tokens[above.row] + length
        table.last_s[facts.row] = self.clock()
        return facts

    def evicted(self, node: Any) -> None:
        """``node`` has left the tree for want of memory."""
        table = self.table
        facts = table.facts(node)
        group = int(table.group[facts.row])
        ghost = Ghost(node.key, facts.visit, group, facts.hits, facts.continuations)
        self.ghosts.remember(self.hash_ahead_of(node), ghost)
        if table.needed[facts.row] and node.parent.parent is not None:
            table.needed[table.facts(node.parent).row] = True
        table.release(node)

    def hash_ahead_of(self, node: Any) -> Any:
        """State of the hash of all tokens ahead of ``node``."""
        unknown = []
        above = node.parent
        while above.parent is not None and self.table.facts(above).hasher is None:
            unknown.append(above)
            above = above.parent
        hasher = hash_of_nothing(node.key) if above.parent is None else self.table.facts(above).hasher
        for above in reversed(unknown):
            hasher = self.table.facts(above).hasher = extended(hasher, above.key)
        return hasher

    # ----------------------------------------------------------------------------------------------------- requests

    def returned(self, path: Sequence[Any]) -> None:
        """A request that has just been admitted found ``path``, from the first node to the deepest."""
        now_s, table = self.clock(), self.table
        returning = []
        for node in path:
            facts = table.facts(node)
            facts.hits += 1
            table.last_s[facts.row] = now_s
            if facts.visit is not None:
                returning.append((facts.visit, int(table.group[facts.row])))
                facts.visit = None
        self.policy.returned(returning, now_s)

    def visited(self, path: Sequence[Any], prompt_tokens: int) -> None:
        """A request that has ended leaves ``path``, from the first node to the deepest, prompt and answer."""
        now_s, table = self.clock(), self.table
        all_facts = [table.facts(node) for node in path]
        known = next((place for place, facts in enumerate(all_facts) if not facts.hits), len(path))
        new_tokens = max(0, prompt_tokens - sum(len(node.key) for node in path[:known]))
        turn = 0
        if known:
            deepest = all_facts[known - 1]
            # What this request has added below it is not from before.
            turn = turn_of(deepest.hits, deepest.continuations - (known < len(path)))
        groups = [
            group_of(
                Touch(
                    cut_short=False,
                    new_tokens=new_tokens,
                    hits=facts.hits,
                    continuations=facts.continuations,
                    turn=turn,
                )
            )
            for facts in all_facts
        ]
        # Touched by another one that has ended since this one was admitted.
        returning = [
            (facts.visit, int(table.group[facts.row])) for facts in all_facts if facts.visit is not None
        ]
        visit = self.policy.visited(groups, returning, now_s)
        for facts, group in zip(all_facts, groups, strict=True):
            facts.visit = visit
            table.group[facts.row] = group
            table.last_s[facts.row] = now_s

    def touched(self, path: Sequence[Any]) -> None:
        """``path`` was used by one who says nothing about when it is asked for again."""
        now_s = self.clock()
        for node in path:
            self.table.last_s[self.table.facts(node).row] = now_s

    # ------------------------------------------------------------------------------------------------------ ranking

    def ranks(self, gravity: float) -> FloatArray:
        """The rank of every row; the smallest leaf is evicted first."""
        if self.policy.surprisal_exponent(gravity):
            read_surprisals(self.table, self._readings())
        return self.policy.rank(self.table.columns(self.clock()), gravity)
