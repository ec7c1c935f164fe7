"""Paths that were evicted and return are known to."""

from __future__ import annotations

from array import array

from eviction_rig import Rig
from sglang.srt.mem_cache.radix_cache import RadixKey

from sgl_entropic.eviction import Visit
from sgl_entropic.runtime.eviction.ghosts import Ghost, Ghosts, extended, hash_of_nothing


def hits_along(rig: Rig, tokens: list[int]) -> list[tuple[int, int]]:
    """Length and hits of each node of the path."""
    _, node = rig.matched(tokens)
    return [(len(part.key), rig.book.table.facts(part).hits) for part in rig.core.path_to(node)]


def test_a_path_that_returns_in_one_piece_is_cut_where_it_was_cut_before() -> None:
    rig = Rig()
    rig.serve(range(10))
    rig.serve(range(15))
    rig.serve(range(25))
    assert hits_along(rig, list(range(25))) == [(10, 2), (5, 1), (10, 0)]
    assert rig.evict(25) == 25
    assert (len(rig.book.ghosts), rig.book.ghosts.tokens) == (3, 25)
    rig.serve([*range(20), 77, 78])
    assert hits_along(rig, [*range(20), 77, 78]) == [(10, 3), (5, 2), (5, 1), (2, 0)]
    assert rig.counters.recomputed_evicted_tokens == 20
    # What did not come back is still remembered.
    assert rig.book.ghosts.tokens == 5
    rig.serve(range(25))
    assert hits_along(rig, list(range(25))) == [(10, 4), (5, 3), (5, 2), (5, 1)]
    assert rig.counters.recomputed_evicted_tokens == 25


def test_a_return_after_eviction_is_learnt() -> None:
    rig = Rig()
    rig.serve(range(50))
    rig.evict(50)
    rig.clock.now_s = 100.0
    returned = rig.book.policy._times.returned
    assert returned.sum() == 0
    rig.serve(range(50))
    assert returned.sum() == 1.0


def test_namespaces_are_apart() -> None:
    rig = Rig()
    rig.serve(range(10), extra_key="one")
    rig.evict(10)
    rig.serve(range(10), extra_key="two")
    assert rig.counters.recomputed_evicted_tokens == 0
    rig.serve(range(10), extra_key="one")
    assert rig.counters.recomputed_evicted_tokens == 10


def test_the_hash_is_of_the_tokens_and_not_of_how_they_are_cut() -> None:
    whole = RadixKey(array("q", range(9)))
    start = hash_of_nothing(whole)
    pieces = extended(extended(start, whole[:4]), whole[4:])
    assert extended(start, whole).digest() == pieces.digest()
    assert extended(start, whole[:8]).digest() != pieces.digest()


def test_no_more_tokens_are_remembered_than_were_asked_for() -> None:
    ghosts = Ghosts(25, 1)
    keys = [RadixKey(array("q", range(start, start + 10))) for start in (0, 100, 200)]
    for key in keys:
        ghosts.remember(hash_of_nothing(key), Ghost(key, None, 0, 0, 0))
    assert (len(ghosts), ghosts.tokens) == (2, 20)
    assert ghosts.take(hash_of_nothing(keys[0]), keys[0]) is None
    assert ghosts.take(hash_of_nothing(keys[2]), keys[2]) == (Ghost(keys[2], None, 0, 0, 0), 10)
    assert (len(ghosts), ghosts.tokens) == (1, 10)


def test_none_are_remembered_where_none_are_asked_for() -> None:
    rig = Rig(ghost_tokens=0)
    rig.serve(range(10))
    rig.evict(10)
    rig.serve(range(10))
    assert (len(rig.book.ghosts), rig.counters.recomputed_evicted_tokens) == (0, 0)


def test_parts_of_one_ghost_can_both_return() -> None:
    """Each takes its weight from the visit, which must not become less than none."""
    rig = Rig()
    rig.serve(range(10))
    visits: list[Visit] = [rig.book.table.facts(node).visit for _, node in rig.nodes()]  # type: ignore[misc]
    rig.evict(10)
    rig.serve([*range(5), 50])
    rig.serve(range(10))
    assert [min(visit.left.values()) >= 0 for visit in visits] == [True]
