"""The KV pool and the prefix cache in it: shared blocks with reference counts, the unused evicted least recently used first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class PrefixCache:
    """KV slots of one engine.

    A slot is locked (a running request reads it), evictable (a cached block that none reads) or free. A block stands for
    its text from the very beginning of a prompt, so a chain of blocks is matched block by block, as in a radix tree.

    Args:
        pool_tokens: KV slots there are.
    """

    def __init__(self, pool_tokens: int) -> None:
        self.pool_tokens = pool_tokens
        self.locked_tokens = 0
        self.evictable_tokens = 0
        # block -> [tokens, readers]
        self._blocks: dict[int, list[int]] = {}
        self._unused: OrderedDict[int, None] = OrderedDict()

    @property
    def available_tokens(self) -> int:
        """Slots that are free or can be made so."""
        return self.pool_tokens - self.locked_tokens

    def match(self, ids: Sequence[int]) -> tuple[int, int]:
        """Leading blocks of ``ids`` that are cached: how many, and their tokens."""
        blocks, count, tokens = self._blocks, 0, 0
        for one in ids:
            block = blocks.get(one)
            if block is None:
                break
            count += 1
            tokens += block[0]
        return count, tokens

    def read_by_others(self, ids: Sequence[int]) -> int:
        """Of blocks that a job has locked, how many leading ones others have locked too."""
        count = 0
        for one in ids:
            if self._blocks[one][1] < 2:
                break
            count += 1
        return count

    def lock(self, ids: Sequence[int]) -> None:
        """Count a reader more for cached blocks."""
        for one in ids:
            block = self._blocks[one]
            if block[1] == 0:
                del self._unused[one]
                self.evictable_tokens -= block[0]
                self.locked_tokens += block[0]
            block[1] += 1

    def unlock(self, ids: Sequence[int]) -> None:
        """Count a reader less; blocks without readers stay until their room is needed, the deepest go first."""
        for one in reversed(ids):
            block = self._blocks[one]
            block[1] -= 1
            if block[1] == 0:
                self._unused[one] = None
                self.evictable_tokens += block[0]
                self.locked_tokens -= block[0]

    def take(self, tokens: int) -> None:
        """Allocate slots for one request alone, evicting what must go.

        Raises:
            RuntimeError: there are not so many.
        """
        self.locked_tokens += tokens
        if self.locked_tokens + self.evictable_tokens > self.pool_tokens:
            self._evict()

    def give(self, tokens: int) -> None:
        """Free slots that were taken."""
        self.locked_tokens -= tokens

    def publish(self, ids: Sequence[int], sizes: Sequence[int]) -> None:
        """Turn slots that were taken into locked blocks that others match; those already there are merged."""
        for one, size in zip(ids, sizes, strict=True):
            block = self._blocks.get(one)
            if block is None:
                self._blocks[one] = [size, 1]
                continue
            # computed twice: our slots are freed, theirs are read
            self.locked_tokens -= size
            if block[1] == 0:
                del self._unused[one]
                self.evictable_tokens -= block[0]
                self.locked_tokens += block[0]
            block[1] += 1

    def _evict(self) -> None:
        if self.locked_tokens > self.pool_tokens:
            raise RuntimeError(f"{self.locked_tokens} slots are in use, the pool has {self.pool_tokens}")
        over = self.locked_tokens + self.evictable_tokens - self.pool_tokens
        while over > 0:
            one, _ = self._unused.popitem(last=False)
            size = self._blocks.pop(one)[0]
            self.evictable_tokens -= size
            over -= size
