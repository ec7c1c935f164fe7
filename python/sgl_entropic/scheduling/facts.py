"""What a scheduling decision may look at. Filled in by the scheduler process or by a simulator, read by the policy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """One request, waiting or running.

    Token counts only, no clocks: ranks that see the same requests decide alike.

    Attributes:
        key: request id.
        arrival: place in the order of arrival; unique. A retracted request keeps its own.
        prompt_tokens: tokens of the prompt.
        generated_tokens: tokens generated so far; more than 0 in a waiting request that was retracted.
        cached_tokens: leading tokens whose keys and values exist already (waiting: matched prefix).
        max_new_tokens: most tokens it may generate.
        ignores_eos: it generates exactly ``max_new_tokens``.
        priority: the user's; larger goes first, whatever else holds. 0 unless the server schedules by priority.
        client: who asks, for fairness; ``None`` when unknown.
        route: kind of request whose lengths resemble one another (``chat``, ``completion``, ``generate``...).
        flow_nats: mean positive drop of entropy for each of its own tokens; ``None`` before the first.
        prefix_surprisal_nats: mean surprisal of the matched prefix; ``None`` when unknown.
        arrived_at_tokens: reading of the server's token clock when it arrived: prompt tokens computed and tokens decoded
            by the server since its start.
        waits_since_tokens: reading of the token clock when it was last queued (its arrival, or its retraction).
        held_steps: decode steps it has been left out of in a row; 0 while it waits.
        tier: gravity tier of its last token, larger where the text is more decided; 0 where that is not known.
        deferred: it would compute a prefix that an earlier request of the queue computes now, and find it cached later.
    """

    key: str
    arrival: int
    prompt_tokens: int
    max_new_tokens: int
    generated_tokens: int = 0
    cached_tokens: int = 0
    ignores_eos: bool = False
    priority: int = 0
    client: str | None = None
    route: str = ""
    flow_nats: float | None = None
    prefix_surprisal_nats: float | None = None
    arrived_at_tokens: int = 0
    waits_since_tokens: int = 0
    held_steps: int = 0
    deferred: bool = False
    tier: int = 0

    @property
    def context_tokens(self) -> int:
        """Tokens in its context: prompt and answer so far."""
        return self.prompt_tokens + self.generated_tokens

    @property
    def uncached_tokens(self) -> int:
        """Tokens to be computed before it generates its next."""
        return max(1, self.context_tokens - self.cached_tokens)

    @property
    def most_remaining_tokens(self) -> int:
        """Most tokens it can still generate."""
        return max(0, self.max_new_tokens - self.generated_tokens)


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The server at the moment of a decision.

    Attributes:
        token_clock: prompt tokens computed and tokens decoded since the start.
        decode_steps: decode steps since the start.
        pool_tokens: KV slots of the pool.
        free_tokens: slots that are free or hold only cached prefixes that may be evicted.
        most_running: most requests that may run at a time.
    """

    token_clock: int
    decode_steps: int
    pool_tokens: int
    free_tokens: int
    most_running: int
