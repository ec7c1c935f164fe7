"""What a token of context costs a decode step, from the model and its KV pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sgl_entropic.attention.settings import AttentionSettings

_BOUNDS_BYTES = 2 * 2  # the least and the largest, bfloat16
_CODE_BYTES = 2 / 8
_SCALE_BYTES = 2 * 4 / 256  # a mean and a step, float32, for 256 tokens


def asked_numbers(head_dim: int) -> int:
    """Of the numbers of a key those that ``mixed`` asks for: three eighths of the fours, rounded up."""
    return 4 * -(-3 * (head_dim // 4) // 8)


@dataclass(frozen=True, slots=True)
class ReadCost:
    """Costs of one decode step of one request.

    Attributes:
        bytes_per_token: keys and values of a token, all layers.
        flops_per_token: of attending to it: two products of every query head, each a multiplication and an addition.
        numbers_per_key: of all layers and KV heads.
        asked_per_key: of these, those whose codes ``mixed`` reads.
    """

    bytes_per_token: float
    flops_per_token: int
    numbers_per_key: int
    asked_per_key: int

    @classmethod
    def of(cls, model_config: Any, pool: Any, page_size: int) -> ReadCost:
        """Read from SGLang's ``ModelConfig`` and KV pool; the shares of one tensor-parallel rank are not told apart."""
        layers, head_dim = model_config.num_hidden_layers, model_config.head_dim
        heads = layers * model_config.num_key_value_heads
        size = pool.get_kv_size_bytes()
        total = sum(size) if isinstance(size, tuple) else size
        return cls(
            bytes_per_token=total / (pool.size + max(page_size, 1)),
            flops_per_token=4 * layers * model_config.num_attention_heads * head_dim,
            numbers_per_key=heads * head_dim,
            asked_per_key=heads * asked_numbers(head_dim),
        )

    def choosing_bytes(self, blocks: int, settings: AttentionSettings) -> int:
        """Bytes read where each KV head of each layer chooses among so many blocks by its query."""
        if settings.policy == "quest":
            return blocks * _BOUNDS_BYTES * self.numbers_per_key
        of_token = _CODE_BYTES * self.asked_per_key + _SCALE_BYTES * self.numbers_per_key
        return round(blocks * settings.block_tokens * of_token)

    def bytes_avoided(self, tokens: float, choosing_bytes: int) -> int:
        """Bytes not read for ``tokens`` tokens left out, less those read to choose."""
        return round(tokens * self.bytes_per_token) - choosing_bytes

    def flops_avoided(self, tokens: float) -> int:
        """Floating-point operations not done for ``tokens`` tokens left out."""
        return round(tokens * self.flops_per_token)
