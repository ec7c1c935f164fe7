"""A KV pool whose memory is taken from the system as slots are first used, not all at once at start."""

from __future__ import annotations

import math

import numpy as np
import torch
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool


class LazyKVPool(MHATokenToKVPool):
    """SGLang's pool; only where its zeros come from differs.

    ``torch.zeros`` writes every page of a CPU tensor, so that a pool of gigabytes is resident before the first request.
    Memory fresh from the system reads as zero without being written.
    """

    def _create_buffers_normal(self) -> None:
        k_shape, v_shape = self._kv_buffer_shapes()
        if self.kv_cache_layout != "nhd" or torch.device(self.device).type != "cpu":
            super()._create_buffers_normal()
            return
        self.k_buffer = [_zeros(k_shape, self.store_dtype) for _ in range(self.layer_num)]
        self.v_buffer = [_zeros(v_shape, self.store_dtype) for _ in range(self.layer_num)]


def _zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    octets = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(octets).view(dtype).view(shape)
