"""SGLang's unified prefix cache on the CPU with our tree core in it, and requests as the scheduler would run them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_cache.tree_core_registry import (
    get_tree_core_factory,
    register_tree_core_backend,
)
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from sgl_entropic.eviction import EvictionPolicy, EvictionSettings
from sgl_entropic.runtime.eviction.book import Book
from sgl_entropic.runtime.eviction.tree_core import EntropicTreeCore
from sgl_entropic.trace.counters import Counters

_BACKEND = "entropic-under-test"
_next_book: list[Book] = []


def _build(params: Any, components: dict[Any, Any]) -> EntropicTreeCore:
    return EntropicTreeCore(params, components, _next_book.pop())


@dataclass
class Clock:
    """Moved by hand."""

    now_s: float = 0.0

    def __call__(self) -> float:
        """The time."""
        return self.now_s


@dataclass
class Running:
    """A request that holds its path."""

    tokens: tuple[int, ...]
    lock: Any
    node: int


class Rig:
    """One cache, its pool, its book."""

    def __init__(
        self,
        pool_tokens: int = 512,
        page_size: int = 1,
        ghost_tokens: int = 1_000_000,
        settings: EvictionSettings | None = None,
        gravity: Callable[[], float] = lambda: 0.0,
        readings: Callable[[], Any] = lambda: None,
        backend: str = _BACKEND,
    ) -> None:
        self.page = page_size
        self.pool_tokens = pool_tokens
        self.clock = Clock()
        self.counters = Counters()
        self.book = Book(
            EvictionPolicy(settings), self.clock, self.counters, ghost_tokens, page_size, gravity, readings
        )
        pool: Any = None
        if page_size == 1:
            self.allocator: Any = TokenToKVPoolAllocator(
                pool_tokens, torch.float32, "cpu", pool, need_sort=False
            )
        else:
            self.allocator = PagedTokenToKVPoolAllocator(
                pool_tokens, page_size, torch.float32, "cpu", pool, need_sort=False
            )
        if get_tree_core_factory(_BACKEND) is None:
            register_tree_core_backend(_BACKEND, _build)
        if backend == _BACKEND:
            _next_book.append(self.book)
        self.cache = UnifiedRadixCache(
            CacheInitParams(
                disable=False,
                req_to_token_pool=ReqToTokenPool(4, 4096, "cpu", enable_memory_saver=False),
                token_to_kv_pool_allocator=self.allocator,
                page_size=page_size,
                tree_components=(ComponentType.FULL,),
                tree_core_backend=backend,
            )
        )
        self.core: Any = self.cache.tree_core

    def key(self, tokens: Sequence[int], extra_key: str | None = None) -> RadixKey:
        """SGLang's key of ``tokens``."""
        return RadixKey(array("q", tokens), extra_key)

    def matched(self, tokens: Sequence[int], extra_key: str | None = None) -> tuple[int, int]:
        """Length of the longest cached prefix, and the node that it ends in."""
        result = self.cache.match_prefix(MatchPrefixParams(key=self.key(tokens, extra_key)))
        return result.device_prefix_len, result.last_device_node

    def start(self, tokens: Sequence[int], extra_key: str | None = None) -> Running | None:
        """Admit, compute and publish a request; ``None`` where there is no room."""
        length, node = self.matched(tokens, extra_key)
        lock = self.cache.lock(node)
        self.book.returned(self.core.path_to(node))
        missing = len(tokens) - length
        if missing > self.allocator.available_size():
            self.cache.evict(EvictParams(num_tokens=missing - self.allocator.available_size()))
        fresh = self.allocator.alloc(missing) if missing else torch.empty(0, dtype=torch.int64)
        if fresh is None:
            self.cache.unlock(lock)
            return None
        slots = torch.cat([self.cache.path_device_indices(node), fresh])
        result = self.cache.insert(
            InsertParams(key=self.key(tokens, extra_key), value=slots, prev_prefix_len=length)
        )
        held = self.cache.lock(result.last_device_node)
        self.cache.unlock(lock)
        return Running(tuple(tokens), held, result.last_device_node)

    def end(self, running: Running, prompt_tokens: int | None = None) -> None:
        """The request has ended."""
        self.cache.unlock(running.lock)
        prompt = len(running.tokens) if prompt_tokens is None else prompt_tokens
        self.book.visited(self.core.path_to(running.node), prompt)

    def serve(self, tokens: Sequence[int], extra_key: str | None = None) -> None:
        """Start and end."""
        running = self.start(tokens, extra_key)
        assert running is not None, "no room"
        self.end(running)

    def evict(self, tokens: int) -> int:
        """Evict at least so many tokens, as far as there are any."""
        return self.cache.evict(EvictParams(num_tokens=tokens)).num_tokens_evicted

    def nodes(self) -> list[tuple[tuple[int, ...], Any]]:
        """All nodes but the root, each with the tokens from the root to its end."""
        found = []
        stack = [((), self.core.root_node)]
        while stack:
            ahead, node = stack.pop()
            for child in node.children.values():
                path = (*ahead, *child.key.raw_token_ids())
                found.append((path, child))
                stack.append((path, child))
        return found
