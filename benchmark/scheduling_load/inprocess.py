"""What is measured of the policy without a server: what a pass costs, and how well it foresees lengths."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.stats import kendalltau

from scheduling_load.asks import limit_of
from scheduling_load.measures import Sample
from scheduling_load.workloads import ANSWERS, PROMPTS
from sgl_entropic.scheduling import EntropicPolicy, RemainingBelief, RequestFacts, ServerFacts

WAITING = 1000
SHARES = (0.0, 0.25, 0.5)
_NEW_EACH_PASS = 8
_TOKENS_EACH_PASS = 64
_HISTORY = 400
# As the server tells the policy apart: an answer that a grammar ends, or any other.
_HIDDEN, _PLAIN = "grammar", ""


def _facts(rng: np.random.Generator, first: int, count: int, clock: int) -> list[RequestFacts]:
    prompts, answers = PROMPTS.draw(rng, count).tolist(), ANSWERS.draw(rng, count).tolist()
    return [
        RequestFacts(
            key=str(first + i),
            arrival=first + i,
            prompt_tokens=prompts[i],
            max_new_tokens=limit_of(answers[i]),
            cached_tokens=prompts[i] // 2 if i % 3 == 0 else 0,
            ignores_eos=i % 2 == 0,
            route=_PLAIN if i % 2 == 0 else _HIDDEN,
            arrived_at_tokens=clock,
            waits_since_tokens=clock,
        )
        for i in range(count)
    ]


def rank_ms(seed: int, passes: int = 200) -> list[float]:
    """Ms of each of ``passes`` orders of :data:`WAITING` requests; between two, a few leave and others come."""
    rng = np.random.default_rng(seed)
    policy = EntropicPolicy()
    for one in _facts(rng, 1_000_000, _HISTORY, 0):
        ended = replace(one, generated_tokens=max(1, one.max_new_tokens // 3))
        policy.observe_finished(ended, hit_limit=one.ignores_eos)
    waiting = _facts(rng, 0, WAITING, 0)
    taken = []
    for number in range(passes):
        clock = (number + 1) * _TOKENS_EACH_PASS
        server = ServerFacts(clock, number, 16_384, 4_096, 16)
        begin = time.perf_counter()
        places = policy.order(waiting, server)
        taken.append(1000 * (time.perf_counter() - begin))
        gone = set(places[:_NEW_EACH_PASS])
        # The same objects: the server makes facts of a waiting request anew only when something of it changed.
        stay = [one for at, one in enumerate(waiting) if at not in gone]
        for at in gone:
            policy.observe_started(waiting[at], stay, server)
        first = WAITING + number * _NEW_EACH_PASS
        waiting = [*stay, *_facts(rng, first, _NEW_EACH_PASS, clock)]
    return taken


def foreseen(samples: Sequence[Sample]) -> dict[str, float]:
    """Kendall's tau-b between expected and true remaining tokens of answers of hidden length, by share of the answer.

    The belief learns as in the server: of every answer only those count that had ended before it was asked. The samples
    are of one server in the order in which they were measured, between which it keeps what it has learnt.
    """
    belief = RemainingBelief()
    expected: dict[float, list[float]] = {share: [] for share in SHARES}
    true: dict[float, list[float]] = {share: [] for share in SHARES}
    for sample in samples:
        rows = _rows(sample)
        events = [(asked_s, 1, at) for at, (asked_s, _, _, _) in enumerate(rows)]
        events += [(end_s, 0, at) for at, (_, end_s, _, _) in enumerate(rows)]
        for _, asks, at in sorted(events):
            _, _, facts, length = rows[at]
            if not asks:
                belief.observe_finished(facts, length, hit_limit=facts.ignores_eos)
            elif not facts.ignores_eos:
                for share in SHARES:
                    done = int(share * length)
                    expected[share].append(belief.expected(replace(facts, generated_tokens=done)))
                    true[share].append(length - done)
    found = {f"{share:g}": float(kendalltau(expected[share], true[share]).statistic) for share in SHARES}
    return {share: round(value, 4) for share, value in found.items() if np.isfinite(value)}


def _rows(sample: Sample) -> list[tuple[float, float, RequestFacts, int]]:
    """When each was asked and ended, what a scheduler knew of it, and its true length."""
    names = ("asked_s", "latency_s", "prompt_tokens", "most_new", "hidden", "output_tokens")
    rows = []
    for at, row in enumerate(zip(*(sample[name] for name in names), strict=True)):
        asked_s, latency_s, prompt, most_new, hidden, length = row
        facts = RequestFacts(
            key=str(at),
            arrival=at,
            prompt_tokens=prompt,
            max_new_tokens=most_new,
            ignores_eos=not hidden,
            route=_HIDDEN if hidden else _PLAIN,
        )
        rows.append((asked_s, asked_s + latency_s, facts, length))
    return rows
