"""What a token of context costs a decode step, from the model and its KV pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_BYTES_OF_BLOCK_KEYS = 2  # bfloat16


@dataclass(frozen=True, slots=True)
class ReadCost:
    """Costs of one decode step of one request.

    Attributes:
        bytes_per_token: keys and values of a token, all layers.
        flops_per_token: of attending to it: two products of every query head, each a multiplication and an addition.
        bytes_per_block: of what stands for a block where each KV head of each layer chooses by its query (its mean key).
    """

    bytes_per_token: float
    flops_per_token: int
    bytes_per_block: int

    @classmethod
    def of(cls, model_config: Any, pool: Any, page_size: int) -> ReadCost:
        """Read from SGLang's ``ModelConfig`` and KV pool; the shares of one tensor-parallel rank are not told apart."""
        layers, head_dim = model_config.num_hidden_layers, model_config.head_dim
        size = pool.get_kv_size_bytes()
        total = sum(size) if isinstance(size, tuple) else size
        return cls(
            bytes_per_token=total / (pool.size + max(page_size, 1)),
            flops_per_token=4 * layers * model_config.num_attention_heads * head_dim,
            bytes_per_block=layers * model_config.num_key_value_heads * head_dim * _BYTES_OF_BLOCK_KEYS,
        )

    def bytes_avoided(self, tokens: float, blocks_scored: int) -> int:
        """Bytes not read for ``tokens`` tokens left out, less those read to choose among so many blocks."""
        return round(tokens * self.bytes_per_token) - blocks_scored * self.bytes_per_block

    def flops_avoided(self, tokens: float) -> int:
        """Floating-point operations not done for ``tokens`` tokens left out."""
        return round(tokens * self.flops_per_token)
