"""What is known of the token in each KV slot, kept beside the KV pool.

A slot that the radix tree shares is one slot here too, so a prefix-cache hit inherits its readings and a node split
needs nothing. Slots are recycled without being cleared: every forward pass writes the slots that it fills, in stream
order, before anybody can read them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class SlotStore:
    """Per-slot and per-request readings on the device; NaN means unknown.

    Attributes:
        surprisal_nats: ``[slots]`` float32, ``-ln p(x)`` of the token whose key and value lie in the slot.
        entropy_nats: ``[slots]`` float32, entropy of the distribution over the token that *follows* the slot's token.
        pending_surprisal_nats: ``[rows]`` float32, surprisal of the token that a request will write next. It is known
            one step before the token has a slot: when the token is sampled, or at the end of a prompt chunk.
    """

    surprisal_nats: torch.Tensor
    entropy_nats: torch.Tensor
    pending_surprisal_nats: torch.Tensor

    @classmethod
    def allocate(cls, slots: int, rows: int, device: torch.device | str) -> SlotStore:
        """A store for ``slots`` KV slots and ``rows`` request rows, all unknown."""

        def unknown(size: int) -> torch.Tensor:
            return torch.full((size,), float("nan"), dtype=torch.float32, device=device)

        return cls(unknown(slots), unknown(slots), unknown(rows))

    @property
    def nbytes(self) -> int:
        """Bytes held on the device."""
        return sum(t.nbytes for t in (self.surprisal_nats, self.entropy_nats, self.pending_surprisal_nats))

    def settle(self, slots: torch.Tensor, rows: torch.Tensor) -> None:
        """Give the pending surprisals of ``rows`` [B] to the ``slots`` [B] that their tokens have just been written to."""
        self.surprisal_nats[slots] = self.pending_surprisal_nats[rows]

    def prompt_readings(self, slots: torch.Tensor) -> torch.Tensor:
        """Readings of consecutive tokens in ``slots`` [n] as ``[2, n]``: surprisal, and the entropy each was drawn at.

        The entropy row is shifted by one: a token is drawn from the distribution *after* its predecessor, and the
        first token from none (NaN), so both rows speak of the same token.
        """
        surprisal = self.surprisal_nats[slots]
        entropy = torch.full_like(surprisal, float("nan"))
        entropy[1:] = self.entropy_nats[slots[:-1]]
        return torch.stack((surprisal, entropy))
