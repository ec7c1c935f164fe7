"""What the simulated server is: its costs in ms and its limits in tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Costs:
    """Milliseconds of a forward pass.

    Defaults: a model of 135M parameters in int8 on two CPU cores.

    Attributes:
        prefill_fixed_ms: of a prefill pass, whatever is in it.
        prefill_token_ms: of an uncached token.
        prefill_pair_ms: of an uncached token, for each token of the context it ends in.
        decode_fixed_ms: of a decode step.
        decode_row_ms: of a request in it.
        decode_context_ms: of a token of context in it.
    """

    prefill_fixed_ms: float = 5.0
    prefill_token_ms: float = 1.0
    prefill_pair_ms: float = 0.0
    decode_fixed_ms: float = 5.0
    decode_row_ms: float = 1.4
    decode_context_ms: float = 0.0006

    def slower(self, factor: float) -> Costs:
        """The costs of a machine on which everything takes ``factor`` times as long."""
        return Costs(**{field.name: factor * getattr(self, field.name) for field in fields(self)})

    def prefill_ms(self, uncached: int, context: int) -> float:
        """Of one request in a pass, without the pass's fixed part."""
        return uncached * (self.prefill_token_ms + self.prefill_pair_ms * context)

    def step_ms(self, rows: int, context: int) -> float:
        """Of a decode step of ``rows`` requests with ``context`` tokens in all."""
        return self.decode_fixed_ms + self.decode_row_ms * rows + self.decode_context_ms * context

    def steps_ms(self, steps: int, rows: int, context: int) -> float:
        """Of ``steps`` decode steps in a row; the context grows by ``rows`` with each."""
        return steps * self.step_ms(rows, context) + self.decode_context_ms * rows * steps * (steps - 1) / 2

    def steps_within(self, ms: float, rows: int, context: int) -> int:
        """Fewest decode steps, at least 1, that last ``ms`` or longer."""
        first, growth = self.step_ms(rows, context), self.decode_context_ms * rows
        if growth <= 0:
            return max(1, math.ceil(ms / first - 1e-9)) if first > 0 else 1 << 60
        half = first - growth / 2
        guess = (math.sqrt(half * half + 2 * growth * max(ms, 0.0)) - half) / growth
        return max(1, math.ceil(guess - 1e-9))


@dataclass(frozen=True, slots=True)
class Machine:
    """One SGLang engine.

    Attributes:
        costs: milliseconds of its forward passes.
        pool_tokens: KV slots.
        most_running: ``--max-running-requests``.
        most_prefill_tokens: ``--max-prefill-tokens``.
        chunk_tokens: ``--chunked-prefill-size``.
        first_ratio: SGLang's ``new_token_ratio`` at the start.
        least_ratio: what it decays to.
        decay_steps: over how many decode steps.
        clip_tokens: most tokens that admission expects of an answer.
        retract_steps: decode steps that a retraction makes room for.
        overlaps: whether what a pass has computed is read after the next one has run, as SGLang's overlap
            schedule does: every token is seen a pass late, and who has ended takes part in a decode step more.
    """

    costs: Costs = Costs()
    pool_tokens: int = 65_536
    most_running: int = 16
    most_prefill_tokens: int = 16_384
    chunk_tokens: int = 2_048
    first_ratio: float = 0.7
    least_ratio: float = 0.098
    decay_steps: int = 600
    clip_tokens: int = 4_096
    retract_steps: int = 20
    overlaps: bool = False


# Numbers that a command line may set.
LIMITS = tuple(field.name for field in fields(Machine) if field.name not in ("costs", "overlaps"))
