"""SGLang's Python tree core with another order of eviction, and facts on its nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeCore
from sglang.srt.mem_cache.unified_cache.unified_tree_core_interface import EvictDeviceNextNodeResult

from sgl_entropic.errors import UnsupportedError
from sgl_entropic.runtime.eviction.book import Book
from sgl_entropic.runtime.eviction.table import LeafSet
from sgl_entropic.runtime.eviction.walk import Walk


class EntropicTreeCore(UnifiedTreeCore):
    """Evicts by :class:`.book.Book`.

    Args:
        params: SGLang's.
        components: SGLang's; full attention only.
        book: facts and policy of this tree.
    """

    def __init__(self, params: Any, components: dict[Any, Any], book: Book) -> None:
        others = sorted(kind.name.lower() for kind in components if kind is not ComponentType.FULL)
        if others:
            raise UnsupportedError(
                f"--entropic-eviction on is not available with this model: its cache also keeps {', '.join(others)} state, "
                "which SGLang evicts by rules of its own; use --entropic-eviction off"
            )
        self.book = book
        # Called before a walk.
        self.before_ranking: Callable[[], None] = lambda: None
        self._walk: Walk | None = None
        super().__init__(params, components)

    def reset(self) -> None:
        """As SGLang's; nothing is known of the new tree's nodes."""
        self._walk = None
        self.book.cleared()
        super().reset()
        self.evictable_device_leaves = LeafSet(self.book.table)

    def path_to(self, node_id: int | None) -> list[Any]:
        """Nodes from the first one to ``node_id``, without the root; none where it is not in the tree."""
        node = None if node_id is None else self._node_arena.get(node_id)
        path = []
        while node is not None and node is not self.root_node:
            path.append(node)
            node = node.parent
        path.reverse()
        return path

    # -------------------------------------------------------------------------------------------------- new nodes

    def begin_insert(self, params: Any) -> Any:
        """As SGLang's, noting what is new."""
        return self._noted(super().begin_insert(params))

    def resume_insert(self) -> Any:
        """As SGLang's, noting what is new."""
        return self._noted(super().resume_insert())

    def _noted(self, step: Any) -> Any:
        if step.result is not None:
            node = self.node_by_id(step.result.last_device_node)
            if node is not self.root_node and not self.book.table.facts(node).placed:
                self._place(node)
        return step

    def _place(self, node: Any) -> None:
        """Cut a new node where the path was cut before it was evicted: its parts have histories of their own."""
        book = self.book
        while (taken := book.ghosts.take(book.hash_ahead_of(node), node.key)) is not None:
            ghost, tokens = taken
            if tokens == len(node.key):
                book.revived(node, ghost)
                return
            upper, _ = self._split_node(node.key, node, tokens)
            book.revived(upper, ghost)
        book.born(node)

    def _split_node(self, key: Any, child: Any, split_len: int) -> Any:
        new_node, action = super()._split_node(key, child, split_len)
        self.book.divided(new_node, child)
        return new_node, action

    # --------------------------------------------------------------------------------------------------- eviction

    def evict_device_start(self, component_type: Any, request_cnt: int) -> None:
        """Rank all nodes once."""
        assert component_type is ComponentType.FULL, component_type
        self.before_ranking()
        self._walk = Walk(self.book, request_cnt)

    def evict_device_next_node(self, component_type: Any, tracker: dict[Any, int]) -> Any:
        """The next victim."""
        assert self._walk is not None, "no eviction under way"
        result = EvictDeviceNextNodeResult()
        if tracker.get(component_type, 0) < self._walk.most_tokens:
            node = self._walk.next()
            if node is not None:
                result.node_id, result.made_progress = node.id, True
        return result

    def evict_device_leaf(self, node_id: int, is_write_back: bool) -> Any:  # noqa: FBT001 -- SGLang's signature
        """As SGLang's; what is known of the node outlives it."""
        node = self.node_by_id(node_id)
        result = super().evict_device_leaf(node_id, is_write_back)
        self.book.evicted(node)
        return result

    def evict_device_end(self, component_type: Any) -> None:  # noqa: ARG002 -- SGLang's signature
        """Count what was evicted."""
        walk, self._walk = self._walk, None
        if walk is not None:
            walk.end()
