"""Tokens are drawn with the probabilities that the row says, and never one that it forbids."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sgl_entropic.runtime.cpu.sampling import sample


def test_frequencies_are_the_probabilities() -> None:
    """Chi-square over 200,000 draws; rows need not be normalised."""
    torch.manual_seed(1)
    probs = torch.tensor([0.5, 0.25, 0.125, 0.0625, 0.0, 0.0625]) * 3
    drawn = sample(probs.expand(200_000, -1)).numpy()
    counts = np.bincount(drawn, minlength=6)
    assert counts[4] == 0
    kept = [0, 1, 2, 3, 5]
    expected = probs.double().numpy()[kept] / 3 * 200_000
    assert stats.chisquare(counts[kept], expected).pvalue > 1e-4


@given(
    st.lists(st.sampled_from([0.0, 1e-30, 1e-8, 0.3, 1.0]), min_size=1, max_size=50).filter(any),
    st.integers(0, 99),
)
def test_what_has_no_probability_is_never_drawn(row: list[float], seed: int) -> None:
    torch.manual_seed(seed)
    drawn = sample(torch.tensor([row] * 20))
    assert drawn.dtype == torch.int32
    assert all(row[token] > 0 for token in drawn.tolist())


@pytest.mark.parametrize("draw", [0.0, 1.0])
def test_the_ends_of_the_unit_interval(monkeypatch: pytest.MonkeyPatch, draw: float) -> None:
    """The least and the largest number that can be drawn meet the first and the last token that has a probability."""
    monkeypatch.setattr(torch, "rand", lambda *shape, dtype: torch.full(shape, draw, dtype=dtype))
    assert sample(torch.tensor([[0.0, 0.2, 0.8, 0.0]])).tolist() == [1 if draw == 0.0 else 2]


def test_a_rare_token_late_in_the_vocabulary_keeps_its_share() -> None:
    """Float32 sums would swallow it: 1e-7 after 50,000 entries that add up to 1."""
    torch.manual_seed(2)
    probs = torch.full((1, 50_001), (1 - 0.01) / 50_000)
    probs[0, -1] = 0.01
    drawn = torch.cat([sample(probs.expand(50, -1)) for _ in range(80)])
    assert 15 <= int((drawn == 50_000).sum()) <= 75
