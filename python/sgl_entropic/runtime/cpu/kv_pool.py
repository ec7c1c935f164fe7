"""A KV pool that takes its memory as slots are first used, and in which the slots of a KV head lie side by side."""

from __future__ import annotations

import math

import numpy as np
import torch
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool


class LazyKVPool(MHATokenToKVPool):
    """SGLang's pool; only where its zeros come from, and where a number lies, differs.

    ``torch.zeros`` writes every page of a CPU tensor, so that a pool of gigabytes is resident before the first request.
    Memory fresh from the system reads as zero without being written.

    Buffers have SGLang's shape ``[slots, kv_heads, head_dim]``, but heads come first in memory: where each head reads blocks of
    its own, rows of the others between them would be fetched in vain.
    """

    def _create_buffers_normal(self) -> None:
        k_shape, v_shape = self._kv_buffer_shapes()
        if self.kv_cache_layout != "nhd" or torch.device(self.device).type != "cpu":
            super()._create_buffers_normal()
            return
        self.k_buffer = [_zeros(k_shape, self.store_dtype) for _ in range(self.layer_num)]
        self.v_buffer = [_zeros(v_shape, self.store_dtype) for _ in range(self.layer_num)]


def _zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    slots, heads, width = shape
    octets = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(octets).view(dtype).view(heads, slots, width).permute(1, 0, 2)
