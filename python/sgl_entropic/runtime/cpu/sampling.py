"""One uniform number for each row instead of one exponential for each entry.

SGLang's PyTorch sampler draws an exponential for every token of the vocabulary and takes the largest quotient; on a CPU
that is as long as the LM head. The inverse of the cumulative distribution gives the same distribution.
"""

from __future__ import annotations

import torch


def sample(probs: torch.Tensor) -> torch.Tensor:
    """Token ids ``[B]`` int32 drawn from the rows of ``probs`` [B, V], which need not be normalised.

    A token of probability 0 is never drawn. The sums are float64: in float32 a token of probability 1e-8 late in the
    vocabulary would vanish.
    """
    cumulative = probs.double().cumsum(dim=-1)
    total = cumulative[:, -1:]
    drawn = torch.rand(probs.shape[0], 1, dtype=torch.float64) * total
    # The first entry above what was drawn; rounding may put the product at the total itself.
    drawn = torch.minimum(drawn, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, drawn, right=True).view(-1).to(torch.int32)
