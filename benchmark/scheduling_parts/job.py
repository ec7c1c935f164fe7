"""One request on its way through an engine."""

from __future__ import annotations

import math

from scheduling_parts.requests import Requests


class Job:
    """A request, waiting or running. Attributes are the engine's; a policy reads them.

    Attributes:
        index: place in the order of arrival.
        client: number of its client; -1 if there is one alone.
        ids: ids of the blocks of its prompt; the last may be its own alone.
        sizes: their tokens.
        flow_nats: its flow of entropy once it generates; ``None`` if flows are left out.
        generated: tokens generated so far.
        cached: leading tokens found in the cache when it was last matched.
        locked: blocks of it that it reads.
        private: slots that are its own.
        missing: tokens of its context that a chunked prefill has yet to compute.
        queued_ms: when it was last queued.
        queued_clock: the token clock then.
        queued_prefill: the count of prefilled tokens then.
        held_steps: decode steps it has been left out of in a row.
        contexts_again: tokens of its context at every start after a retraction, cached or not.
        overtaken: work of later arrivals that was started while it waited, tokens to compute and to generate.
        memo: whatever the policy keeps with it.
    """

    __slots__ = (
        "arrival_ms",
        "arrived_clock",
        "cached",
        "client",
        "contexts_again",
        "done_ms",
        "first_ms",
        "flow_nats",
        "generated",
        "held_steps",
        "ids",
        "ignores_eos",
        "index",
        "locked",
        "longest_wait_ms",
        "longest_wait_tokens",
        "memo",
        "missing",
        "most_new",
        "output",
        "overtaken",
        "private",
        "prompt",
        "queued_clock",
        "queued_ms",
        "queued_prefill",
        "recomputed",
        "retractions",
        "route",
        "shared",
        "sizes",
        "uncached",
    )

    def __init__(self, requests: Requests, index: int) -> None:
        self.index = index
        self.arrival_ms = self.queued_ms = float(requests.arrival_ms[index])
        self.prompt, self.output = int(requests.prompt[index]), int(requests.output[index])
        self.most_new = int(requests.most_new[index])
        self.ignores_eos = bool(requests.ignores_eos[index])
        self.client = int(requests.client[index]) if requests.clients > 1 else -1
        self.route = int(requests.route[index])
        self.flow_nats = None if requests.flow_nats is None else float(requests.flow_nats[index])
        self.ids, self.sizes = _chain(requests, index, self.prompt)
        self.shared = len(requests.blocks(index))
        self.generated = self.cached = self.private = self.missing = self.uncached = 0
        self.locked: tuple[int, ...] = ()
        self.arrived_clock = self.queued_clock = self.queued_prefill = self.held_steps = 0
        self.overtaken = self.retractions = self.recomputed = self.longest_wait_tokens = (
            self.contexts_again
        ) = 0
        self.first_ms = self.done_ms = math.nan
        self.longest_wait_ms = 0.0
        self.memo: object = None

    @property
    def context(self) -> int:
        """Tokens of its prompt and answer so far."""
        return self.prompt + self.generated

    @property
    def remaining(self) -> int:
        """Tokens it has yet to generate; only an oracle may look."""
        return self.output - self.generated

    def held_prefix(self, blocks: int) -> int:
        """Tokens of its first ``blocks`` blocks; one token is always computed."""
        whole = self.prompt if blocks == len(self.ids) else sum(self.sizes[:blocks])
        return min(whole, self.context - 1)


def _chain(requests: Requests, index: int, prompt: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    ids, size, left = requests.blocks(index), requests.block_tokens, prompt
    sizes = []
    for _ in ids:
        sizes.append(min(size, left))
        left -= sizes[-1]
    if sizes and sizes[-1] <= 0:
        raise ValueError(f"request {index} has {len(ids)} blocks of {size} in a prompt of {prompt} tokens")
    if left:
        # text that no other request has
        return (*ids, -1 - index), (*sizes, left)
    return ids, tuple(sizes)
