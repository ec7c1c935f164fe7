"""Entropy of the distribution that is sampled from, against float64 in plain loops."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sgl_entropic.entropy.row_statistics import row_statistics
from sgl_entropic.runtime.sampled_distribution import (
    entropy_of_probabilities,
    rewrites_logits,
    sampled_entropy,
)
from sgl_entropic_kernels import reference

WHOLE_VOCABULARY = 1 << 30  # how SGLang says that top-k is off


def sampling(
    temperatures: list[float], top_ks: list[int] | None = None, *, greedy: bool = False, **more: Any
) -> Any:
    """Sampling parameters of a batch that rewrites no logits unless ``more`` says so."""
    return SimpleNamespace(
        is_all_greedy=greedy,
        temperatures=torch.tensor(temperatures).view(-1, 1),
        top_ks=torch.tensor(top_ks or [WHOLE_VOCABULARY] * len(temperatures), dtype=torch.int32),
        **{
            "grammars": None,
            "logit_bias": None,
            "acc_additive_penalties": None,
            "acc_scaling_penalties": None,
            "penalizer_orchestrator": None,
            "has_custom_logit_processor": False,
            "has_watermark_candidates": False,
            **more,
        },
    )


@st.composite
def batches(draw: st.DrawFn, *, masked: bool) -> tuple[torch.Tensor, list[float], list[int]]:
    """Logits [B, V] of any sharpness and level, a temperature and a top-k a row."""
    count, vocab_size = draw(st.integers(1, 4)), draw(st.integers(1, 40))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    logits = generator.normal(size=(count, vocab_size)) * generator.choice([0.1, 1.0, 8.0], size=(count, 1))
    logits += generator.choice([0.0, -30.0, 30.0], size=(count, 1))
    if masked:
        illegal = generator.random((count, vocab_size)) < 0.3
        illegal[:, 0] = False
        logits[illegal] = -math.inf
    temperatures = generator.choice([0.3, 0.7, 1.0, 2.5], size=count)
    top_ks = generator.choice([1, 5, WHOLE_VOCABULARY], size=count)
    return torch.tensor(logits, dtype=torch.float32), temperatures.tolist(), top_ks.tolist()


def truth(logits: torch.Tensor, temperatures: list[float], top_ks: list[int]) -> list[float]:
    return [
        0.0 if top_k == 1 else reference.one_row(row, temperature).entropy_nats
        for row, temperature, top_k in zip(logits.tolist(), temperatures, top_ks, strict=True)
    ]


@given(batches(masked=True))
def test_entropy_of_logits_at_a_temperature(batch: tuple[torch.Tensor, list[float], list[int]]) -> None:
    """Illegal tokens count for nothing, a row with top-k 1 is a point mass."""
    logits, temperatures, top_ks = batch
    before = logits.clone()
    entropy = sampled_entropy(logits, sampling(temperatures, top_ks))
    np.testing.assert_allclose(entropy.numpy(), truth(logits, temperatures, top_ks), rtol=1e-5, atol=1e-5)
    assert torch.equal(logits, before)


@pytest.mark.parametrize("temperature", [1e-6, 1e-4, 1e-2, 1.0])
def test_ties_stay_ties_however_low_the_temperature(temperature: float) -> None:
    """Three equal logits far from zero: the entropy is ln 3 at any temperature."""
    logits = torch.tensor([[30.0, 30.0, 30.0, 1.0, -5.0]])
    statistics = row_statistics(logits)
    probs = torch.softmax(logits / temperature, dim=-1)
    relative = logits - statistics.max_logit.unsqueeze(1)
    entropy = entropy_of_probabilities(probs, (relative, statistics), sampling([temperature], [1 << 30]))
    assert entropy.item() == pytest.approx(math.log(3), abs=1e-5)


@given(batches(masked=False))
def test_entropy_of_probabilities_is_that_of_their_logits(
    batch: tuple[torch.Tensor, list[float], list[int]],
) -> None:
    """The short cut from the probabilities that SGLang has computed anyway."""
    logits, temperatures, top_ks = batch
    info = sampling(temperatures, top_ks)
    probs = torch.softmax(logits / info.temperatures, dim=-1)
    statistics = row_statistics(logits)
    relative = logits - statistics.max_logit.unsqueeze(1)
    entropy = entropy_of_probabilities(probs, (relative, statistics), info)
    np.testing.assert_allclose(entropy.numpy(), truth(logits, temperatures, top_ks), rtol=1e-4, atol=1e-4)
    assert (entropy >= 0).all()


def test_a_greedy_batch_is_a_point_mass_in_every_row() -> None:
    entropy = sampled_entropy(torch.randn(3, 5), sampling([1.0] * 3, greedy=True))
    assert entropy.dtype == torch.float32
    assert entropy.tolist() == [0.0, 0.0, 0.0]


def test_greedy_rows_in_a_batch_that_samples() -> None:
    """SGLang gives temperature 0 as top-k 1 at temperature 1."""
    entropy = sampled_entropy(torch.zeros(2, 8), sampling([1.0, 1.0], [1, WHOLE_VOCABULARY]))
    assert entropy.tolist() == pytest.approx([0.0, math.log(8)])


def test_only_the_temperature_leaves_the_logits_as_they_are() -> None:
    assert rewrites_logits(sampling([0.7])) is False
    idle = SimpleNamespace(is_required=False)
    assert rewrites_logits(sampling([0.7], penalizer_orchestrator=idle)) is False


@pytest.mark.parametrize(
    "rewriting",
    [
        {"grammars": [None]},
        {"logit_bias": torch.zeros(1, 5)},
        {"acc_additive_penalties": torch.zeros(1, 5)},
        {"acc_scaling_penalties": torch.ones(1, 5)},
        {"penalizer_orchestrator": SimpleNamespace(is_required=True)},
        {"has_custom_logit_processor": True},
        {"has_watermark_candidates": True},
    ],
    ids=lambda rewriting: next(iter(rewriting)),
)
def test_everything_else_rewrites_them(rewriting: dict[str, Any]) -> None:
    assert rewrites_logits(sampling([0.7], **rewriting)) is True
