"""The load of the eviction benchmark: what is asked, what counts as an answer, the simulation, and the claims' arithmetic."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmark"))

import eviction_server
from eviction_load import claims, client, forms, measures, runner, servers, simulation, traces
from eviction_load.sessions import (
    CONTINUING,
    FIRST,
    FOLLOWING,
    ONE_SHOT,
    Chat,
    Piece,
    Session,
    Structured,
    Turn,
    in_order,
    output_tokens,
    stretched,
)
from scheduling_load.client import LoadError

KEY = (1, 0, "load")


def words(piece: Piece) -> list[str]:
    """A text for a piece, in which every token names its place."""
    return [f"{piece.key}:{at}" for at in range(piece.tokens)]


def text(session: Session, turn: int) -> list[str]:
    return [word for piece in session.prompt(turn) for word in words(piece)]


# ------------------------------------------------------------------------------------------------------ what is asked


@pytest.mark.parametrize("load", [Chat(), Structured()])
def test_a_load_is_the_same_for_the_same_key_only(load: Chat | Structured) -> None:
    assert load.draw(KEY) == load.draw(KEY)
    assert load.draw(KEY) != load.draw((1, 1, "load"))
    assert load.draw(KEY) != load.draw((2, 0, "load"))


@settings(max_examples=25)
@given(
    seed=st.integers(0, 99),
    sessions=st.integers(1, 40),
    continuing=st.floats(0, 1),
    think=st.floats(0.01, 0.5),
    most=st.integers(600, 1500),
)
def test_every_turn_sends_all_that_was_said_before(
    seed: int, sessions: int, continuing: float, think: float, most: int
) -> None:
    drawn = Chat(sessions, continuing, think=think, most_tokens=most).draw((seed,))
    assert len(drawn) == sessions
    for session in drawn:
        for turn, asked in enumerate(session.turns):
            said = text(session, turn)
            assert len(said) == session.prompt_tokens(turn)
            assert said[:32] == words(Piece("system", 32))
            assert len(said) + asked.output_tokens <= most
            assert 0 <= asked.due <= 1
            if turn:
                before = text(session, turn - 1)
                answer = words(session.answer(turn - 1))
                assert said[: len(before) + len(answer)] == before + answer
                assert FOLLOWING.least <= len(said) - len(before) - len(answer) <= FOLLOWING.most
                assert asked.due > session.turns[turn - 1].due
            else:
                assert FIRST.least <= len(said) - 32 <= FIRST.most


def test_two_sessions_share_the_system_prompt_and_nothing_else() -> None:
    first, second = Chat(2).draw(KEY)
    assert set(text(first, 0)) & set(text(second, 0)) == set(words(Piece("system", 32)))


def test_the_named_share_goes_on_and_the_others_ask_once() -> None:
    drawn = Chat(4000, 0.3, think=0.001, most_tokens=10**6).draw(KEY)
    on = [session for session in drawn if session.kind == CONTINUING]
    assert len(on) / len(drawn) == pytest.approx(0.3, abs=0.03)
    assert all(len(s.turns) == 1 for s in drawn if s.kind == ONE_SHOT)
    assert sum(len(s.turns) for s in on) / len(on) == pytest.approx(Chat().mean_turns, rel=0.05)
    # A first turn does not tell whether another one comes.
    lengths = {kind: [s.prompt_tokens(0) for s in drawn if s.kind == kind] for kind in (ONE_SHOT, CONTINUING)}
    means = [sum(each) / len(each) for each in lengths.values()]
    assert means[0] == pytest.approx(means[1], rel=0.05)


def test_popularity_of_system_prompts_falls_with_their_rank() -> None:
    drawn = Structured(requests=20_000, systems=10, zipf=1.0).draw(KEY)
    counts = [sum(s.kind == f"system_{rank}" for s in drawn) for rank in range(10)]
    for rank in (1, 4, 9):
        assert counts[0] / counts[rank] == pytest.approx(rank + 1, rel=0.15)
    assert {s.turns[0].form for s in drawn} == set(forms.FORMS)
    first, second = (next(s for s in drawn[at:] if s.kind == "system_0") for at in (0, 100))
    shared = first.turns[0].new[0].tokens
    assert text(first, 0)[:shared] == text(second, 0)[:shared]
    assert set(text(first, 0)[shared:]).isdisjoint(text(second, 0)[shared:])


def test_stretching_changes_the_times_alone() -> None:
    drawn = Chat(5).draw(KEY)
    wide = stretched(drawn, 90.0)
    assert [s.turns[0].due for s in wide] == [90.0 * s.turns[0].due for s in drawn]
    assert stretched(wide, 1 / 90.0)[0].turns[0].new == drawn[0].turns[0].new
    assert (
        output_tokens(wide)
        == output_tokens(drawn)
        == sum(turn.output_tokens for session in drawn for turn in session.turns)
    )
    dues = [session.turns[turn].due for session, turn in in_order(wide)]
    assert dues == sorted(dues)


def row(at_ms: int, ids: list[int], output: int = 10) -> dict[str, Any]:
    return {"timestamp": at_ms, "input_length": 512 * len(ids) - 12, "output_length": output, "hash_ids": ids}


def trace_rows(sessions: int, turns: int = 3) -> list[dict[str, Any]]:
    """Sessions of ``turns`` requests that go on, all behind one common block 0."""
    return [
        row(1000 * (turn * sessions + number), [0, *(1 + number * 10 + at for at in range(turn + 1))])
        for turn in range(turns)
        for number in range(sessions)
    ]


def test_requests_of_a_trace_are_of_one_session_when_they_share_a_rare_block() -> None:
    groups = traces.by_session(trace_rows(150))
    assert sorted(len(group) for group in groups) == [3] * 150
    # Without a block of its own a request stands alone.
    assert len(traces.by_session([row(0, [0]), row(1, [0])])) == 2


def test_a_trace_is_scaled_down_by_whole_sessions() -> None:
    rows = trace_rows(150)
    drawn = traces.draw(rows, KEY, requests=30, length=0.05, most_tokens=1024)
    assert drawn == traces.draw(rows, KEY, requests=30, length=0.05, most_tokens=1024)
    assert len(drawn) == 30
    assert (drawn[0].turns[0].due, drawn[-1].turns[0].due) == (0.0, 1.0)
    own = [session.turns[0].new[1].key for session in drawn]
    assert {own.count(key) for key in own} == {3}
    assert {session.turns[0].new[0] for session in drawn} == {Piece("block/0", 26)}
    assert sorted({session.prompt_tokens(0) for session in drawn}) == [
        round(0.05 * (512 * n - 12)) for n in (2, 3, 4)
    ]


def test_sessions_with_too_long_a_prompt_stay_out_and_too_few_are_an_error() -> None:
    rows = [*trace_rows(150, turns=1), row(10**6, [0, 10**7, *range(10**8, 10**8 + 40)])]
    drawn = traces.draw(rows, KEY, requests=150, length=0.05, most_tokens=100)
    assert all(session.prompt_tokens(0) <= 100 for session in drawn)
    with pytest.raises(ValueError, match="151 were asked for"):
        traces.draw(rows, KEY, requests=151, length=0.05, most_tokens=100)


# ------------------------------------------------------------------------------------------------------ what is simulated


def longest_common(one: list[str], other: list[str]) -> int:
    return next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


@settings(max_examples=10)
@given(seed=st.integers(0, 99))
def test_a_pool_without_end_finds_what_was_said_before_in_whole_blocks(seed: int) -> None:
    drawn = stretched(Chat(12, 0.6, think=0.05).draw((seed,)), 60.0)
    seen: list[list[str]] = []
    hits, tokens = 0, 0
    for session, turn in in_order(drawn):
        asked = text(session, turn)
        whole = max((longest_common(asked, one) for one in seen), default=0)
        hits += whole // simulation.BLOCK_TOKENS * simulation.BLOCK_TOKENS
        tokens += len(asked)
        seen.append(asked + words(session.answer(turn)))
    found = simulation.simulate(drawn, 4096)
    assert found.prompt_tokens == tokens
    assert found.hit_share["unlimited"] == pytest.approx(hits / tokens)
    assert found.first_tokens == tokens - hits


def test_the_optimum_is_above_lru_and_a_small_pool_finds_less() -> None:
    drawn = stretched(Chat(80).draw(KEY), 60.0)
    small, large = (simulation.simulate(drawn, pool, warm=0.25) for pool in (2048, 4096))
    for found in (small, large):
        assert found.hit_share["lru"] < found.hit_share["belady"] <= found.hit_share["unlimited"]
        assert found.gap() == pytest.approx(found.hit_share["belady"] - found.hit_share["lru"])
    assert small.hit_share["lru"] < large.hit_share["lru"]
    assert small.live_over_pool == pytest.approx(2 * large.live_over_pool)
    table = simulation.table({"chat": small}).splitlines()
    assert table[1].split()[0] == "chat"
    assert len(table[1].split()) == len(table[0].split())


def test_what_is_live_is_what_will_be_asked_for_again() -> None:
    turns = tuple(Turn(at, (Piece(f"own/{at}", 16),), 16) for at in (0.0, 2.0))
    twice = Session("s", CONTINUING, turns)
    once = Session("o", ONE_SHOT, (Turn(1.0, (Piece("once", 32),), 16),))
    found = simulation.simulate([twice, once], 160)
    # 16 + 16 tokens are live after the first and the second request, none after the third.
    assert found.live_over_pool == pytest.approx((32 + 32 + 0) / 3 / 160)
    assert found.distinct_over_pool == pytest.approx((4 * 16 + 48) / 160)
    assert found.hit_share["unlimited"] == pytest.approx(32 / (16 + 32 + 48))


# ------------------------------------------------------------------------------------------------ what is an answer

SESSION = Session("s", CONTINUING, (Turn(0.0, (Piece("a", 2),), 3), Turn(1.0, (Piece("b", 1),), 3)))
FORMED = Session("f", "system_0", (Turn(0.0, (Piece("a", 2),), 3, forms.FORMS[2]),))


def event(said: str, ids: list[int], done: int, reason: str | None = None, **more: Any) -> bytes:
    info: dict[str, Any] = {"id": "r", "completion_tokens": done, "prompt_tokens": 2, "cached_tokens": 1}
    info |= {"finish_reason": reason and {"type": reason}, **more}
    return b"data: " + json.dumps({"text": said, "output_ids": ids, "meta_info": info}).encode()


DONE = b"data: [DONE]"
GOOD = [event("x", [7], 1), event("yz", [8, 9], 3, "length"), DONE]


def read(lines: list[bytes], session: Session = SESSION) -> tuple[client.Answer, list[int]]:
    events = [(float(at + 1), line) for at, line in enumerate(lines)]
    return client.read(session, 0, "r", ((0.5, 0.7), [1, 2], events, 9.0))


def test_an_answer_tells_its_times_and_tokens() -> None:
    one, tokens = read(GOOD)
    assert tokens == [7, 8, 9]
    assert (one.ttft_s, one.sent_s, one.end_s) == (0.5, 0.7, 9.0)
    assert (one.prompt_tokens, one.cached_tokens) == (2, 1)
    assert (one.output_tokens, one.cut, one.retractions) == (3, False, 0)
    assert one.digest == read([event("xyz", [7, 8, 9], 3, "length"), DONE])[0].digest
    assert one.digest != read([event("xyz", [7, 8, 8], 3, "length"), DONE])[0].digest


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [DONE],
        GOOD[:-1],
        [event("x", [7], 3, "length"), DONE],
        [event("x", [7, 8], 2, "length"), DONE],
        [event("x", [7, 8, 9], 3, "stop"), DONE],
        [event("x", [7, 8, 9], 3, "abort"), DONE],
        [event("x", [7, 8, 9], 3), DONE],
        [event("x", [7, 8, 9], 3, "length", id="other"), DONE],
        [event("x", [7, 8, 9], 3, "length", prompt_tokens=3), DONE],
        [b'data: {"error": {"message": "no"}}', DONE],
    ],
)
def test_what_is_not_one_whole_answer_is_an_error(lines: list[bytes]) -> None:
    with pytest.raises(LoadError):
        read(lines)


def test_an_answer_of_a_form_has_it_or_is_cut() -> None:
    assert not read([event("AB-1234", [7, 8], 2, "stop"), DONE], FORMED)[0].cut
    assert read([event("AB-1", [7, 8, 9], 3, "length"), DONE], FORMED)[0].cut
    with pytest.raises(LoadError):
        read([event("AB-1", [7, 8], 2, "stop"), DONE], FORMED)


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        (forms.FORMS[0], '{"verdict": "no", "score": 07}', '{"verdict": "no", "score": 7}'),
        (forms.FORMS[1], '{"label": "news", "urgent": true}', '{"label": "news"}'),
        (forms.FORMS[2], "QX-0042", "qx-0042"),
        (forms.FORMS[3], '{ "action":"wait", "to":"bank" }', '{"action": "wait", "to": "moon"}'),
    ],
)
def test_a_form_tells_what_has_it(form: forms.Form, good: str, bad: str) -> None:
    assert form.holds(good)
    assert not form.holds(bad)
    assert not form.holds("{")
    assert len(form.sampling()) == 1


def test_a_request_is_greedy_and_says_how_it_ends() -> None:
    plain = client.body_of(SESSION, 0, [1, 2], "r")
    assert plain["input_ids"] == [1, 2]
    assert plain["sampling_params"] == {"temperature": 0.0, "max_new_tokens": 3, "ignore_eos": True}
    formed = client.body_of(FORMED, 0, [1, 2], "r")["sampling_params"]
    assert (formed["regex"], "ignore_eos" in formed) == (forms.FORMS[2].regex, False)


# ------------------------------------------------------------------------------------------------ figures and claims


def answer(at_s: float, ttft_s: float, prompt: int, cached: int, *, digest: int = 1) -> client.Answer:
    session = Session(f"s{at_s}", ONE_SHOT, (Turn(at_s, (Piece("a", prompt),), 4),))
    return client.Answer(
        session,
        0,
        at_s,
        at_s + 0.1,
        at_s + ttft_s,
        at_s + 2 * ttft_s,
        prompt,
        cached,
        4,
        0,
        cut=False,
        digest=digest,
    )


def sample(
    load: str, arm: str, number: int, answers: list[client.Answer], *, warm_s: float = 0.0, first: int = 0
) -> measures.Sample:
    made = measures.sample_of(answers, {"evicted_tokens": 3, "other": 0}, warm_s, first)
    made = {"round": number, "workload": load, "arm": arm, **made}
    return json.loads(json.dumps(made))


def test_the_first_part_of_a_load_is_sent_and_not_counted() -> None:
    answers = [answer(6.0, 1.0, 100, 60), answer(1.0, 9.0, 500, 0), answer(5.0, 3.0, 100, 20)]
    one = sample("chat", "lru_rust", 0, answers, warm_s=5.0, first=90)
    figures = measures.figures_of([one, one])
    assert one["due_s"] == [1.0, 5.0, 6.0]
    assert one["counters"] == {"evicted_tokens": 3}
    assert (figures["requests"], figures["computed_tokens"], figures["hit_share"]) == (4, 240, 0.4)
    assert figures["computed_again_tokens"] == 240 - 2 * 90
    assert (figures["ttft_p50_s"], figures["ttft_p90_s"]) == (2.0, 3.0)
    # All answers have come after 19 s, of which 5 are not counted.
    assert (figures["total_s"], figures["latest_send_s"]) == (14.0, 0.1)
    assert figures["tokens_per_s"] == pytest.approx((200 + 8) / 14)


def test_no_fewer_tokens_than_none_are_computed_again() -> None:
    one = sample("chat", "lru_rust", 0, [answer(0.0, 1.0, 100, 60)], first=45)
    assert measures.computed_again([one]) == 0


def samples_of(figures: dict[tuple[str, str], list[tuple[float, int]]]) -> list[measures.Sample]:
    """For each load and arm, time to the first token and cached tokens of 1000, one for each round."""
    return [
        sample(load, arm, number, [answer(0.0, ttft_s, 1000, cached)])
        for (load, arm), rounds in figures.items()
        for number, (ttft_s, cached) in enumerate(rounds)
    ]


def test_a_claim_is_a_ratio_of_the_same_rounds() -> None:
    # Rounds differ fivefold, the arms by the same ratio in each of them.
    samples = samples_of(
        {
            ("chat", "entropic"): [(0.5, 200), (2.5, 600)],
            ("chat", "lru_python"): [(1.0, 0), (5.0, 500)],
            ("chat", "lru_rust"): [(0.5, 200), (2.5, 600)],
        }
    )
    made, beside, missing = claims.claims_of(samples, seed=1)
    values = {one.name: one for one in made}
    assert missing == []
    assert set(values) == {
        "evict_server_recompute_vs_lru",
        "evict_server_ttft_p90_vs_lru",
        "evict_server_recompute_vs_lru_rust",
        "evict_server_ttft_p90_vs_lru_rust",
    }
    recompute, ttft = values["evict_server_recompute_vs_lru"], values["evict_server_ttft_p90_vs_lru"]
    assert [recompute.value, recompute.low, recompute.high] == pytest.approx([0.8, 0.8, 0.8])
    assert (recompute.bar, recompute.ok) == ("<= 0.85", True)
    assert (ttft.value, ttft.bar, ttft.ok) == (pytest.approx(0.5), "<= 0.9", True)
    assert values["evict_server_recompute_vs_lru_rust"].value == pytest.approx(1.0)
    assert not values["evict_server_recompute_vs_lru_rust"].ok
    of_chat = beside["entropic_vs_lru_python"]["chat"]
    assert of_chat["equal_answers_share"] == [1.0]
    assert of_chat["computed_tokens"] == pytest.approx([0.8, 0.8, 0.8])


def test_loads_are_joined_by_their_geometric_mean() -> None:
    samples = samples_of(
        {
            ("chat", "entropic"): [(1.0, 800)],
            ("chat", "lru_python"): [(1.0, 200)],
            ("trace", "entropic"): [(1.0, 500)],
            ("trace", "lru_python"): [(1.0, 500)],
        }
    )
    made, beside, missing = claims.claims_of(samples, seed=1)
    assert made[0].value == pytest.approx(math.sqrt(200 / 800))
    assert set(beside["entropic_vs_lru_python"]) == {"chat", "trace"}
    assert [reason.partition(":")[0] for reason in missing] == [
        "evict_server_recompute_vs_lru_rust",
        "evict_server_ttft_p90_vs_lru_rust",
    ]


def test_arms_of_other_rounds_are_not_compared() -> None:
    samples = samples_of(
        {
            ("chat", "entropic"): [(1.0, 1)],
            ("chat", "lru_python"): [(1.0, 1), (1.0, 1)],
            ("chat", "lru_rust"): [],
        }
    )
    made, _, missing = claims.claims_of(samples, seed=1)
    assert made == []
    assert "rounds of entropic and lru_python" in missing[0]


def test_answers_are_compared_token_by_token() -> None:
    pair = [
        sample("chat", "a", 0, [answer(0.0, 1.0, 9, 1, digest=d), answer(1.0, 1.0, 9, 1)]) for d in (1, 2)
    ]
    assert measures.equal_answers(pair[:1], pair[:1]) == 1.0
    assert measures.equal_answers(pair[:1], pair[1:]) == 0.5


def test_the_table_shows_every_load_and_arm() -> None:
    content = claims.tables(
        samples_of({("trace", "entropic"): [(1.0, 1)], ("chat", "lru_rust"): [(2.0, 250)]})
    )
    lines = [line.split()[:4] for line in claims.table(content).splitlines()[1:]]
    assert lines == [["chat", "lru_rust", "0.2500", "750"], ["trace", "entropic", "0.0010", "999"]]


# ------------------------------------------------------------------------------------------------ arms, command line


def log(core: str) -> str:
    return f"Init Unified Radix Cache. Components: [<ComponentType.FULL: 'full'>]. Tree Core: {core}\nready\n"


def test_an_arm_has_its_tree_and_no_other() -> None:
    assert servers.require_core("lru_rust", log("RustUnifiedTreeCore")) == "RustUnifiedTreeCore"
    assert servers.require_core("lru_python", log("UnifiedTreeCore")) == "UnifiedTreeCore"
    assert servers.require_core("entropic", log("SomeCoreOfOurs")) == "SomeCoreOfOurs"
    for arm, core in (
        ("lru_rust", "UnifiedTreeCore"),
        ("lru_python", "RustUnifiedTreeCore"),
        ("entropic", "UnifiedTreeCore"),
        ("entropic_gravity", "RustUnifiedTreeCore"),
    ):
        with pytest.raises(servers.ArmError):
            servers.require_core(arm, log(core))
    with pytest.raises(servers.ArmError):
        servers.require_core("lru_rust", "no such line")


def test_our_policy_has_to_act_in_its_arms_and_nowhere_else() -> None:
    servers.require_acted("entropic", {"evicted_tokens": 4, "held_rows": 0})
    servers.require_acted("lru_rust", {"evicted_tokens": 0, "held_rows": 2})
    for arm, count in (("entropic", 0), ("lru_python", 1)):
        with pytest.raises(servers.ArmError):
            servers.require_acted(arm, {"evicted_tokens": count})


@pytest.mark.parametrize(
    "arguments",
    [
        ["--workloads", "trace"],
        ["--rounds", "0"],
        ["--load", "0"],
        ["--pace", "100", "0"],
        ["--warm", "1"],
        ["--chat-continuing", "1.5"],
        ["--pool-tokens", "2000"],
    ],
)
def test_contradictions_are_refused(arguments: list[str], capsys) -> None:
    with pytest.raises(SystemExit):
        eviction_server.checked(eviction_server.parser(), arguments)
    assert "error:" in capsys.readouterr().err


def test_without_more_ours_is_beside_both_trees_on_the_loads_that_need_no_file() -> None:
    options = eviction_server.checked(eviction_server.parser(), [])
    assert options.arms == ["lru_rust", "lru_python", "entropic"]
    assert options.workloads == ["chat", "structured"]
    assert eviction_server.settings_of(options)["arms"]["lru_python"].startswith(f"{servers.BACKEND}=python ")


def test_a_load_takes_the_time_in_which_lru_has_the_named_work() -> None:
    options = eviction_server.checked(
        eviction_server.parser(), ["--chat-sessions", "30", "--rounds", "1", "--load", "0.5", "--warm", "0"]
    )
    loads = runner.Loads(options)
    sessions, seconds = loads.of("chat", 0, runner.Pace(1000.0, 100.0))
    work = loads.simulated(sessions).computed_tokens["lru"] / 1000.0 + output_tokens(sessions) / 100.0
    assert seconds == pytest.approx(work / 0.5)
    assert max(turn.due for session in sessions for turn in session.turns) <= seconds
    faster, half = loads.of("chat", 0, runner.Pace(2000.0, 200.0))
    assert half == pytest.approx(seconds / 2)
    assert [replace(s, turns=()) for s in faster] == [replace(s, turns=()) for s in sessions]


def test_the_simulation_of_several_rounds_is_their_mean() -> None:
    options = eviction_server.checked(
        eviction_server.parser(),
        ["--simulate", "--chat-sessions", "20", "--rounds", "2", "--workloads", "chat"],
    )
    each = eviction_server.simulated(options).simulated["chat"]
    mean = runner.simulated_table({"chat": each})["chat"]
    assert len(each) == 2
    assert mean.hit_share["lru"] == pytest.approx(sum(one.hit_share["lru"] for one in each) / 2)
