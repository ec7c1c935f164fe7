"""The float64 definitions against truths that share no code with them: scipy, decimals, closed forms."""

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp, softmax
from scipy.stats import entropy as scipy_entropy

from sgl_entropic_kernels import reference

LOGITS = st.lists(st.floats(-60.0, 60.0), min_size=1, max_size=50)
TOLERANCE = 1e-12  # float64, at most 50 terms


@given(LOGITS)
def test_entropy_and_normaliser_are_those_of_scipy(logits: list[float]) -> None:
    row = reference.one_row(logits)
    assert row.entropy_nats == pytest.approx(scipy_entropy(softmax(logits)), rel=TOLERANCE, abs=TOLERANCE)
    assert row.log_normalizer == pytest.approx(logsumexp(logits), rel=TOLERANCE, abs=TOLERANCE)


@given(LOGITS, st.data())
def test_all_statistics_are_those_of_exact_decimals(logits: list[float], data: st.DataObject) -> None:
    token = data.draw(st.integers(0, len(logits) - 1))
    with localcontext(prec=50):
        weights = [Decimal(z).exp() for z in logits]
        probabilities = [weight / sum(weights) for weight in weights]
        surprisals = [-p.ln() for p in probabilities]
        mean = sum((p * s for p, s in zip(probabilities, surprisals, strict=True)), Decimal(0))
        variance = sum(
            (p * (s - mean) ** 2 for p, s in zip(probabilities, surprisals, strict=True)), Decimal(0)
        )
    row = reference.one_row(logits)
    assert row.entropy_nats == pytest.approx(float(mean), rel=TOLERANCE, abs=TOLERANCE)
    assert row.varentropy == pytest.approx(float(variance), rel=TOLERANCE, abs=TOLERANCE)
    assert reference.surprisal(logits, token) == pytest.approx(
        float(surprisals[token]), rel=TOLERANCE, abs=TOLERANCE
    )


@given(LOGITS, st.floats(0.5, 3.0))
def test_varentropy_is_the_slope_of_the_entropy_in_log_temperature(
    logits: list[float], temperature: float
) -> None:
    step = 1e-4
    warmer = reference.one_row(logits, temperature * math.exp(step)).entropy_nats
    cooler = reference.one_row(logits, temperature * math.exp(-step)).entropy_nats
    slope = (warmer - cooler) / (2.0 * step)
    # A central difference: its error is the third derivative times step^2, at most ~120^3 * 1e-8 here.
    assert reference.one_row(logits, temperature).varentropy == pytest.approx(slope, abs=2e-2)


@pytest.mark.parametrize("count", [1, 2, 7, 100])
def test_a_uniform_row_has_the_log_of_its_size_whatever_its_level(count: int) -> None:
    for level in (0.0, -1e30, 3.4e38, math.inf):
        row = reference.one_row([level] * count)
        assert row.entropy_nats == pytest.approx(math.log(count), abs=TOLERANCE)
        assert row.varentropy == pytest.approx(0.0, abs=TOLERANCE)
        assert row.valid


@given(LOGITS)
def test_an_illegal_token_changes_nothing(logits: list[float]) -> None:
    masked = [-math.inf, *logits, -math.inf]
    assert reference.one_row(masked) == reference.one_row(logits)
    assert reference.surprisal(masked, 0) == math.inf


@pytest.mark.parametrize("row", [[], [-math.inf] * 3, [math.nan], [1.0, math.nan, math.inf]])
def test_no_distribution_reads_zero_and_says_so(row: list[float]) -> None:
    assert reference.one_row(row) == (0.0, 0.0, 0.0, 0.0, 0.0, False)
    assert reference.surprisal(row, 0) == 0.0


def test_infinite_logits_share_all_probability() -> None:
    row = [math.inf, 3.4e38, math.inf, -math.inf]
    assert reference.one_row(row).entropy_nats == pytest.approx(math.log(2.0))
    assert reference.surprisal(row, 0) == pytest.approx(math.log(2.0))
    assert reference.surprisal(row, 1) == math.inf
    assert reference.surprisal(row, 4) == math.inf
    assert reference.surprisal(row, -1) == math.inf


def test_temperature_zero_is_uniform_over_the_largest() -> None:
    assert reference.one_row([5.0, 1.0, 5.0, 4.9], temperature=0.0).entropy_nats == pytest.approx(
        math.log(2.0)
    )


@pytest.mark.parametrize("temperature", [-1.0, math.inf, math.nan])
def test_a_meaningless_temperature_gives_no_distribution(temperature: float) -> None:
    assert not reference.one_row([1.0, 2.0], temperature).valid


def test_arrays_are_rows_too() -> None:
    rows = reference.row_statistics(np.zeros((2, 8), dtype=np.float32))
    assert [row.entropy_nats for row in rows] == pytest.approx([math.log(8.0)] * 2)


@given(LOGITS, st.data())
def test_the_bounds_contain_the_entropy(logits: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(logits)))
    exact = scipy_entropy(softmax(logits))
    topk = sorted(logits, reverse=True)[:k]
    bounds = reference.tail_bounds(topk, float(logsumexp(logits)), len(logits))
    assert bounds.low_nats - 1e-11 <= exact <= bounds.high_nats + 1e-11
    assert bounds.low_nats <= bounds.point_nats <= bounds.high_nats
    assert bounds.tail_mass == pytest.approx(
        softmax(logits)[np.argsort(logits)[: len(logits) - k]].sum(), abs=1e-12
    )
    assert reference.truncated_entropy(topk) == pytest.approx(scipy_entropy(softmax(topk)), abs=1e-11)
