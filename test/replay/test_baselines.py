"""Each policy on an example small enough to follow by hand. Paths of one block unless said otherwise."""

from __future__ import annotations

import pytest

from sgl_entropic.replay.cache import replay

# Two blocks fit. 1 is asked for twice, then 2 and 3 come, then one of them again.
_AGAIN = ([1], [1], [2], [3], [2], [1])


@pytest.mark.parametrize(
    ("policy", "hits"),
    [
        # 1 is hit; 3 evicts 1; 2 is hit; 1 is gone.
        ("lru", 2),
        ("fifo", 2),
        # 3 evicts 2, which has no hit; 2 evicts 3; 1 is hit.
        ("lfu", 2),
        ("slru", 2),
        ("hits-per-token", 2),
    ],
)
def test_two_fit(trace_of, makers, policy: str, hits: int) -> None:
    trace = trace_of(*_AGAIN)
    assert replay(trace, makers(trace)[policy](), 2).hit_blocks == hits


@pytest.mark.parametrize(
    ("policy", "last_hit"), [("lru", 0), ("fifo", 0), ("lfu", 1), ("slru", 1), ("gdsf", 0)]
)
def test_frequency_keeps_what_recency_lets_go(trace_of, makers, policy: str, last_hit: int) -> None:
    """1 was asked for twice, but longest ago. GDSF lets it go: its floor has risen past it."""
    trace = trace_of([1], [1], [2], [3], [4], [5], [1])
    assert replay(trace, makers(trace)[policy](), 2).hit_blocks == 1 + last_hit


def test_first_in_goes_first_whatever_its_use(trace_of, makers) -> None:
    trace = trace_of([1], [2], [1], [3], [1])
    assert replay(trace, makers(trace)["lru"](), 2).hit_blocks == 2
    assert replay(trace, makers(trace)["fifo"](), 2).hit_blocks == 1


def test_greedy_dual_keeps_what_is_dear(trace_of, makers) -> None:
    """The third block of a long prompt costs more than a short prompt of later."""
    trace = trace_of([1, 2, 3], [7], [8], [1, 2, 3])
    assert replay(trace, makers(trace)["lru"](), 4).hit_blocks == 2
    assert replay(trace, makers(trace)["gdsf"](), 4).hit_blocks == 3


def test_tail_lru_spares_the_beginning_of_an_older_conversation(trace_of, makers) -> None:
    """One block (4 tokens) may be missing in time: after 8, the younger 3 goes before the older 7."""
    trace = trace_of([7, 8], [1, 2, 3], [9], [10], [7])
    assert replay(trace, makers(trace)["lru"](), 5).hit_blocks == 0
    assert replay(trace, makers(trace)["t-lru"](), 5).hit_blocks == 1


def test_belady_lets_go_what_is_needed_last(trace_of, makers) -> None:
    trace = trace_of([1], [2], [3], [1], [2])
    assert replay(trace, makers(trace)["lru"](), 2).hit_blocks == 0
    assert replay(trace, makers(trace)["belady"](), 2).hit_blocks == 1
