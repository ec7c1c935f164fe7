"""One request's pruning and what it came to; lives on its state and survives retraction."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgl_entropic.attention.pruning import Pruning, Reading
from sgl_entropic.attention.selection import QueryChoice
from sgl_entropic.attention.settings import AttentionSettings
from sgl_entropic.request_params import RequestParams
from sgl_entropic.runtime.active_config import active_config
from sgl_entropic.runtime.attention.cost import ReadCost
from sgl_entropic.runtime.attention.settings import settings_of

MASS_MEMORY = 0.5
"""Share of the earlier masses that is kept when blocks are measured anew."""


@dataclass(frozen=True, slots=True)
class Read:
    """What the step of one output token read of its context.

    Attributes:
        tokens: the mean over layers.
        context_tokens: all of them.
        blocks_scored: blocks that each KV head of each layer chose from by its query.
        choosing_bytes: read of what stands for their keys.
    """

    tokens: float
    context_tokens: int
    blocks_scored: int = 0
    choosing_bytes: int = 0

    @property
    def ratio(self) -> float:
        """Share of the context."""
        return self.tokens / self.context_tokens


@dataclass(slots=True)
class RequestPruning:
    """A request whose attention may be pruned.

    Attributes:
        policy: decides step by step.
        mass: ``[layers, blocks]`` attention that each block received when it was last measured, and before.
        reads: by output index; ``None`` for a token that no decode step of ours computed.
        prompt_surprisal_nats: of the prompt's tokens, fetched from the device once; later tokens' come with their readings.
        keys: what stands for the blocks of the request's keys, where it chooses by its query; the backend's own.
        marked: whether the request's cache has been withheld from the prefix tree.
    """

    policy: Pruning
    mass: NDArray[np.float32] | None = None
    reads: list[Read | None] = field(default_factory=list)
    prompt_surprisal_nats: NDArray[np.float32] | None = None
    keys: Any = None
    marked: bool = False

    def note(self, output_index: int, read: Read) -> None:
        """Keep what the step of ``output_index`` reads; a step that is taken again counts once."""
        del self.reads[output_index:]
        self.reads.extend([None] * (output_index - len(self.reads)))
        self.reads.append(read)

    def restart(self, output_tokens: int) -> None:
        """The request is computed anew from its beginning, with so many tokens of its answer: what was known is gone.

        A step under way when it gave up its memory is discarded, so what that read does not count.
        """
        self.policy.restart()
        self.release()
        del self.reads[output_tokens:]

    def release(self) -> None:
        """Give back what choosing blocks needs; the reads stay for the report."""
        self.keys = self.mass = self.prompt_surprisal_nats = None

    def read_all(self, context_tokens: int) -> None:
        """The step last noted read everything."""
        self.reads[-1] = Read(float(context_tokens), context_tokens)

    def read_at(self, output_index: int) -> Read | None:
        """What the step of ``output_index`` read, if a decode step computed it."""
        return self.reads[output_index] if output_index < len(self.reads) else None

    def measured(self, mass: NDArray[np.float32]) -> None:
        """Take in the attention that each block received in a step that read all, ``[layers, blocks]``."""
        if self.mass is not None:
            # New blocks have no past.
            known = min(self.mass.shape[1], mass.shape[1])
            mass = mass.copy()
            mass[:, :known] = MASS_MEMORY * self.mass[:, :known] + (1 - MASS_MEMORY) * mass[:, :known]
        self.mass = mass

    def report(self, output_tokens: int, cost: ReadCost | None) -> dict[str, Any]:
        """For the response: what was realised, over the decode steps of ``output_tokens`` tokens."""
        reads = [read for read in self.reads[:output_tokens] if read is not None]
        context = sum(read.context_tokens for read in reads)
        read = sum(r.tokens for r in reads)
        return {
            "policy": self.policy.settings.policy,
            "keep_ratio": round(read / context, 6) if context else None,
            "pruned_steps": sum(r.tokens < r.context_tokens for r in reads),
            "decode_steps": len(reads),
            "spikes": self.policy.spikes,
            **({} if cost is None else _avoided(cost, context - read, sum(r.choosing_bytes for r in reads))),
        }


def _avoided(cost: ReadCost, tokens: float, choosing_bytes: int) -> dict[str, int]:
    return {
        "kv_bytes_avoided": cost.bytes_avoided(tokens, choosing_bytes),
        "flops_avoided": cost.flops_avoided(tokens),
    }


def read_of(reading: Reading, length: int, settings: AttentionSettings, cost: ReadCost) -> Read:
    """What a step with this ``reading`` reads of ``length`` tokens."""
    selection = reading.selection
    if selection is None:
        return Read(float(length), length)
    tokens = selection.tokens(length, settings.block_tokens)
    if not isinstance(selection, QueryChoice):
        return Read(tokens, length)
    return Read(tokens, length, selection.blocks, cost.choosing_bytes(selection.blocks, settings))


def pruning_of(req: Any, params: RequestParams) -> RequestPruning | None:
    """Pruning of a ``Req`` of SGLang with these parameters; ``None`` where it reads all of its context."""
    config = active_config().attention
    if not config.enabled or getattr(req, "beam_group", None) is not None:
        return None
    settings = settings_of(params, config, req.vocab_size)
    return None if settings is None else RequestPruning(Pruning(settings))
