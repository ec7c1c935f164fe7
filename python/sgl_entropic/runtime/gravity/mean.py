"""The mean hidden state, which is subtracted before states are compared: from a file, or learnt by the server."""

from __future__ import annotations

import torch

_LARGEST = 1e6
"""Numbers of a hidden state are far below it; what is not is left out of the mean."""


class MeanVector:
    """A mean that is fixed, or is that of the first ``wanted`` states and then fixed.

    Args:
        values: ``[hidden]`` float32 on the device.
        wanted: states to learn from, 0 for a mean that is known.

    Attributes:
        values: the mean so far.
        rows: states learnt from. Counted on the host, so that nobody waits for the device.
        wanted: as above.
    """

    def __init__(self, values: torch.Tensor, wanted: int = 0) -> None:
        self.values = values
        self.wanted = wanted
        self.rows = 0

    @property
    def known(self) -> bool:
        """Whether the mean is fixed."""
        return self.rows >= self.wanted

    def learn(self, hidden: torch.Tensor) -> None:
        """Take in states ``[B, hidden]``; those that are not finite count as the mean."""
        self.rows += hidden.shape[0]
        states = hidden.float()
        odd = ~(states.abs() < _LARGEST).all(1, keepdim=True)
        off = torch.where(odd, 0.0, states - self.values)
        self.values += off.sum(0) / self.rows
