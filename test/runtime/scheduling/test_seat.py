"""The policy's seat: what it counts, what it learns, and that it forgets."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from sgl_entropic.runtime.scheduling.notes import notes_of, report_of, untraced_score
from sgl_entropic.runtime.scheduling.seat import Seat
from sgl_entropic.scheduling import EntropicPolicy, SchedulingSettings
from sgl_entropic.trace.counters import Counters


def request(
    name: str, *, prompt: int = 10, limit: int = 20, priority: int | None = None, **custom: Any
) -> Any:
    """What of SGLang's ``Req`` the seat reads."""
    sampling = SimpleNamespace(
        max_new_tokens=limit, ignore_eos=True, top_k=1, custom_params={"entropic": custom} if custom else None
    )
    return SimpleNamespace(
        rid=name,
        origin_input_ids=[1] * prompt,
        output_ids=[],
        sampling_params=sampling,
        prefix_len=0,
        num_matched_prefix_tokens=0,
        grammar=None,
        beam_group=None,
        priority=priority,
        finished_reason=None,
        finished=lambda: False,
    )


def end(req: Any, kind: str) -> None:
    req.finished = lambda: True
    req.finished_reason = SimpleNamespace(to_json=lambda: {"type": kind})


def seat(policy: EntropicPolicy | None = None, **more: Any) -> Seat:
    return Seat(
        policy=policy,
        counters=Counters(),
        allocator=SimpleNamespace(available_size=lambda: 900, size=1000),
        tree_cache=SimpleNamespace(evictable_size=lambda: 50),
        most_running=8,
        chooses_order=policy is not None,
        **more,
    )


def mode(kind: str) -> Any:
    return SimpleNamespace(
        is_extend=lambda: kind != "decode",
        is_decode=lambda: kind == "decode",
        is_mixed=lambda: kind == "mixed",
    )


def prefill(lengths: list[int], prefixes: list[int] | None = None, kind: str = "extend") -> Any:
    return SimpleNamespace(
        forward_mode=mode(kind), extend_lens=lengths, prefix_lens=prefixes or [0] * len(lengths)
    )


def decode(rows: int, context: int) -> Any:
    return SimpleNamespace(
        forward_mode=mode("decode"),
        reqs=[SimpleNamespace(origin_input_ids=range(context - 3), output_ids=[0] * 3)] * rows,
    )


def test_the_clock_counts_prompt_tokens_computed_and_tokens_decoded() -> None:
    here = seat()
    here.launched(prefill([7, 5], [3, 0]), 0.0, after_idle=True)
    here.launched(decode(4, 100), 1.0, after_idle=False)
    here.launched(decode(3, 100), 2.0, after_idle=False)
    assert (here.token_clock, here.decode_steps) == (7 + 5 + 4 + 3, 2)
    assert here.server().free_tokens == 950


def test_steps_teach_what_they_take_and_pauses_do_not() -> None:
    policy = EntropicPolicy()
    here, clock = seat(policy), 0.0
    here.launched(decode(1, 50), clock, after_idle=True)
    for turn in range(400):
        rows = 1 + turn % 8
        clock += 0.004 + 0.002 * here._launch.rows if here._launch else 0.0
        here.launched(decode(rows, 50), clock, after_idle=False)
    clock += 30.0
    here.launched(decode(1, 50), clock, after_idle=True)
    assert policy.cost.decode_step_ms(4, 200) == pytest.approx(4 + 2 * 4, rel=0.05)
    assert policy.cost.decode_step_ms(8, 400) == pytest.approx(4 + 2 * 8, rel=0.05)


def test_a_mixed_step_is_no_measure_of_either_kind() -> None:
    policy = EntropicPolicy()
    before = policy.cost.version
    here = seat(policy)
    for at in range(50):
        here.launched(prefill([32, 1, 1], [0, 90, 80], kind="mixed"), float(at), after_idle=False)
    assert policy.cost.version == before


def test_who_was_passed_over_is_counted_and_the_score_is_kept_for_response_and_trace() -> None:
    policy = EntropicPolicy(SchedulingSettings(max_overtaken_tokens=100))
    here = seat(policy)
    long, short = request("long", limit=500), request("short", limit=5)
    queue = [long, short]
    for req in queue:
        here.queued(req, retracted=False)
    here.order(queue)
    assert [req.rid for req in queue] == ["short", "long"]
    here.started([short], [long])
    assert here.counters.overtaken_requests == 1
    assert policy.overtaking.tokens("long") > 0
    report = report_of(short)
    assert report is not None
    assert report["score"]["compute_ms"] > 0
    assert untraced_score(short) == report["score"]
    assert untraced_score(short) is None
    assert report_of(long) is None
    json.dumps(here.state([long], [short]), allow_nan=False)


def test_a_request_that_left_without_a_word_is_forgotten_when_the_server_wakes() -> None:
    policy = EntropicPolicy(SchedulingSettings(max_overtaken_tokens=1000))
    here = seat(policy)
    gone, stays, short = request("gone", limit=500), request("stays", limit=500), request("short", limit=5)
    for req in (gone, stays, short):
        here.queued(req, retracted=False)
    here.order([gone, stays, short])
    here.started([short], [gone, stays])
    charged = policy.overtaking.tokens("stays")
    assert policy.overtaking.tokens("gone") == charged > 0
    here.woke([stays])
    assert (policy.overtaking.tokens("gone"), policy.overtaking.tokens("stays")) == (0, charged)


def test_a_retracted_request_keeps_its_arrival_and_its_recomputed_tokens_are_counted() -> None:
    here = seat(EntropicPolicy())
    first, second = request("first", prompt=30), request("second")
    for req in (first, second):
        here.queued(req, retracted=False)
    here.started([first], [second])
    first.output_ids = [1] * 12
    here.token_clock = 500
    here.queued(first, retracted=True)
    first.prefix_len = 10
    here.started([first], [second])
    notes = notes_of(first)
    assert notes is not None
    assert (notes.arrival, notes.arrived_at_tokens, notes.waits_since_tokens) == (0, 0, 500)
    assert (notes.retractions, notes.recomputed_tokens) == (1, 30 + 12 - 10)
    assert (here.counters.retracted_requests, here.counters.recomputed_tokens) == (1, 32)


def test_a_request_that_was_preempted_or_paused_waits_anew() -> None:
    """SGLang queues it without calling it retracted."""
    here = seat(EntropicPolicy())
    req = request("one", prompt=30)
    here.queued(req, retracted=False)
    here.started([req], [])
    here.token_clock = 700
    here.queued(req, retracted=False)
    notes = notes_of(req)
    assert notes is not None
    assert (notes.waits_since_tokens, notes.retractions, notes.admitted) == (700, 1, False)
    here.started([req], [])
    assert notes.recomputed_tokens == 30


def test_a_deferred_request_is_explained_as_it_was_ordered() -> None:
    here = seat(EntropicPolicy())
    queue = [request(name, limit=5) for name in ("shared", "again")] + [request("other", limit=50)]
    for req in queue:
        here.queued(req, retracted=False)
    here.order(queue, {"again"})
    assert [req.rid for req in queue] == ["shared", "other", "again"]
    waiting = here.state(queue, [])["waiting"]
    assert [entry["rank"] for entry in waiting] == [0, 1, 2]
    assert [entry["deferred"] for entry in waiting] == [False, False, True]


def test_chunks_after_the_first_start_nothing_again() -> None:
    here = seat(EntropicPolicy())
    old, new = request("old", limit=900), request("new", limit=2)
    for req in (old, new):
        here.queued(req, retracted=False)
    here.started([new], [old])
    here.started([new], [old])
    assert here.counters.overtaken_requests == 1


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        (lambda req, here: setattr(req, "num_matched_prefix_tokens", 7), "cached_tokens", 7),
        (lambda req, here: req.output_ids.extend([1, 2, 3]), "generated_tokens", 3),
        (lambda req, here: setattr(req.sampling_params, "max_new_tokens", 5), "max_new_tokens", 5),
        (
            lambda req, here: setattr(notes_of(req), "prefix_surprisal_nats", 1.5),
            "prefix_surprisal_nats",
            1.5,
        ),
        (lambda req, here: here.order([req, request("b")], {"a"}), "deferred", True),
        (lambda req, here: _retract_at(req, here, 40), "waits_since_tokens", 40),
    ],
    ids=["cached", "generated", "limit", "surprisal", "deferred", "retracted"],
)
def test_what_changes_while_a_request_waits_reaches_the_policy(change: Any, field: str, value: Any) -> None:
    here = seat(EntropicPolicy())
    waits = request("a")
    here.queued(waits, retracted=False)
    before = here.facts_of_waiting([waits])[0]
    assert here.facts_of_waiting([waits])[0] is before
    assert getattr(before, field) != value
    change(waits, here)
    after = here.facts_of_waiting([waits])[0]
    assert getattr(after, field) == value
    assert after.prompt_tokens == 10


def _retract_at(req: Any, here: Seat, clock: int) -> None:
    here.token_clock = clock
    here.queued(req, retracted=True)


@pytest.mark.parametrize("way", ["finished", "aborted", "withdrawn"])
def test_nothing_is_kept_of_a_request_that_is_gone(way: str) -> None:
    policy = EntropicPolicy()
    here = seat(policy)
    old, new = request("old", limit=900), request("new", limit=2)
    for req in (old, new):
        here.queued(req, retracted=False)
    here.order([old, new])
    here.started([new], [old])
    assert len(policy.overtaking) == 1
    if way == "withdrawn":
        here.withdrawn(old)
    else:
        end(old, "length" if way == "finished" else "abort")
        here.ended([old])
    here.ended([old])
    assert len(policy.overtaking) == 0


def test_without_a_policy_it_only_counts() -> None:
    here = seat()
    req = request("one")
    here.queued(req, retracted=False)
    here.queued(req, retracted=True)
    here.started([req], [])
    end(req, "stop")
    here.ended([req])
    assert here.held([req, req], 0) == frozenset()
    assert here.counters.retracted_requests == 1
    assert here.state([], [])["enabled"] is False
    assert report_of(req) is None


def test_a_client_s_name_reaches_the_policy() -> None:
    here = seat(EntropicPolicy())
    req = request("one", client_id="team 7")
    assert here.facts_of_waiting([req])[0].client == "team 7"


@pytest.mark.parametrize(("sign", "first"), [(1, "high"), (-1, "low")])
def test_user_priorities_go_first_in_either_direction(sign: int, first: str) -> None:
    here = seat(EntropicPolicy(), priority_sign=sign)
    queue = [request("low", limit=100, priority=1), request("high", limit=100, priority=9)]
    for req in queue:
        here.queued(req, retracted=False)
    here.order(queue)
    assert queue[0].rid == first


def req(prompt: int, limit: int, generated: int = 0) -> Any:
    return SimpleNamespace(
        origin_input_ids=range(prompt),
        output_ids=[0] * generated,
        sampling_params=SimpleNamespace(max_new_tokens=limit),
    )


@pytest.mark.parametrize(
    ("running", "queue", "foresees"),
    [
        ([], [req(100, 50)], False),
        # 950 slots: the rest of the limit of who runs, prompt and limit of who may start, a page for each.
        ([req(300, 300, 100)], [req(100, 300)], False),
        ([req(300, 300, 100)], [req(100, 394)], True),
        ([req(300, 300, 300)] * 8, [req(1000, 1000)] * 3, True),
        ([], [req(1, 1)] * 129, True),
    ],
)
def test_memory_is_foreseen_where_not_all_may_get_their_limits(
    running: list[Any],
    queue: list[Any],
    foresees: object,
) -> None:
    here = seat(EntropicPolicy(), chooses_admission=True)
    here.look_for_memory(running, queue)
    assert here.foresees_memory is foresees
    here = seat(EntropicPolicy())
    here.look_for_memory(running, queue)
    assert here.foresees_memory is False


def test_a_step_in_which_nobody_is_held_is_counted_all_the_same() -> None:
    policy = EntropicPolicy(SchedulingSettings(hold=False))
    here = seat(policy)
    for step in range(20):
        here.launched(decode(6, 50), 0.01 * step, after_idle=False)
        assert here.holds_nobody()
    policy.demand.observe_started(100.0)
    assert policy.demand.load(1.0) > 0.0
