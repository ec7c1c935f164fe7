"""Host facts of one forward pass that the tensors alone do not tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from sgl_entropic.runtime.request_state import RequestState, state_of


@dataclass(frozen=True, slots=True)
class RowFacts:
    """One request of an extend or mixed batch.

    Attributes:
        state: the request's state.
        fresh: first forward pass since the request was matched against the prefix cache.
        inherited_slot: 0-d tensor, the KV slot in the tree that holds the request's first recomputed token; ``None``
            when that token has no known slot.
        recomputed_tokens: cached tokens that run through the model again, see :mod:`.prefix_boundary`.
        next_token: the prompt token after this chunk, or ``None`` when the chunk is the prompt's last.
        prompt_tokens: prompt tokens whose readings are to be fetched after this pass, 0 for none.
    """

    state: RequestState
    fresh: bool
    inherited_slot: torch.Tensor | None
    recomputed_tokens: int
    next_token: int | None
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class StepContext:
    """The rows of an extend or mixed batch, aligned with ``batch.reqs``; the last ``decoding_rows`` only decode along."""

    rows: tuple[RowFacts, ...]
    decoding_rows: int = 0


def read_rows(batch: Any, tree_cache: Any) -> StepContext:
    """Collect the facts of an extend or mixed ``ScheduleBatch`` and mark its requests as under way."""
    rows = tuple(_row(req, tree_cache) for req in batch.reqs)
    return StepContext(rows, len(getattr(batch, "decoding_reqs", None) or ()))


def _row(req: Any, tree_cache: Any) -> RowFacts:
    state = state_of(req)
    fresh, state.fresh = state.fresh, False
    inherited, recomputed = None, 0
    if fresh and state.boundary_given_back:
        # The path is locked by the request from admission to its next checkpoint, so the slot cannot be recycled.
        path: torch.Tensor = tree_cache.path_device_indices(req.last_node)
        recomputed = len(path) - req.prefix_len
        inherited = path[req.prefix_len] if recomputed > 0 else None
    filled = req.full_untruncated_fill_ids
    # A decode row of a mixed batch has its whole sequence filled: its next token is the sampled one.
    next_token = int(filled[req.extend_end]) if req.extend_end < len(filled) else None
    wants_prompt = state.params.return_prompt_surprisal and not state.prompt_fetched and next_token is None
    state.prompt_fetched |= wants_prompt
    return RowFacts(
        state, fresh, inherited, recomputed, next_token, len(req.origin_input_ids) if wants_prompt else 0
    )
