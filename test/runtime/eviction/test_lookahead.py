"""What waiting requests need goes last, is not locked, and is needed no longer than they wait."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

from eviction_rig import Rig

from sgl_entropic.runtime.eviction.evictor import Evictor


def waiting(rid: str, tokens: Any) -> Any:
    return SimpleNamespace(
        rid=rid, origin_input_ids=array("q", tokens), output_ids=array("q"), extra_key=None, cache_salt=None
    )


def rig_of(*starts: int) -> tuple[Rig, list[Any], Evictor]:
    rig: Rig = Rig()
    queue: list[Any] = []
    evictor = Evictor.of(rig.core, lambda: queue, 2)
    for start in starts:
        rig.serve(range(start, start + 20))
        rig.clock.now_s += 1.0
    return rig, queue, evictor


def cached(rig: Rig, start: int) -> bool:
    return rig.core.match_full_device_prefix(rig.key(range(start, start + 20)))[0] == 20


def test_the_oldest_stays_while_a_request_waits_for_it() -> None:
    rig, queue, evictor = rig_of(100, 200, 300)
    queue.append(waiting("a", [*range(100, 120), 5, 6]))
    rig.evict(1)
    assert cached(rig, 100)
    assert not cached(rig, 200)
    assert (rig.counters.lookahead_saved_tokens, rig.counters.evicted_needed_tokens) == (20, 0)
    # Once for each time that it waits.
    evictor.lookahead.pass_began()
    rig.evict(1)
    assert not cached(rig, 300)
    assert rig.counters.lookahead_saved_tokens == 20
    # Not locked: it goes when nothing else is left.
    rig.evict(1)
    assert not cached(rig, 100)
    assert rig.counters.evicted_needed_tokens == 20


def test_an_id_that_is_used_again_needs_what_its_new_request_needs() -> None:
    rig, queue, evictor = rig_of(100, 200, 300)
    queue.append(waiting("a", range(100, 130)))
    evictor.lookahead.refresh()
    queue[:] = [waiting("a", range(300, 330))]
    evictor.lookahead.pass_began()
    evictor.lookahead.refresh()
    table = rig.book.table
    needed = [path[0] for path, node in rig.nodes() if table.needed[table.facts(node).row]]
    assert needed == [300]


def test_a_request_that_left_the_queue_needs_nothing() -> None:
    rig, queue, evictor = rig_of(100, 200, 300)
    queue.append(waiting("a", range(100, 130)))
    rig.evict(1)
    queue.clear()
    evictor.lookahead.pass_began()
    rig.evict(1)
    assert not cached(rig, 100)
    assert not rig.book.table.needed.any()
    assert not rig.book.table.saved.any()


def test_only_the_first_of_the_queue_are_looked_at() -> None:
    rig, queue, _ = rig_of(100, 200, 300)
    queue += [waiting("x", [1]), waiting("y", [2]), waiting("z", range(100, 130))]
    rig.evict(1)
    assert not cached(rig, 100)


def test_a_need_follows_the_tree() -> None:
    """Through a new node behind the match, a split, and the eviction of its end."""
    rig, queue, evictor = rig_of(100, 200)
    table = rig.book.table
    queue.append(waiting("a", range(100, 140)))

    def needed() -> list[int]:
        evictor.lookahead.pass_began()
        evictor.lookahead.refresh()
        return sorted(len(path) for path, node in rig.nodes() if table.needed[table.facts(node).row])

    assert needed() == [20]
    rig.serve(range(100, 130))
    assert needed() == [30]
    rig.serve([*range(100, 125), 7])
    assert needed() == [30]
    # Only what nobody needs, then its end, then the rest of it.
    rig.evict(21)
    assert needed() == [30]
    rig.evict(1)
    assert needed() == [25]
    assert rig.counters.evicted_needed_tokens == 5
    rig.evict(1)
    assert needed() == [20]
    rig.evict(1)
    assert needed() == []
    rig.serve([*range(100, 103)])
    assert needed() == [3]


def test_within_one_call_the_rest_of_what_is_needed_stays_needed() -> None:
    rig, queue, _ = rig_of(100, 200)
    rig.serve(range(100, 130))
    queue.append(waiting("a", range(100, 140)))
    # 200..220 goes first, then the end of what is needed, and no more than that.
    rig.clock.now_s += 100.0
    rig.serve(range(300, 340))
    rig.evict(61)
    assert rig.matched(range(100, 140))[0] == 20
    assert rig.counters.evicted_needed_tokens == 10


def test_a_retracted_request_needs_its_answer_so_far_too() -> None:
    rig, queue, _ = rig_of(100, 200)
    again = waiting("a", range(100, 110))
    again.output_ids = array("q", range(110, 125))
    queue.append(again)
    rig.evict(1)
    assert cached(rig, 100)


def test_the_queue_is_looked_at_once_a_pass_and_only_when_something_is_evicted() -> None:
    rig, _, _ = rig_of(100, 200)
    looks = []

    def queue() -> list[Any]:
        looks.append(1)
        return []

    evictor = Evictor.of(rig.core, queue, 2)
    evictor.lookahead.pass_began()
    assert not looks
    rig.evict(1)
    rig.evict(1)
    assert len(looks) == 1
