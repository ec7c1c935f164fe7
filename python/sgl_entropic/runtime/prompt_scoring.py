"""Surprisal and entropy of newly computed prompt tokens, from the hidden states that the prefill already holds.

Only the new tokens' rows pass through the LM head, a bounded number at a time, so the full logits never exist at once;
cached tokens keep the readings of their slots.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from sgl_entropic.entropy.row_statistics import RowStatistics, row_statistics, token_surprisal
from sgl_entropic.runtime.slots import SlotStore
from sgl_entropic.runtime.step_context import RowFacts

TargetStatistics = Callable[[torch.Tensor, torch.Tensor], "tuple[RowStatistics, torch.Tensor] | None"]
"""``(hidden_states [n, hidden], targets [n])`` to the rows' statistics and their targets' logits, or ``None``."""


@dataclass(frozen=True, slots=True)
class ExtendLayout:
    """Where the scored rows of a flattened extend batch come from and go to; host lists, one entry a scored row.

    Attributes:
        rows: index into the flattened tokens of the row whose logits are taken.
        carried: positions in ``rows`` whose target lies in the next chunk; that target's surprisal is carried over.
        carried_requests: index of the request of each entry of ``carried``.
        carried_targets: token id of each entry of ``carried``.
    """

    rows: list[int]
    carried: list[int]
    carried_requests: list[int]
    carried_targets: list[int]

    @classmethod
    def of(cls, extend_lens: list[int], facts: tuple[RowFacts, ...]) -> ExtendLayout:
        """Lay out a batch of ``extend_lens`` new tokens a request.

        Every row is scored but the last one of a prompt's final chunk: what follows it is sampled, and the sampler
        measures that.
        """
        layout = cls([], [], [], [])
        start = 0
        for index, (length, fact) in enumerate(zip(extend_lens, facts, strict=True)):
            layout.rows.extend(range(start, start + length - 1))
            if fact.next_token is not None:
                layout.carried.append(len(layout.rows))
                layout.carried_requests.append(index)
                layout.carried_targets.append(fact.next_token)
                layout.rows.append(start + length - 1)
            start += length
        return layout


def first_tokens(store: SlotStore, facts: tuple[RowFacts, ...], rows: torch.Tensor) -> None:
    """Set the pending surprisal of requests that are fresh: inherited from the tree, or unknown for a first token.

    Args:
        store: the slot store.
        facts: the requests of the batch.
        rows: ``[B]`` request rows on the device.
    """
    fresh = [index for index, fact in enumerate(facts) if fact.fresh]
    if not fresh:
        return
    store.pending_surprisal_nats[rows[fresh]] = float("nan")
    inherits = [index for index in fresh if facts[index].inherited_slot is not None]
    if inherits:
        slots = torch.stack(
            [slot for fact in facts if fact.fresh and (slot := fact.inherited_slot) is not None]
        )
        store.pending_surprisal_nats[rows[inherits]] = store.surprisal_nats[slots.long()]


def score(  # noqa: PLR0913 -- the tensors of one batch, all by name
    store: SlotStore,
    layout: ExtendLayout,
    *,
    hidden_states: torch.Tensor,
    input_ids: torch.Tensor,
    slots: torch.Tensor,
    request_rows: torch.Tensor,
    logits_of: Callable[[torch.Tensor], torch.Tensor],
    chunk_rows: int,
    statistics_of: TargetStatistics | None = None,
) -> None:
    """Write surprisal and entropy of the scored rows to their slots.

    Args:
        store: written in place.
        layout: which rows to score.
        hidden_states: ``[T, hidden]`` final hidden states of the new tokens.
        input_ids: ``[T]`` new tokens.
        slots: ``[T]`` their KV slots.
        request_rows: ``[B]`` request rows.
        logits_of: the LM head, ``[n, hidden] -> [n, vocab]``.
        chunk_rows: rows that pass through the LM head at once.
        statistics_of: the LM head without its logits, where it can do that.
    """
    if not layout.rows:
        return
    device = hidden_states.device
    rows = torch.tensor(layout.rows, device=device)
    # The row after a scored row holds its target, except where the target lies in the next chunk.
    following = (rows + 1).clamp_max_(len(input_ids) - 1)
    targets = input_ids[following].long()
    carried = torch.tensor(layout.carried, device=device, dtype=torch.long)
    targets[carried] = torch.tensor(layout.carried_targets, device=device, dtype=torch.long)
    surprisal = torch.empty(len(rows), dtype=torch.float32, device=device)
    for begin in range(0, len(rows), chunk_rows):
        part = rows[begin : begin + chunk_rows]
        wanted = targets[begin : begin + chunk_rows]
        read = _read_statistics(statistics_of, hidden_states[part], wanted)
        if read is None:
            read = _read_logits(logits_of(hidden_states[part]), wanted)
        store.entropy_nats[slots[part]] = read[0]
        surprisal[begin : begin + chunk_rows] = read[1]
    carried_surprisal = surprisal[carried]
    within = torch.ones(len(rows), dtype=torch.bool)
    within[layout.carried] = False
    inside = within.nonzero(as_tuple=True)[0].to(device)
    store.surprisal_nats[slots[following[inside]]] = surprisal[inside]
    requests = torch.tensor(layout.carried_requests, device=device, dtype=torch.long)
    store.pending_surprisal_nats[request_rows[requests]] = carried_surprisal


def _read_statistics(
    statistics_of: TargetStatistics | None, hidden_states: torch.Tensor, targets: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Entropy and target surprisal of each row by the fused LM head; ``None`` where the logits are needed."""
    if statistics_of is None:
        return None
    found = statistics_of(hidden_states, targets)
    if found is None:
        return None
    statistics, target_logits = found
    return statistics.entropy_nats, statistics.log_partition - (target_logits - statistics.max_logit)


def _read_logits(logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    statistics = row_statistics(logits)
    unknown = float("nan")
    # Placeholders of images and audio are hashes outside the vocabulary: no distribution speaks of them.
    known = statistics.valid & (targets >= 0) & (targets < logits.shape[-1])
    surprisal = token_surprisal(logits, statistics, targets.clamp(0, logits.shape[-1] - 1))
    return torch.where(statistics.valid, statistics.entropy_nats, unknown), torch.where(
        known, surprisal, unknown
    )
