"""The real tree on the CPU against a plain dict of what is cached, under any order of requests, locks and evictions."""

from __future__ import annotations

from collections import Counter
from typing import Any

from eviction_rig import Rig, Running
from hypothesis import settings, strategies
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

_POOL_PAGES = 24
_PATHS = strategies.lists(strategies.integers(0, 2), min_size=1, max_size=10)


class Tree(RuleBasedStateMachine):
    """The model knows every prefix of whole pages that was ever inserted: how often it was asked for, and if it is cached."""

    page_size = 1

    @initialize()
    def begin(self) -> None:
        self.rig = Rig(_POOL_PAGES * self.page_size, self.page_size)
        self.cached: set[tuple[int, ...]] = set()
        self.hits: Counter[tuple[int, ...]] = Counter()
        self.ever: set[tuple[int, ...]] = set()
        self.running: list[Running] = []

    def tokens(self, pages: list[int]) -> tuple[int, ...]:
        return tuple(symbol for symbol in pages for _ in range(self.page_size))

    def prefixes(self, tokens: tuple[int, ...]) -> list[tuple[int, ...]]:
        return [tokens[:end] for end in range(self.page_size, len(tokens) + 1, self.page_size)]

    def longest(self, tokens: tuple[int, ...]) -> int:
        return max((len(prefix) for prefix in self.prefixes(tokens) if prefix in self.cached), default=0)

    def resident(self) -> set[tuple[int, ...]]:
        found = set()
        for path, node in self.rig.nodes():
            ends = range(len(path) - len(node.key) + self.page_size, len(path) + 1, self.page_size)
            found.update(path[:end] for end in ends)
        return found

    def locked(self) -> set[tuple[int, ...]]:
        return {prefix for running in self.running for prefix in self.prefixes(running.tokens)}

    def check_eviction(self, also_locked: set[tuple[int, ...]] = frozenset()) -> int:  # type: ignore[assignment]
        """Take out of the model what is gone; it was not locked. How many tokens that are."""
        gone = self.cached - self.resident()
        assert not gone & (self.locked() | also_locked)
        self.cached -= gone
        return len(gone) * self.page_size

    @rule(pages=_PATHS)
    def match(self, pages: list[int]) -> None:
        tokens = self.tokens(pages)
        assert self.rig.matched(tokens)[0] == self.longest(tokens)

    @rule(pages=_PATHS)
    def match_without_touching(self, pages: list[int]) -> None:
        tokens = self.tokens(pages)
        before = {id(node) for _, node in self.rig.nodes()}
        assert self.rig.core.match_full_device_prefix(self.rig.key(tokens))[0] == self.longest(tokens)
        assert {id(node) for _, node in self.rig.nodes()} == before

    @rule(pages=_PATHS, wait_s=strategies.floats(0, 5000))
    def start(self, pages: list[int], wait_s: float) -> None:
        self.rig.clock.now_s += wait_s
        tokens = self.tokens(pages)
        found = self.prefixes(tokens[: self.longest(tokens)])
        for prefix in found:
            self.hits[prefix] += 1
        running = self.rig.start(tokens)
        if running is None:
            # The prefix was found all the same.
            self.check_eviction()
            assert self.rig.core.full_evictable_size() == self.page_size * len(self.cached - self.locked())
            return
        new = [prefix for prefix in self.prefixes(tokens) if prefix not in set(found)]
        self.cached |= set(new)
        self.check_eviction(set(self.prefixes(tokens)))
        for prefix in new:
            self.hits[prefix] += prefix in self.ever
        self.ever |= set(new)
        self.running.append(running)

    @precondition(lambda self: self.running)
    @rule(data=strategies.data(), wait_s=strategies.floats(0, 5000))
    def end(self, data: Any, wait_s: float) -> None:
        self.rig.clock.now_s += wait_s
        self.rig.end(self.running.pop(data.draw(strategies.integers(0, len(self.running) - 1))))

    @precondition(lambda self: self.running)
    @rule(data=strategies.data())
    def abort(self, data: Any) -> None:
        running = self.running.pop(data.draw(strategies.integers(0, len(self.running) - 1)))
        self.rig.cache.unlock(running.lock)

    @rule(pages=strategies.integers(1, _POOL_PAGES))
    def evict(self, pages: int) -> None:
        asked, before = pages * self.page_size, len(self.cached - self.locked()) * self.page_size
        evicted = self.rig.evict(asked)
        assert evicted == self.check_eviction()
        assert evicted >= min(asked, before)

    @precondition(lambda self: not self.running)
    @rule()
    def flush(self) -> None:
        self.rig.cache.reset()
        self.rig.allocator.clear()
        self.cached, self.ever = set(), set()
        self.hits.clear()
        assert not len(self.rig.book.ghosts)

    @invariant()
    def pool_is_exact(self) -> None:
        assert self.resident() == self.cached
        used = len(self.cached) * self.page_size
        assert self.rig.allocator.available_size() + used == _POOL_PAGES * self.page_size
        slots = self.rig.cache.all_values_flatten().tolist()
        assert len(set(slots)) == len(slots) == used
        self.rig.cache.sanity_check()

    @invariant()
    def facts_are_right(self) -> None:
        table = self.rig.book.table
        ever_after = Counter(prefix[: -self.page_size] for prefix in self.ever)
        leaves = set()
        for path, node in self.rig.nodes():
            facts = table.facts(node)
            assert table.nodes[facts.row] is node
            assert facts.placed
            assert table.context_tokens[facts.row] == len(path) - len(node.key)
            assert facts.continuations == ever_after[path]
            for end in range(len(path) - len(node.key) + self.page_size, len(path) + 1, self.page_size):
                assert facts.hits == self.hits[path[:end]]
            if facts.visit is not None:
                assert facts.visit.left[int(table.group[facts.row])] > 0
            if not node.children and path not in self.locked():
                leaves.add(facts.row)
        assert set(table.leaf_rows().tolist()) == leaves
        # One row for the root.
        assert sum(node is not None for node in table.nodes) in (
            len(self.rig.nodes()),
            len(self.rig.nodes()) + 1,
        )


class PagedTree(Tree):
    """Pages of 16."""

    page_size = 16


def test_pages_of_one_token() -> None:
    check_machine(Tree, 60)


def test_pages_of_sixteen() -> None:
    check_machine(PagedTree, 40)


def check_machine(machine: type[RuleBasedStateMachine], examples: int) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=40))
