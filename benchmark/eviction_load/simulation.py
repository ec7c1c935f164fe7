"""The same loads through the policies of ``sgl_entropic.replay``: what a policy could gain at all, before a server runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from eviction_load.sessions import Piece, Session, in_order
from sgl_entropic.replay import arms, surprisal
from sgl_entropic.replay.cache import replay
from sgl_entropic.replay.outcome import Outcome
from sgl_entropic.replay.prefill import PrefillCost
from sgl_entropic.replay.trace import NEVER, Trace, build

BLOCK_TOKENS = 16
POLICIES = ("lru", "slru", "t-lru", "ours", "belady")
UNLIMITED = "unlimited"
TLRU_TOKENS = 256
"""Uncached tokens that T-LRU takes a first token to be in time with, for prompts of a few hundred."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """What came of one load.

    Attributes:
        prompt_tokens: of the counted requests.
        hit_share: share of them found cached, by policy; ``unlimited`` is a pool that holds everything.
        computed_tokens: of all requests, also those not counted, by policy.
        first_tokens: of the counted prompts, those that no pool could hold: seen for the first time.
        live_over_pool: tokens that are asked for again later, the mean over the counted requests, over the pool.
        distinct_over_pool: all tokens of the load, equal ones once, over the pool.
    """

    prompt_tokens: int
    hit_share: dict[str, float]
    computed_tokens: dict[str, int]
    first_tokens: int
    live_over_pool: float
    distinct_over_pool: float

    def gap(self) -> float:
        """What the optimum finds beyond LRU, of what is asked for."""
        return self.hit_share["belady"] - self.hit_share["lru"]


def trace_of(sessions: Sequence[Session]) -> Trace:
    """The requests in blocks; a request leaves prompt and answer in the cache, and asks for the prompt alone."""
    names: dict[str, int] = {}
    blocks: dict[tuple[tuple[int, int], ...], int] = {}
    rows, prompts = [], []
    for session, turn in in_order(sessions):
        prompt = session.prompt(turn)
        tokens = [
            (names.setdefault(piece.key, len(names)), at)
            for piece in (*prompt, session.answer(turn))
            for at in range(piece.tokens)
        ]
        ids = [
            blocks.setdefault(tuple(tokens[at : at + BLOCK_TOKENS]), len(blocks))
            for at in range(0, len(tokens), BLOCK_TOKENS)
        ]
        prompts.append(_length(prompt))
        rows.append(
            {
                "timestamp": 1000.0 * session.turns[turn].due,
                "input_length": len(tokens),
                "output_length": session.turns[turn].output_tokens,
                "hash_ids": ids,
            }
        )
    made = build(rows, BLOCK_TOKENS)
    asked = zip(made.requests, prompts, strict=True)
    return replace(made, requests=tuple(replace(one, input_tokens=tokens) for one, tokens in asked))


def simulate(
    sessions: Sequence[Session],
    pool_tokens: int,
    *,
    warm: float = 0.0,
    running: int = 4,
    seed: int = 0,
    policies: Sequence[str] = POLICIES,
) -> Simulated:
    """Replay ``sessions``, whose times are in seconds, under each policy.

    Args:
        sessions: the load.
        pool_tokens: size of the pool.
        warm: share of the span at whose requests nothing is counted.
        running: requests that hold their path at a time.
        seed: of synthetic surprisal.
        policies: which.
    """
    trace = trace_of(sessions)
    settings = arms.ArmSettings(PrefillCost(), tlru_threshold_tokens=TLRU_TOKENS, seed=seed)
    made = arms.factories(trace, surprisal.synthetic(trace, seed), settings)
    span_s = max(request.at_s for request in trace.requests)
    skip = sum(request.at_s < warm * span_s for request in trace.requests)
    pool = pool_tokens // BLOCK_TOKENS
    share: dict[str, float] = {}
    computed: dict[str, int] = {}

    def run(name: str, policy: str, blocks: int) -> Outcome:
        whole = replay(trace, made[policy](), blocks, running=running)
        counted = replay(trace, made[policy](), blocks, running=running, skip=skip) if skip else whole
        share[name] = counted.hit_tokens / counted.tokens
        computed[name] = whole.tokens - whole.hit_tokens
        return counted

    for name in policies:
        run(name, name, pool)
    unlimited = run(UNLIMITED, "lru", max(pool, len(trace.parent)))
    return Simulated(
        unlimited.tokens,
        share,
        computed,
        unlimited.tokens - unlimited.hit_tokens,
        _live_tokens(trace, skip) / pool_tokens,
        sum(trace.tokens) / pool_tokens,
    )


def _live_tokens(trace: Trace, skip: int) -> float:
    """Mean over requests, without the first ``skip``, of the tokens that have been asked for and will be again."""
    live, total = 0, 0
    counted = [False] * len(trace.parent)
    for number, (request, uses) in enumerate(zip(trace.requests, trace.next_uses(), strict=True)):
        for node, following in zip(request.path, uses, strict=True):
            again = following != NEVER
            live += (again - counted[node]) * trace.tokens[node]
            counted[node] = again
        total += live if number >= skip else 0
    return total / (len(trace.requests) - skip)


def _length(pieces: Sequence[Piece]) -> int:
    return sum(piece.tokens for piece in pieces)


def table(found: dict[str, Simulated]) -> str:
    """For people; distinct and live tokens are in pools, the rest are shares of prompt tokens."""
    names = [*POLICIES, UNLIMITED]
    lines = [
        f"{'load':12}{'distinct':>10}{'live':>8}" + "".join(f"{name:>11}" for name in names) + f"{'gap':>8}"
    ]
    for load, one in found.items():
        cells = "".join(f"{one.hit_share[name]:11.4f}" for name in names)
        lines.append(
            f"{load:12}{one.distinct_over_pool:10.2f}{one.live_over_pool:8.2f}{cells}{one.gap():8.4f}"
        )
    return "\n".join(lines)
