"""What one replay counted."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sgl_entropic.replay.prefill import PrefillCost
from sgl_entropic.replay.trace import Request


@dataclass(slots=True)
class Outcome:
    """Sums over the counted requests.

    Attributes:
        blocks: blocks asked for.
        hit_blocks: of these, found cached.
        tokens: prompt tokens asked for.
        hit_tokens: of these, found cached.
        prompts: new and cached tokens of each request.
    """

    blocks: int = 0
    hit_blocks: int = 0
    tokens: int = 0
    hit_tokens: int = 0
    prompts: list[tuple[int, int]] = field(default_factory=list)

    def count(self, request: Request, matched_blocks: int, matched_tokens: int) -> None:
        """Add one request."""
        self.blocks += len(request.path)
        self.hit_blocks += matched_blocks
        self.tokens += request.input_tokens
        self.hit_tokens += matched_tokens
        self.prompts.append((request.input_tokens - matched_tokens, matched_tokens))

    def figures(self, cost: PrefillCost) -> dict[str, float]:
        """Shares, tokens computed again and first-token times, by name."""
        first_ms = np.array([cost.prompt_ms(new, cached) for new, cached in self.prompts] or [0.0])
        return {
            "hit_blocks_share": self.hit_blocks / max(1, self.blocks),
            "hit_tokens_share": self.hit_tokens / max(1, self.tokens),
            "computed_tokens": self.tokens - self.hit_tokens,
            "ttft_mean_ms": float(first_ms.mean()),
            "ttft_p90_ms": float(np.percentile(first_ms, 90)),
        }
