"""Whole rows of logits, against the float64 definition in plain loops."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from sgl_entropic.entropy import row_statistics as module
from sgl_entropic.entropy.row_statistics import RowStatistics, row_statistics, token_surprisal
from sgl_entropic_kernels import reference

INF, NAN = math.inf, math.nan
FLOAT32_MAX = float(np.finfo(np.float32).max)

# (relative, absolute). Half precision is upcast exactly, then summed in float32 like the rest: no looser.
# The variance subtracts two numbers near (ln V)^2, which costs it digits.
ENTROPY_TOLERANCE = {
    torch.float16: (2e-6, 2e-6),
    torch.bfloat16: (2e-6, 2e-6),
    torch.float32: (2e-6, 2e-6),
    torch.float64: (1e-13, 1e-13),
}
VARENTROPY_TOLERANCE = {
    torch.float16: (1e-5, 1e-4),
    torch.bfloat16: (1e-5, 1e-4),
    torch.float32: (1e-5, 1e-4),
    torch.float64: (1e-12, 1e-12),
}
dtypes = pytest.mark.parametrize("dtype", ENTROPY_TOLERANCE, ids=str)

SPECIAL_ROWS = [
    [0.0, -INF, -INF],
    [-INF, -INF, -INF],
    [INF, 0.0, -INF],
    [INF, INF, FLOAT32_MAX],
    [NAN, 0.0, 1.0],
    [NAN, INF, -INF],
    [1e30, 1e30, -1e30],
    [FLOAT32_MAX, -FLOAT32_MAX, 0.0],
    [-FLOAT32_MAX, -FLOAT32_MAX, -INF],
    [1e-45, 0.0, -0.0],
    [88.0, -104.0, 3.0],
]


@st.composite
def rows(draw: st.DrawFn) -> np.ndarray:
    """Logits [B, V] float32 of mixed sharpness and level, with masked, infinite, huge and NaN entries."""
    count, vocab_size = draw(st.integers(0, 5)), draw(st.integers(0, 130))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    sharpness = generator.choice([1e-3, 1.0, 5.0, 50.0], size=(count, 1))
    level = generator.choice([0.0, -300.0, 1e4], size=(count, 1))
    logits = generator.normal(size=(count, vocab_size)) * sharpness + level
    for value in draw(st.lists(st.sampled_from([-INF, INF, NAN, 1e30, -FLOAT32_MAX]), max_size=2)):
        portion = draw(st.sampled_from([0.02, 0.5, 1.0]))
        logits[generator.random((count, vocab_size)) < portion * generator.random((count, 1))] = value
    return np.asarray(logits, dtype=np.float32)


def assert_matches_definition(
    actual: RowStatistics, logits: Tensor, temperatures: list[float] | None = None
) -> None:
    """Compare with the definition on the very numbers that ``logits`` holds."""
    temperatures = [1.0] * len(logits) if temperatures is None else temperatures
    expected = [
        reference.one_row(row, value)
        for row, value in zip(logits.double().tolist(), temperatures, strict=True)
    ]
    assert actual.valid.tolist() == [row.valid for row in expected]
    for name, (rtol, atol) in {
        "entropy_nats": ENTROPY_TOLERANCE[logits.dtype],
        "log_partition": ENTROPY_TOLERANCE[logits.dtype],
        "max_logit": ENTROPY_TOLERANCE[logits.dtype],
        "log_normalizer": ENTROPY_TOLERANCE[logits.dtype],
        "varentropy": VARENTROPY_TOLERANCE[logits.dtype],
    }.items():
        column: Tensor = getattr(actual, name)
        truth = torch.tensor([getattr(row, name) for row in expected], dtype=torch.float64).to(column.dtype)
        torch.testing.assert_close(
            column, truth, rtol=rtol, atol=atol, msg=f"{name}: {column} is not {truth}"
        )


@dtypes
@given(rows())
def test_every_row_reads_as_defined(dtype: torch.dtype, array: np.ndarray) -> None:
    logits = torch.from_numpy(array).to(dtype)
    assert_matches_definition(row_statistics(logits), logits)


@dtypes
@pytest.mark.parametrize("row", SPECIAL_ROWS, ids=str)
def test_a_row_that_is_not_ordinary_reads_as_defined(dtype: torch.dtype, row: list[float]) -> None:
    logits = torch.tensor([row], dtype=torch.float64).to(dtype)
    assert_matches_definition(row_statistics(logits), logits)


@given(rows(), st.data())
def test_surprisal_reads_as_defined(array: np.ndarray, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(-2, array.shape[1] + 1), min_size=len(array), max_size=len(array)))
    logits = torch.from_numpy(array)
    actual = token_surprisal(logits, row_statistics(logits), torch.tensor(ids, dtype=torch.int64))
    expected = [reference.surprisal(row, token) for row, token in zip(array, ids, strict=True)]
    # The difference z - max carries the rounding of float32 logits, whose magnitude sets it.
    torch.testing.assert_close(
        actual, torch.tensor(expected, dtype=torch.float64).float(), rtol=2e-6, atol=2e-6
    )


def test_surprisal_of_special_rows() -> None:
    logits = torch.tensor(
        [
            [INF, 0.0, INF],
            [INF, 0.0, INF],
            [-INF, 0.0, 0.0],
            [-INF, -INF, -INF],
            [NAN, 0.0, 1.0],
            [1e30, 1e30, 0.0],
        ]
    )
    actual = token_surprisal(
        logits, row_statistics(logits), torch.tensor([0, 1, 0, 0, 1, 1], dtype=torch.int32)
    )
    assert actual.tolist() == pytest.approx([math.log(2.0), INF, INF, 0.0, 0.0, math.log(2.0)])


def test_a_large_vocabulary_keeps_its_digits() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 49_153, generator=generator) * torch.tensor([[1.0], [4.0], [12.0]]) + 20.0
    assert_matches_definition(row_statistics(logits), logits)
    assert_matches_definition(row_statistics(logits.bfloat16()), logits.bfloat16())


@given(rows(), st.data())
def test_a_temperature_gives_the_statistics_of_the_divided_logits(
    array: np.ndarray, data: st.DataObject
) -> None:
    temperatures = data.draw(
        st.lists(st.floats(0.0625, 20.0) | st.just(0.0), min_size=len(array), max_size=len(array))
    )
    logits = torch.from_numpy(array).double()
    column = torch.tensor(temperatures, dtype=torch.float64)
    assert_matches_definition(row_statistics(logits, column), logits, temperatures)
    assert_matches_definition(row_statistics(logits, column.unsqueeze(1)), logits, temperatures)


def test_a_float32_temperature_gives_the_statistics_of_the_divided_logits() -> None:
    logits = torch.randn(4, 1000, generator=torch.Generator().manual_seed(0)) * 3.0
    temperatures = [0.5, 1.0, 1.7, 0.0]
    assert_matches_definition(row_statistics(logits, torch.tensor(temperatures)), logits, temperatures)


def test_temperature_zero_is_uniform_over_the_largest() -> None:
    statistics = row_statistics(torch.tensor([[5.0, -INF, 5.0, 4.9]]), torch.zeros(1))
    assert statistics.entropy_nats.item() == pytest.approx(math.log(2.0))
    assert statistics.varentropy.item() == 0.0
    assert statistics.valid.item()


@pytest.mark.parametrize("temperature", [-1.0, INF, NAN])
def test_a_meaningless_temperature_makes_its_row_invalid(temperature: float) -> None:
    statistics = row_statistics(torch.tensor([[1.0, 2.0]] * 2), torch.tensor([temperature, 1.0]))
    assert statistics.valid.tolist() == [False, True]
    assert torch.stack(statistics[:4]).isfinite().all()
    assert statistics.entropy_nats[0] == 0.0


def test_a_row_reads_alike_in_one_block_and_in_many(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(7, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    temperature = torch.linspace(0.5, 2.0, 7)
    whole = row_statistics(logits, temperature)
    monkeypatch.setattr(module, "_BLOCK_ENTRIES_CPU", 100)
    blocked = row_statistics(logits, temperature)
    for ours, theirs in zip(blocked, whole, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


def test_half_precision_is_never_upcast_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BLOCK_ENTRIES_CPU", 100)
    largest = 0
    upcast = Tensor.to

    def spy(tensor: Tensor, dtype: torch.dtype) -> Tensor:
        nonlocal largest
        largest = max(largest, tensor.numel())
        return upcast(tensor, dtype)

    monkeypatch.setattr(Tensor, "to", spy)
    row_statistics(torch.zeros(20, 50, dtype=torch.bfloat16))
    assert 0 < largest <= 100


@dtypes
def test_the_logits_are_read_only(dtype: torch.dtype) -> None:
    logits = torch.tensor(SPECIAL_ROWS, dtype=torch.float64).to(dtype)
    before = logits.clone()
    statistics = row_statistics(logits, torch.full((len(logits), 1), 0.7))
    token_surprisal(logits, statistics, torch.zeros(len(logits), dtype=torch.int64))
    assert torch.equal(logits.nan_to_num(7.0), before.nan_to_num(7.0))
    assert torch.equal(logits.isnan(), before.isnan())


def test_nothing_waits_for_the_device() -> None:
    with FakeTensorMode():  # refuses every operation whose outcome depends on the data
        logits = torch.randn(4, 100).bfloat16()
        statistics = row_statistics(logits, torch.rand(4, 1))
        token_surprisal(logits, row_statistics(logits), torch.zeros(4, dtype=torch.int64))
        assert statistics.log_normalizer.shape == (4,)
        with pytest.raises(DataDependentOutputException):
            statistics.entropy_nats.sum().item()


@pytest.mark.parametrize("shape", [(0, 10), (0, 0), (3, 0)])
def test_empty_batches_and_vocabularies_are_legal(shape: tuple[int, int]) -> None:
    statistics = row_statistics(torch.zeros(shape))
    assert all(column.shape == shape[:1] for column in statistics)
    assert not statistics.valid.any()
    surprisal = token_surprisal(torch.zeros(shape), statistics, torch.zeros(shape[0], dtype=torch.int64))
    assert torch.equal(surprisal, torch.zeros(shape[0]))


def test_a_strided_view_reads_like_its_copy() -> None:
    padded = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(
        row_statistics(padded[:, :50]).entropy_nats, row_statistics(padded[:, :50].contiguous()).entropy_nats
    )


@pytest.mark.parametrize(
    ("logits", "temperature", "error", "message"),
    [
        (torch.zeros(3), None, ValueError, r"\[rows, vocab\], not \[3\]"),
        (torch.zeros(3, 4, dtype=torch.int64), None, TypeError, r"not torch\.int64"),
        (torch.zeros(3, 4), torch.ones(4), ValueError, r"\[3\] or \[3, 1\], not \[4\]"),
        (torch.zeros(3, 4), torch.ones(()), ValueError, r"not \[\]"),
    ],
)
def test_wrong_inputs_are_refused(
    logits: Tensor, temperature: Tensor | None, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        row_statistics(logits, temperature)
