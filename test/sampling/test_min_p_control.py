"""min-p as a controlled variable, against float64 entropies of every cut there is."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from sgl_entropic.sampling.min_p_control import (
    LEAST_LOG_MIN_P,
    MinPRows,
    min_p_of,
    solve_min_p,
)
from sgl_entropic.sampling.temperature_control import EXACT, FIXED

INF, NAN = math.inf, math.nan
ROUNDING_NATS = 2e-5
RESOLUTION = 5e-5  # of ln theta: bisection, and the rounding of logits near 100


def cut_entropy(row: np.ndarray, min_p: float) -> float:
    """Entropy of what a threshold leaves, renormalised, float64."""
    ratio = np.exp(np.asarray(row, dtype=np.float64) - np.max(row).astype(np.float64))
    kept = ratio[(ratio >= min_p) & (ratio > 0.0)]
    p = kept / kept.sum()
    return float(-(p @ np.log(p)))


def control(
    targets: list[float],
    mode: int = EXACT,
    *,
    max_min_p: float = 0.5,
    controlled: bool = True,
) -> MinPRows:
    count = len(targets)
    return MinPRows(
        torch.tensor(targets),
        torch.full((count,), mode, dtype=torch.int64),
        torch.full((count,), max_min_p),
        torch.full((count,), controlled),
    )


def column(*values: float) -> Tensor:
    return torch.tensor(values)


def bits(value: Tensor) -> list[int]:
    return value.view(torch.int32).tolist()


@st.composite
def rows(draw: st.DrawFn) -> np.ndarray:
    """One row of logits [V] float32: bell-shaped, with ties, flat, forced; some of it illegal."""
    vocab_size = draw(st.integers(1, 200))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    row = generator.normal(size=vocab_size) * draw(st.sampled_from([0.0, 0.1, 1.0, 3.0, 10.0, 40.0]))
    if draw(st.booleans()):
        row = np.round(row)
    row = row.astype(np.float32)
    row[1:][generator.random(vocab_size - 1) < draw(st.sampled_from([0.0, 0.5]))] = -INF
    return row


# ------------------------------------------------------------------------------------------------- exact


@given(rows())
def test_every_token_taken_away_lowers_the_entropy(row: np.ndarray) -> None:
    """What the bisection rests on; the reason is in the module."""
    thresholds = np.unique(np.exp((row - row.max()).astype(np.float64)))
    entropies = [cut_entropy(row, theta) for theta in thresholds]
    assert (np.diff(entropies) <= 1e-12).all()


@settings(max_examples=300)
@given(rows(), st.floats(0.0, 6.0), st.floats(1e-4, 1.0))
def test_the_largest_threshold_that_leaves_the_target_is_found(
    row: np.ndarray, target: float, max_min_p: float
) -> None:
    solution = solve_min_p(torch.from_numpy(row)[None], control([target], max_min_p=max_min_p), column(0.123))
    min_p = solution.min_p.item()
    whole, least = cut_entropy(row, 0.0), cut_entropy(row, max_min_p)
    assert 0.0 <= min_p <= max_min_p * (1.0 + 1e-6)
    if whole < target - ROUNDING_NATS:
        assert (min_p, solution.saturated.item()) == (0.0, True)
    if whole > target + ROUNDING_NATS:
        assert cut_entropy(row, min_p * (1.0 - RESOLUTION)) >= target - ROUNDING_NATS
        above = min(max_min_p, max(min_p, math.exp(LEAST_LOG_MIN_P)) * (1.0 + RESOLUTION))
        reached_the_limit = min_p >= max_min_p * (1.0 - RESOLUTION)
        assert reached_the_limit or cut_entropy(row, above) <= target + ROUNDING_NATS
        if least > target + ROUNDING_NATS:
            assert min_p == pytest.approx(max_min_p, rel=1e-6)
            assert solution.saturated.item()
        if least < target - ROUNDING_NATS:
            assert not solution.saturated.item()


def test_a_distribution_worked_out_by_hand() -> None:
    """Halving probabilities: with the largest k kept the entropies are 0, 0.637, 0.956, 1.137 nats."""
    logits = torch.log(0.5 ** torch.arange(1.0, 12.0)).expand(4, -1)
    solution = solve_min_p(logits, control([1.0, 0.9, 0.5, 3.0], max_min_p=0.9), torch.zeros(4))
    torch.testing.assert_close(solution.min_p, column(0.125, 0.25, 0.5, 0.0), rtol=RESOLUTION, atol=0.0)
    kept = [cut_entropy(logits[0].numpy(), theta) for theta in (0.124, 0.249, 0.499, 0.0)]
    torch.testing.assert_close(solution.entropy_nats, torch.tensor(kept), rtol=1e-5, atol=1e-5)
    assert solution.saturated.tolist() == [False, False, False, True]


def test_ties_are_kept_or_cut_together() -> None:
    logits = torch.log(column(4.0, 1.0, 1.0, 1.0, 1.0))[None].expand(2, -1)
    whole = cut_entropy(logits[0].numpy(), 0.0)
    solution = solve_min_p(logits, control([1.0, 0.0], max_min_p=0.9), torch.zeros(2))
    assert solution.entropy_nats.tolist() == pytest.approx([whole, 0.0], abs=ROUNDING_NATS)
    assert solution.min_p.tolist() == pytest.approx([0.25, 0.9], rel=RESOLUTION)


@given(rows(), st.lists(st.floats(0.0, 6.0), min_size=2, max_size=6))
def test_a_higher_target_never_cuts_more(row: np.ndarray, targets: list[float]) -> None:
    logits = torch.from_numpy(row).expand(len(targets), -1)
    solution = solve_min_p(logits, control(sorted(targets)), torch.zeros(len(targets)))
    assert solution.min_p.diff().le(0.0).all()


def test_no_largest_threshold_means_no_cut() -> None:
    solution = solve_min_p(torch.randn(1, 100), control([0.5], max_min_p=0.0), column(0.0))
    assert solution.min_p.item() == 0.0


@pytest.mark.parametrize(
    "wanted", [control([0.5] * 3, FIXED), control([0.5] * 3, controlled=False), control([NAN] * 3)], ids=str
)
def test_rows_that_are_not_solved_keep_their_threshold_bit_for_bit_and_are_read(wanted: MinPRows) -> None:
    logits = torch.randn(3, 500)
    start = column(0.123456789, 0.0, 1.0)
    solution = solve_min_p(logits, wanted, start)
    assert bits(solution.min_p) == bits(start)
    expected = [cut_entropy(row, theta) for row, theta in zip(logits.numpy(), start.tolist(), strict=True)]
    assert solution.entropy_nats.tolist() == pytest.approx(expected, abs=ROUNDING_NATS)
    assert not solution.saturated.any()


@pytest.mark.parametrize("target", [0.0, 0.4, 2.0, NAN, INF, -INF])
def test_nothing_but_numbers_leaves_the_solver(target: float) -> None:
    logits = torch.tensor(
        [[NAN, 0.0, 1.0], [-INF, -INF, -INF], [INF, 0.0, INF], [3e38, -3e38, 0.0], [0.0, -INF, -INF]]
    )
    before = logits.clone()
    solution = solve_min_p(logits, control([target] * 5), torch.full((5,), 0.25))
    assert torch.stack(solution[:2]).isfinite().all()
    assert (solution.min_p[:2] == 0.25).all()
    assert (solution.entropy_nats[:2] == 0.0).all()
    assert torch.equal(logits.nan_to_num(7.0), before.nan_to_num(7.0))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("vocab_size", [33, 49_151])
def test_a_row_alone_equals_the_row_in_a_batch_bit_for_bit(vocab_size: int, threads: int) -> None:
    logits = torch.randn(5, vocab_size) * torch.linspace(0.5, 6.0, 5).unsqueeze(1)
    wanted = control([1.0] * 5)
    wanted.controlled[:2] = False  # read as a whole
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        batch = solve_min_p(logits, wanted, torch.zeros(5))
        alone = [
            solve_min_p(logits[at], MinPRows(*(c[at] for c in wanted)), torch.zeros(1))
            for at in (slice(at, at + 1) for at in range(5))
        ]
    finally:
        torch.set_num_threads(before)
    for one, other in zip(batch, (torch.cat(c) for c in zip(*alone, strict=True)), strict=True):
        assert torch.equal(one, other)


def test_nothing_waits_for_the_device() -> None:
    with FakeTensorMode():  # refuses every operation whose outcome depends on the data
        wanted = control([1.0] * 4)
        solution = solve_min_p(torch.randn(4, 100), wanted, torch.zeros(4))
        assert solution.min_p.shape == (4,)


def test_the_least_threshold_is_no_cut() -> None:
    assert min_p_of(column(LEAST_LOG_MIN_P, -INF, math.log(0.25))).tolist() == [0.0, 0.0, pytest.approx(0.25)]
