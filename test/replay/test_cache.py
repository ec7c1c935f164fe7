"""What no policy may do, and what none can beat."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache as cached
from itertools import pairwise, takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_entropic.errors import ConfigError
from sgl_entropic.replay import arms, baselines, cache, surprisal
from sgl_entropic.replay.cache import replay
from sgl_entropic.replay.prefill import PrefillCost
from sgl_entropic.replay.trace import Trace, build

_PATHS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=3), min_size=1, max_size=9)


def _most_hits(paths: Sequence[Sequence[int]], pool: int) -> int:
    """By trying every set of blocks that the cache could hold after each request; a block is its prefix of ids."""
    asked = [[tuple(path[: end + 1]) for end in range(len(path))] for path in paths]

    @cached
    def best(number: int, held: frozenset[tuple[int, ...]]) -> int:
        if number == len(asked):
            return 0
        path = asked[number]
        matched = next((at for at, block in enumerate(path) if block not in held), len(path))
        return matched + max(best(number + 1, kept) for kept in _shrunk(held | set(path), frozenset(path)))

    def _shrunk(
        held: frozenset[tuple[int, ...]], locked: frozenset[tuple[int, ...]]
    ) -> set[frozenset[tuple[int, ...]]]:
        states = {held}
        while len(next(iter(states))) > pool:
            states = {
                state - {block}
                for state in states
                for block in state - locked
                if all(other[:-1] != block for other in state)
            }
        return states

    return best(0, frozenset())


@given(_PATHS, st.integers(3, 6))
def test_belady_is_the_best_of_all_that_can_be_done(trace_of, makers, paths, pool) -> None:
    trace = trace_of(*paths)
    assert replay(trace, makers(trace)["belady"](), pool).hit_blocks == _most_hits(paths, pool)


@given(_PATHS, st.integers(3, 6))
def test_no_policy_beats_the_best(trace_of, makers, paths, pool) -> None:
    trace = trace_of(*paths)
    most = _most_hits(paths, pool)
    for name, make in makers(trace).items():
        assert replay(trace, make(), pool).hit_blocks <= most, name


_CUT = st.lists(
    st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=3), st.integers(1, 4)), min_size=1, max_size=40
)
"""Paths, and the tokens of their last block: one and the same id may be cut short and not."""


def _cut(prompts: Sequence[tuple[list[int], int]]) -> Trace:
    rows = [
        {"timestamp": 7000 * at, "input_length": 4 * len(ids) - 4 + last, "output_length": 1, "hash_ids": ids}
        for at, (ids, last) in enumerate(prompts)
    ]
    return build(rows, 4)


def _lru(prompts: Sequence[tuple[list[int], int]], pool: int) -> list[tuple[int, int]]:
    """Blocks and tokens that each prompt finds, by a cache of its own: prefixes of ids with a length and a last use."""
    length: dict[tuple[int, ...], int] = {}
    used: dict[tuple[int, ...], int] = {}
    found = []
    for number, (ids, last) in enumerate(prompts):
        asked = {tuple(ids[: end + 1]): 4 if end + 1 < len(ids) else last for end in range(len(ids))}
        hits = list(takewhile(lambda block: block in length, asked))
        found.append((len(hits), sum(min(length[block], asked[block]) for block in hits)))
        while len(length.keys() | asked.keys()) > pool:
            leaves = [block for block in length if all(other[:-1] != block for other in length)]
            victim = min((block for block in leaves if block not in asked), key=lambda block: used[block])
            del length[victim], used[victim]
        for block, tokens in asked.items():
            length[block] = max(length.get(block, 0), tokens)
            used[block] = number
    return found


@given(_CUT, st.integers(3, 6))
def test_only_tokens_that_were_computed_are_found(prompts, pool) -> None:
    """A block that was short when it was computed gives no more than that, though it is longer elsewhere in the trace."""
    trace = _cut(prompts)
    outcome = replay(trace, baselines.Lru(trace), pool)
    found = _lru(prompts, pool)
    assert outcome.hit_blocks == sum(blocks for blocks, _ in found)
    assert [cached for _, cached in outcome.prompts] == [tokens for _, tokens in found]


@given(_CUT, _CUT, st.integers(3, 6), st.integers(1, 3))
def test_no_policy_but_the_optimum_sees_what_comes(prompts, later, pool, running) -> None:
    """What the first requests find is the same whatever follows."""
    short, long = _cut(prompts), _cut([*prompts, *later])
    for name in arms.NAMES:
        if name in {"belady", "ours-placebo"}:
            continue
        ended, went_on = (
            replay(
                trace,
                arms.factories(trace, surprisal.synthetic(trace, 0), arms.ArmSettings(PrefillCost()))[name](),
                pool,
                running=running,
            ).prompts
            for trace in (short, long)
        )
        assert ended == went_on[: len(ended)], name


@given(_PATHS, st.integers(3, 6), st.integers(1, 4))
def test_only_unlocked_leaves_go(trace_of, makers, paths, pool, running) -> None:
    """Every resident block has its parent, what runs is resident in full, and the pool is never exceeded."""
    trace = trace_of(*paths)

    class Watched(cache.Cache):
        def insert(self, node: int) -> None:
            super().insert(node)
            held = {at for at, inside in enumerate(self.resident) if inside}
            assert len(held) == self.used_blocks <= self.pool_blocks
            assert all(trace.parent[at] in held for at in held if trace.parent[at] >= 0)
            assert all(at in held for at, pins in enumerate(self._pins) if pins)
            inserted.append(node)

    for make in makers(trace).values():
        inserted: list[int] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cache, "Cache", Watched)
            replay(trace, make(), pool, running=running)
        assert inserted


@given(_PATHS)
def test_where_all_fits_all_policies_agree(trace_of, makers, paths) -> None:
    trace = trace_of(*paths)
    known: set[int] = set()
    again = 0
    for request in trace.requests:
        again += sum(node in known for node in request.path)
        known.update(request.path)
    for make in makers(trace).values():
        assert replay(trace, make(), 50).hit_blocks == again


@pytest.mark.parametrize("name", arms.NAMES)
def test_the_same_trace_gives_the_same_hits(trace_of, makers, name: str) -> None:
    trace = trace_of(*[[at % 3, at * 7 % 5, at * at % 11] for at in range(200)])
    first, second = (replay(trace, makers(trace)[name](), 12) for _ in range(2))
    assert first == second
    assert 0 < first.hit_blocks < first.blocks


def test_more_pool_is_never_worse_for_belady(trace_of, makers) -> None:
    trace = trace_of(*[[at % 3, at * 7 % 5, at * at % 11] for at in range(200)])
    hits = [replay(trace, makers(trace)["belady"](), pool).hit_blocks for pool in range(3, 30)]
    assert all(small <= large for small, large in pairwise(hits))


def test_a_request_larger_than_the_pool_is_named(trace_of, makers) -> None:
    trace = trace_of([1], [1, 2, 3])
    with pytest.raises(ConfigError, match=r"2 blocks cannot hold request 2 .* has 3"):
        replay(trace, makers(trace)["lru"](), 2)


def test_requests_that_warm_the_cache_are_not_counted(trace_of, makers) -> None:
    trace = trace_of([1, 2], [1, 2])
    outcome = replay(trace, makers(trace)["lru"](), 4, skip=1)
    assert (outcome.hit_blocks, outcome.blocks, outcome.hit_tokens, outcome.tokens) == (2, 2, 8, 8)


def test_running_requests_hold_their_blocks(trace_of, makers) -> None:
    """Evicting by recency would take 1, but its request still runs; with one at a time it goes."""
    trace = trace_of([1], [2], [3], [1])
    assert replay(trace, makers(trace)["lru"](), 3, running=3).hit_blocks == 1
    held = trace_of([1], [2], [1], [3], [1])
    assert replay(held, makers(held)["fifo"](), 2, running=1).hit_blocks == 1
    assert replay(held, makers(held)["fifo"](), 2, running=2).hit_blocks == 2
