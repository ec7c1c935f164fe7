"""Statistics are recalled for the very logits they belong to, once, and for nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from sgl_entropic.entropy.row_statistics import RowStatistics
from sgl_entropic.runtime.cpu.head_statistics import HeadStatistics
from sgl_entropic_kernels import reference
from sgl_entropic_kernels.native import library

ROWS, HIDDEN, VOCAB = 5, 24, 70
EXACT = {"rtol": 1e-5, "atol": 2e-5}


@pytest.fixture
def hidden() -> torch.Tensor:
    return torch.randn(ROWS, HIDDEN)


@pytest.fixture
def matrix() -> torch.Tensor:
    return torch.randn(VOCAB, HIDDEN)


def assert_is_truth(statistics: RowStatistics, logits: torch.Tensor) -> None:
    """Row by row against the float64 definitions."""
    assert bool(statistics.valid.all())
    for index, row in enumerate(logits.double().tolist()):
        truth = reference.one_row(row)
        for name in ("max_logit", "log_partition", "entropy_nats", "varentropy"):
            np.testing.assert_allclose(getattr(statistics, name)[index], getattr(truth, name), **EXACT)


def test_the_logits_just_made_are_recalled_once(hidden: torch.Tensor, matrix: torch.Tensor) -> None:
    head = HeadStatistics(usable=True)
    logits = head.logits(hidden, library().pack(matrix, "lossless"))
    torch.testing.assert_close(logits, hidden @ matrix.T, rtol=1e-5, atol=1e-5)
    statistics = head.recall(logits)
    assert statistics is not None
    assert_is_truth(statistics, hidden.double() @ matrix.double().T)
    assert head.recalled == 1
    assert head.recall(logits) is None
    assert head.recalled == 1


def test_a_view_of_all_of_them_is_recalled(hidden: torch.Tensor, matrix: torch.Tensor) -> None:
    """SGLang cuts the logits to the vocabulary, which may cut nothing."""
    head = HeadStatistics(usable=True)
    logits = head.logits(hidden, library().pack(matrix, "lossless"))
    assert head.recall(logits[:, :VOCAB].float()) is not None


@pytest.mark.parametrize(
    "change",
    [
        torch.clone,
        lambda logits: logits * 0.5,
        lambda logits: logits[:-1],
        lambda logits: logits[1:],
        lambda logits: logits[:, :-1],
        lambda logits: logits.bfloat16(),
        lambda logits: torch.randn(ROWS, VOCAB),
    ],
    ids=["copy", "scaled", "fewer rows", "later rows", "fewer columns", "other dtype", "another"],
)
def test_nothing_else_is_recalled(
    hidden: torch.Tensor, matrix: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """And what was remembered is forgotten: whoever asks again does not get an older step's numbers."""
    head = HeadStatistics(usable=True)
    logits = head.logits(hidden, library().pack(matrix, "lossless"))
    assert head.recall(change(logits)) is None
    assert head.recall(logits) is None
    assert head.recalled == 0


def test_only_the_latest_logits_are_recalled(hidden: torch.Tensor, matrix: torch.Tensor) -> None:
    """Their memory cannot become that of others while it is compared."""
    head, weight = HeadStatistics(usable=True), library().pack(matrix, "lossless")
    first = head.logits(hidden, weight)
    second = head.logits(hidden + 1, weight)
    assert second.data_ptr() != first.data_ptr()
    assert head.recall(first) is None
    for _ in range(20):
        address = head.logits(hidden, weight).data_ptr()
        assert torch.empty(ROWS, VOCAB).data_ptr() != address


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_rows_that_are_no_distribution_are_not_recalled(
    hidden: torch.Tensor, matrix: torch.Tensor, value: float
) -> None:
    """Nor measured for a target: the logits tell then what is wrong."""
    head, weight = HeadStatistics(usable=True), library().pack(matrix, "lossless")
    hidden[2, 3] = value
    assert head.recall(head.logits(hidden, weight)) is None
    assert head.of_targets(hidden, weight, torch.zeros(ROWS, dtype=torch.int64)) is None
    assert head.recalled == 0


def test_logits_that_are_changed_afterwards_are_not_usable(
    hidden: torch.Tensor, matrix: torch.Tensor
) -> None:
    """A model that scales or caps its logits samples from others."""
    head, weight = HeadStatistics(usable=False), library().pack(matrix, "lossless")
    assert head.recall(head.logits(hidden, weight)) is None
    assert head.of_targets(hidden, weight, torch.zeros(ROWS, dtype=torch.int64)) is None


def test_statistics_of_targets_need_no_logits(hidden: torch.Tensor, matrix: torch.Tensor) -> None:
    head = HeadStatistics(usable=True)
    targets = torch.tensor([0, VOCAB - 1, 15, 16, 64])
    found = head.of_targets(hidden, library().pack(matrix, "lossless"), targets)
    assert found is not None
    truth = hidden.double() @ matrix.double().T
    assert_is_truth(found[0], truth)
    np.testing.assert_allclose(found[1], truth[torch.arange(ROWS), targets], **EXACT)


@pytest.mark.parametrize("target", [-1, VOCAB, 2**40, -(2**33)])
def test_a_target_outside_the_vocabulary_is_left_to_the_logits(
    hidden: torch.Tensor, matrix: torch.Tensor, target: int
) -> None:
    """A placeholder of an image; no distribution speaks of it."""
    targets = torch.tensor([0, 1, target, 2, 3])
    found = HeadStatistics(usable=True).of_targets(hidden, library().pack(matrix, "lossless"), targets)
    assert found is None


@pytest.mark.parametrize(
    "change", [torch.Tensor.bfloat16, lambda rows: rows.T.contiguous().T], ids=["dtype", "layout"]
)
def test_hidden_states_that_the_kernel_does_not_take(
    hidden: torch.Tensor, matrix: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    targets = torch.zeros(ROWS, dtype=torch.int64)
    weight = library().pack(matrix, "lossless")
    assert HeadStatistics(usable=True).of_targets(change(hidden), weight, targets) is None
