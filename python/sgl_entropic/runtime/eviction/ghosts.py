"""Evicted nodes, remembered by the tokens of their path, so that a path that returns is known to return.

A ghost lies at the hash of all tokens ahead of it. That hash is of the tokens alone and not of how the path was cut into
nodes, so a path that comes back in one piece finds the pieces it was evicted in.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from sgl_entropic.eviction import Visit

_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class Ghost:
    """What is known of a node that was evicted.

    Attributes:
        key: its tokens, as SGLang's ``RadixKey``.
        visit: the request that touched it last.
        group: its group then.
        hits: see ``Facts``.
        continuations: see ``Facts``.
    """

    key: Any
    visit: Visit | None
    group: int
    hits: int
    continuations: int


def hash_of_nothing(key: Any) -> Any:
    """State of the hash ahead of the first token, in the namespace of ``key``."""
    return blake2b(repr((key.extra_key, key.cache_salt)).encode(), digest_size=_DIGEST_BYTES)


def extended(hasher: Any, key: Any) -> Any:
    """State of the hash after the tokens of ``key``."""
    after = hasher.copy()
    after.update(key.raw_token_ids())
    return after


class Ghosts:
    """At most so many tokens; who was evicted first is forgotten first.

    Args:
        most_tokens: that are remembered.
        page_size: SGLang's.
        divided: is told the visit and group of one that is remembered in two parts from now on.
    """

    def __init__(
        self,
        most_tokens: int,
        page_size: int,
        divided: Callable[[Visit, int], None] = lambda visit, group: None,  # noqa: ARG005 -- nobody to tell
    ) -> None:
        self.most_tokens = most_tokens
        self._page = page_size
        self._divided = divided
        self._ghosts: OrderedDict[tuple[bytes, Any], Ghost] = OrderedDict()
        self.tokens = 0

    def __len__(self) -> int:
        return len(self._ghosts)

    def clear(self) -> None:
        """Forget all."""
        self._ghosts.clear()
        self.tokens = 0

    def remember(self, hasher: Any, ghost: Ghost) -> None:
        """``ghost`` was evicted; ``hasher`` is the state of the hash ahead of it."""
        place = (hasher.digest(), ghost.key.child_key(self._page))
        before = self._ghosts.pop(place, None)
        self.tokens += len(ghost.key) - (0 if before is None else len(before.key))
        self._ghosts[place] = ghost
        while self.tokens > self.most_tokens:
            _, forgotten = self._ghosts.popitem(last=False)
            self.tokens -= len(forgotten.key)

    def take(self, hasher: Any, key: Any) -> tuple[Ghost, int] | None:
        """The ghost that ``key`` begins with, and how many of its tokens it has in common with it.

        What they do not have in common stays remembered.

        Args:
            hasher: state of the hash ahead of ``key``.
            key: at least one page of tokens.
        """
        if not self._ghosts:
            return None
        ghost = self._ghosts.pop((hasher.digest(), key.child_key(self._page)), None)
        if ghost is None:
            return None
        self.tokens -= len(ghost.key)
        common = ghost.key.match(key, page_size=self._page)
        if common < len(ghost.key):
            # The rest is what has followed the part in common.
            taken = replace(ghost, key=ghost.key[:common], continuations=1)
            if ghost.visit is not None:
                self._divided(ghost.visit, ghost.group)
            self.remember(extended(hasher, taken.key), replace(ghost, key=ghost.key[common:]))
            return taken, common
        return ghost, common
