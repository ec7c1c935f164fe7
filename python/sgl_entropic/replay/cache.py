"""A prefix cache in blocks: what is resident, what may go, and the replay of a trace through it.

A block may be evicted when it is a leaf of the resident tree and no request that is being served ends in it: blocks ahead of
such an end have a resident block behind them, so they cannot go either. Every block of a served request is cached.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from sgl_entropic.errors import ConfigError
from sgl_entropic.replay.outcome import Outcome
from sgl_entropic.replay.policy import Policy
from sgl_entropic.replay.trace import Request, Trace


class Cache:
    """The resident tree.

    Args:
        trace: where the tree's shape is known from.
        policy: chooses among the leaves that may go; hears of every change.
        pool_blocks: most blocks that are resident at a time.
    """

    def __init__(self, trace: Trace, policy: Policy, pool_blocks: int) -> None:
        self.pool_blocks = pool_blocks
        self.used_blocks = 0
        self.resident = bytearray(len(trace.parent))
        self._parent = trace.parent
        self._children = [0] * len(trace.parent)
        self._pins = [0] * len(trace.parent)
        self._block_tokens = trace.block_tokens
        self._short: dict[int, int] = {}
        self._policy = policy

    def matched(self, path: tuple[int, ...]) -> int:
        """Leading blocks of ``path`` that are resident."""
        for place, node in enumerate(path):
            if not self.resident[node]:
                return place
        return len(path)

    def found_tokens(self, request: Request, matched: int) -> int:
        """Tokens of the prompt that lie in its first ``matched`` blocks, which are resident.

        Only the last of them can be a block that was shorter when it was computed: what has a block behind it is whole.
        """
        if not matched:
            return 0
        tokens = self._short.get(request.path[matched - 1], self._block_tokens)
        if matched == len(request.path):
            tokens = min(tokens, request.last_tokens)
        return min(request.input_tokens, (matched - 1) * self._block_tokens + tokens)

    def lengthen(self, request: Request, matched: int) -> None:
        """The prompt has been computed: its blocks, of which ``matched`` were resident, are as long as it shows them."""
        path = request.path
        if matched and matched < len(path):
            self._short.pop(path[matched - 1], None)
        # What has just been inserted is whole unless it is put down here.
        known = self._short.get(path[-1], self._block_tokens if matched == len(path) else 0)
        if max(known, request.last_tokens) < self._block_tokens:
            self._short[path[-1]] = max(known, request.last_tokens)
        else:
            self._short.pop(path[-1], None)

    def may_go(self, node: int) -> bool:
        """Whether ``node`` could be evicted now."""
        return bool(self.resident[node]) and not self._children[node] and not self._pins[node]

    def pin(self, node: int) -> None:
        """A request ends in ``node``, or waits for the rest of its path behind it."""
        self._pins[node] += 1
        self._policy.stays(node)

    def unpin(self, node: int) -> None:
        """That request has ended."""
        self._pins[node] -= 1
        if self.may_go(node):
            self._policy.may_go(node)

    def make_room(self, blocks: int) -> bool:
        """Evict until ``blocks`` more fit; tell whether they do."""
        while self.used_blocks + blocks > self.pool_blocks:
            node = self._policy.victim()
            if node is None:
                return False
            assert self.may_go(node), "a policy chose a block that has to stay"
            self.resident[node] = 0
            self.used_blocks -= 1
            self._short.pop(node, None)
            parent = self._parent[node]
            if parent >= 0:
                self._children[parent] -= 1
                if self.may_go(parent):
                    self._policy.may_go(parent)
        return True

    def insert(self, node: int) -> None:
        """``node`` has been computed; its parent is resident."""
        self.resident[node] = 1
        self.used_blocks += 1
        parent = self._parent[node]
        if parent >= 0:
            self._children[parent] += 1
            self._policy.stays(parent)


def check_pool(trace: Trace, pool_blocks: int) -> None:
    """Fail before a replay rather than in it.

    Raises:
        ConfigError: a request alone is larger than the pool.
    """
    largest = max(range(len(trace.requests)), key=lambda number: len(trace.requests[number].path))
    blocks = len(trace.requests[largest].path)
    if blocks > pool_blocks:
        raise ConfigError(
            f"a pool of {pool_blocks} blocks cannot hold request {largest + 1} of the trace, which has {blocks}"
        )


def replay(
    trace: Trace,
    policy: Policy,
    pool_blocks: int,
    *,
    running: int = 1,
    skip: int = 0,
    step: Callable[[], None] = lambda: None,
) -> Outcome:
    """Serve all requests in order and tell what was found cached.

    Args:
        trace: the requests.
        policy: a fresh one.
        pool_blocks: size of the pool.
        running: requests that hold their path at a time; fewer when the pool is too small for so many.
        skip: requests at the beginning that warm the cache and are not counted.
        step: called after each request.

    Raises:
        ConfigError: a request alone is larger than the pool.
    """
    check_pool(trace, pool_blocks)
    cache, outcome, held = Cache(trace, policy, pool_blocks), Outcome(), deque[int]()
    for number, request in enumerate(trace.requests):
        matched, found_tokens = _serve(cache, policy, number, request, held)
        while len(held) >= running:
            cache.unpin(held.popleft())
        if number >= skip:
            outcome.count(request, matched, found_tokens)
        step()
    return outcome


def _serve(cache: Cache, policy: Policy, number: int, request: Request, held: deque[int]) -> tuple[int, int]:
    path = request.path
    if not path:
        return 0, 0
    matched = cache.matched(path)
    found_tokens = cache.found_tokens(request, matched)
    policy.asks(request)
    if matched:
        cache.pin(path[matched - 1])
    while not cache.make_room(len(path) - matched):
        # The pool is too small for so many at a time: the oldest ends first.
        cache.unpin(held.popleft())
    for node in path[matched:]:
        cache.insert(node)
    cache.lengthen(request, matched)
    policy.served(number, request, matched)
    cache.pin(path[-1])
    held.append(path[-1])
    if matched:
        cache.unpin(path[matched - 1])
    return matched, found_tokens
