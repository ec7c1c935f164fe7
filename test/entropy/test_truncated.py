"""Bounds from the k largest logits, against the float64 definition and against the exact entropy."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from sgl_entropic.entropy.row_statistics import row_statistics
from sgl_entropic.entropy.truncated import tail_bounds, truncated_entropy
from sgl_entropic_kernels import reference

# Absolute, in nats. The tail mass is 1 - sum p: an error of the normaliser, up to 100 * eps, times ln(V / r).
TOLERANCE_NATS = {torch.float32: 5e-4, torch.float64: 1e-11}
dtypes = pytest.mark.parametrize("dtype", TOLERANCE_NATS, ids=str)


@st.composite
def rows(draw: st.DrawFn) -> np.ndarray:
    """Logits [B, V] of mixed sharpness, some of them masked, at least one legal token per row."""
    count, vocab_size = draw(st.integers(1, 4)), draw(st.integers(1, 200))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    logits = generator.normal(size=(count, vocab_size)) * draw(st.sampled_from([0.01, 1.0, 5.0, 20.0]))
    logits[:, 1:][
        generator.random((count, vocab_size - 1)) < draw(st.sampled_from([0.0, 0.5, 0.99]))
    ] = -np.inf
    return logits.astype(np.float32)


@dtypes
@given(rows(), st.data())
def test_the_bounds_contain_the_exact_entropy(
    dtype: torch.dtype, array: np.ndarray, data: st.DataObject
) -> None:
    logits = torch.from_numpy(array).to(dtype)
    vocab_size = logits.shape[1]
    topk = logits.topk(data.draw(st.integers(1, vocab_size)), dim=-1).values
    bounds = tail_bounds(topk, row_statistics(logits).log_normalizer, vocab_size)
    exact = torch.tensor([row.entropy_nats for row in reference.row_statistics(array)], dtype=dtype)
    assert (bounds.low_nats <= exact + TOLERANCE_NATS[dtype]).all()
    assert (bounds.high_nats >= exact - TOLERANCE_NATS[dtype]).all()
    assert (bounds.low_nats <= bounds.point_nats).all()
    assert (bounds.point_nats <= bounds.high_nats).all()
    assert ((bounds.tail_mass >= 0.0) & (bounds.tail_mass <= 1.0)).all()


@dtypes
@given(rows(), st.data())
def test_the_bounds_are_those_of_the_definition(
    dtype: torch.dtype, array: np.ndarray, data: st.DataObject
) -> None:
    logits = torch.from_numpy(array).to(dtype)
    vocab_size = logits.shape[1]
    topk = logits.topk(data.draw(st.integers(1, vocab_size)), dim=-1).values
    log_normalizer = [row.log_normalizer for row in reference.row_statistics(array)]
    expected = [
        reference.tail_bounds(row, value, vocab_size)
        for row, value in zip(topk.tolist(), log_normalizer, strict=True)
    ]
    actual = torch.stack(tail_bounds(topk, torch.tensor(log_normalizer, dtype=dtype), vocab_size), dim=1)
    torch.testing.assert_close(
        actual, torch.tensor(expected, dtype=dtype), atol=TOLERANCE_NATS[dtype], rtol=0.0
    )


@dtypes
@given(rows())
def test_the_whole_vocabulary_is_exact(dtype: torch.dtype, array: np.ndarray) -> None:
    logits = torch.from_numpy(array).to(dtype)
    bounds = tail_bounds(logits, row_statistics(logits).log_normalizer, logits.shape[1])
    exact = torch.tensor([row.entropy_nats for row in reference.row_statistics(array)], dtype=dtype)
    assert torch.equal(bounds.low_nats, bounds.high_nats)
    assert torch.equal(bounds.tail_mass, torch.zeros_like(exact))
    torch.testing.assert_close(bounds.point_nats, exact, atol=TOLERANCE_NATS[dtype], rtol=0.0)


@given(rows(), st.data())
def test_truncation_is_the_entropy_of_the_renormalised_top(array: np.ndarray, data: st.DataObject) -> None:
    topk = torch.from_numpy(array).topk(data.draw(st.integers(1, array.shape[1])), dim=-1).values
    expected = [reference.truncated_entropy(row) for row in topk.tolist()]
    torch.testing.assert_close(truncated_entropy(topk), torch.tensor(expected), atol=1e-5, rtol=0.0)


def test_a_flat_row_reaches_the_upper_bound_and_a_packed_row_the_lower() -> None:
    flat = torch.zeros(1, 1000, dtype=torch.float64)
    assert tail_bounds(
        flat[:, :3], row_statistics(flat).log_normalizer, 1000
    ).high_nats.item() == pytest.approx(math.log(1000.0))
    packed = flat.masked_fill(torch.arange(1000) >= 8, -math.inf)
    assert tail_bounds(
        packed[:, :3], row_statistics(packed).log_normalizer, 1000
    ).low_nats.item() == pytest.approx(math.log(8.0))


def test_a_tail_lost_in_rounding_stays_bounded() -> None:
    """1 - sum p is pure float32 noise here; the k-th probability caps it."""
    topk = torch.tensor([[0.0, -60.0]])
    bounds = tail_bounds(topk, torch.tensor([1e-7]), 50_000)
    assert 0.0 <= bounds.low_nats.item() <= bounds.high_nats.item() < 1e-6


@pytest.mark.parametrize("topk", [[math.nan, 0.0], [math.inf, math.inf], [math.inf, 0.0]])
def test_a_row_that_tells_nothing_gets_the_bounds_of_any_row(topk: list[float]) -> None:
    logits = torch.tensor([topk, [1.0, 0.0]])
    bounds = tail_bounds(logits, row_statistics(logits).log_normalizer, 10)
    assert bounds.low_nats[0] == 0.0
    assert bounds.high_nats[0].item() == pytest.approx(math.log(10.0))
    assert bounds.tail_mass[0] == 1.0
    assert torch.stack(bounds).isfinite().all()


def test_a_row_without_a_legal_token_is_bounded_by_zero() -> None:
    logits = torch.full((1, 5), -math.inf)
    assert torch.stack(tail_bounds(logits, row_statistics(logits).log_normalizer, 10)).tolist() == [[0.0]] * 4


@pytest.mark.parametrize(
    ("topk", "log_normalizer", "vocab_size", "message"),
    [
        (torch.zeros(3), torch.zeros(1), 10, r"\[rows, k\], not \[3\]"),
        (torch.zeros(2, 0), torch.zeros(2), 10, "from 1 to vocab_size = 10, not 0"),
        (torch.zeros(2, 4), torch.zeros(2), 3, "from 1 to vocab_size = 3, not 4"),
        (torch.zeros(2, 4), torch.zeros(2, 1), 10, r"\[2\], not \[2, 1\]"),
    ],
)
def test_wrong_shapes_are_refused(
    topk: Tensor, log_normalizer: Tensor, vocab_size: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        tail_bounds(topk, log_normalizer, vocab_size)


def test_no_result_waits_for_the_device_and_no_input_changes() -> None:
    with FakeTensorMode():  # refuses every operation whose outcome depends on the data
        tail_bounds(torch.randn(4, 5), torch.randn(4), 100)
    topk, log_normalizer = torch.tensor([[3.0, 1.0, -math.inf]]), torch.tensor([3.2])
    before = topk.clone(), log_normalizer.clone()
    tail_bounds(topk, log_normalizer, 10)
    assert torch.equal(topk, before[0])
    assert torch.equal(log_normalizer, before[1])
