"""What the scheduler reports, and what it is told."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

from eviction_rig import Rig

from sgl_entropic.runtime.eviction.evictor import Evictor


def request(rig: Rig, tokens: Any, rid: str = "a", **sampling: Any) -> Any:
    """Matched, as SGLang does before it admits it."""
    params = SimpleNamespace(**{"n": 1, "max_new_tokens": 8, **sampling})
    req = SimpleNamespace(origin_input_ids=array("q", tokens), done=False, rid=rid, sampling_params=params)
    req.prefix_len, req.last_node = rig.matched(tokens)
    req.finished = lambda: req.done
    return req


def test_a_request_counts_once_in_chunks_after_retraction_and_in_an_overlapped_step() -> None:
    rig = Rig()
    evictor = Evictor.of(rig.core, list, 4)
    rig.serve(range(20))
    ((_, node),) = rig.nodes()
    facts = rig.book.table.facts(node)
    assert facts.hits == 0
    req = request(rig, range(30))
    evictor.started([req])
    evictor.started([req])
    assert (facts.hits, rig.counters.prefix_hit_tokens) == (1, 20)
    assert facts.visit is None
    evictor.ended([req])
    assert facts.visit is None
    req.done = True
    evictor.ended([req])
    visit = facts.visit
    assert visit is not None
    evictor.ended([req])
    assert facts.visit is visit


def test_copies_of_a_request_and_health_checks_are_no_returns() -> None:
    """SGLang runs a request of several answers as one without output, then as so many copies."""
    rig = Rig()
    evictor = Evictor.of(rig.core, list, 4)

    def run(**more: Any) -> None:
        req = request(rig, range(20), **more)
        evictor.started([req])
        rig.clock.now_s += 1.0
        req.done = True
        evictor.ended([req])

    first = request(rig, range(20), n=4, max_new_tokens=0)
    evictor.started([first])
    rig.serve(range(20))
    ((_, node),) = rig.nodes()
    facts, row = rig.book.table.facts(node), rig.book.table.facts(node).row
    visit = facts.visit
    for _ in range(4):
        run(n=4)
    assert (facts.hits, rig.counters.prefix_hit_tokens) == (0, 80)
    assert facts.visit is visit
    assert rig.book.table.last_s[row] == rig.clock.now_s
    run(rid="HEALTH_CHECK_1")
    assert (facts.hits, rig.counters.prefix_hit_tokens) == (0, 80)
    run(n=1)
    assert facts.hits == 1


def test_a_request_whose_path_has_gone_is_forgotten() -> None:
    rig = Rig()
    evictor = Evictor.of(rig.core, list, 4)
    rig.serve(range(20))
    req = request(rig, range(20))
    evictor.started([req])
    rig.evict(20)
    req.done = True
    evictor.ended([req])
    never = SimpleNamespace(origin_input_ids=array("q", [1]), last_node=None, finished=lambda: True)
    evictor.ended([never])
    assert rig.nodes() == []


def test_the_state_names_who_goes_next_and_does_not_touch_it() -> None:
    rig = Rig(pool_tokens=4096)
    queue: list[Any] = []
    evictor = Evictor.of(rig.core, lambda: queue, 4)
    for start in range(1000, 3000, 100):
        rig.serve(range(start, start + 30))
        rig.clock.now_s += 2.0
    queue.append(
        SimpleNamespace(
            rid="a",
            origin_input_ids=array("q", range(1000, 1040)),
            output_ids=array("q"),
            extra_key=None,
            cache_salt=None,
        )
    )
    state = evictor.state()
    assert state == evictor.state()
    assert (state["evictable_nodes"], state["evictable_tokens"], len(state["next"])) == (20, 600, 16)
    assert state["next"][0]["idle_s"] == 38.0
    assert state["next"][0]["tokens"] == 30
    ranks = [node["rank"] for node in state["next"]]
    assert ranks == sorted(ranks)
    assert not any(node["needed"] for node in state["next"])
    rig.evict(30 * 18)
    last = evictor.state()["next"]
    assert [node["needed"] for node in last] == [False, True]
