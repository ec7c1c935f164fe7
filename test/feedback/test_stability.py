"""Which gains are stable: the largest varentropy, against optimisers, and the loop itself at the limit."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize, minimize_scalar

from sgl_entropic.errors import ConfigError
from sgl_entropic.feedback.stability import (
    Mode,
    contraction_factor,
    largest_gain,
    largest_varentropy,
    require_stable,
)

VOCAB_SIZES = [2, 3, 4, 10, 1000, 49_152, 151_936, 262_144]


def varentropy(log_p: np.ndarray) -> float:
    p = np.exp(log_p)
    return float(p @ log_p**2 - (p @ log_p) ** 2)


def two_levels(share: float, vocab_size: int) -> float:
    """Varentropy with one outcome at ``share`` and the others alike."""
    return share * (1.0 - share) * math.log(share * (vocab_size - 1) / (1.0 - share)) ** 2


@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
def test_the_largest_varentropy_is_that_of_the_best_two_levels(vocab_size: int) -> None:
    best = max(
        -minimize_scalar(
            lambda share: -two_levels(share, vocab_size),
            bounds=bounds,
            method="bounded",
            options={"xatol": 1e-12},
        ).fun
        for bounds in ((1e-9, 0.5), (0.5, 1.0 - 1e-9))
    )
    assert largest_varentropy(vocab_size) == pytest.approx(best, rel=1e-10)


@pytest.mark.parametrize("vocab_size", [2, 3, 5, 8])
def test_an_optimiser_free_to_choose_all_probabilities_finds_no_more(vocab_size: int) -> None:
    generator = np.random.default_rng(vocab_size)

    def negative(logits: np.ndarray) -> float:
        return -varentropy(logits - np.log(np.exp(logits).sum()))

    found = max(-minimize(negative, generator.normal(size=vocab_size) * 2.0).fun for _ in range(20))
    assert found == pytest.approx(largest_varentropy(vocab_size), rel=1e-6)


@settings(max_examples=300)
@given(st.integers(2, 2000), st.integers(0, 2**32), st.floats(0.01, 30.0), st.integers(1, 3))
def test_no_distribution_has_more(vocab_size: int, seed: int, scale: float, power: int) -> None:
    logits = np.random.default_rng(seed).normal(size=vocab_size) ** power * scale
    logits -= logits.max()
    log_p = logits - math.log(np.exp(logits).sum())
    assert varentropy(log_p) <= largest_varentropy(vocab_size) * (1.0 + 1e-9)


@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
def test_the_closed_bound_is_above_and_close(vocab_size: int) -> None:
    bound = 1.0 + math.log(vocab_size - 1.0) ** 2 / 4.0
    excess = bound - largest_varentropy(vocab_size)
    assert 0.0 < excess < (0.02 if vocab_size >= 30_000 else 0.6)


def test_more_tokens_allow_more_varentropy() -> None:
    values = [largest_varentropy(size) for size in range(1, 400)]
    assert values[0] == 0.0
    assert (np.diff(values) > 0.0).all()


def loop_ratio(gain: float, vocab_size: int) -> float:
    """Error after one step of ``u' = u - gain (H - H*)`` over the error before, at the steepest row there is."""
    share = minimize_scalar(
        lambda share: -two_levels(share, vocab_size), bounds=(0.5, 1.0 - 1e-9), method="bounded"
    ).x
    gap = math.log(share * (vocab_size - 1) / (1.0 - share))

    def entropy(u: float) -> float:
        log_z = math.log(1.0 + (vocab_size - 1) * math.exp(-gap / math.exp(u)))
        rest = -math.expm1(-log_z)
        return log_z + rest * gap / math.exp(u)

    error = 1e-5
    return abs(error - gain * (entropy(error) - entropy(0.0))) / error


@pytest.mark.parametrize("vocab_size", [10, 1000, 49_152])
def test_the_loop_shrinks_errors_below_the_limit_and_grows_them_above(vocab_size: int) -> None:
    limit = largest_gain("fixed", vocab_size)
    assert loop_ratio(0.99 * limit, vocab_size) < 1.0 < loop_ratio(1.01 * limit, vocab_size)
    for gain in (0.5 * limit, 0.9 * limit, 1.5 * limit):
        factor = contraction_factor("fixed", gain, vocab_size)
        assert loop_ratio(gain, vocab_size) == pytest.approx(factor, abs=1e-3)


def test_the_factor_of_newton_is_one_minus_gain_and_exact_has_none() -> None:
    assert contraction_factor("newton", 0.25, 49_152) == 0.75
    assert contraction_factor("newton", 1.75, 49_152) == 0.75
    assert contraction_factor("exact", 123.0, 49_152) == 0.0
    assert contraction_factor("fixed", 0.05, 49_152) == pytest.approx(0.508, abs=1e-3)


@given(st.sampled_from(["fixed", "newton"]), st.floats(0.001, 0.999), st.integers(2, 300_000))
def test_what_is_accepted_contracts(mode: Mode, share: float, vocab_size: int) -> None:
    gain = share * largest_gain(mode, vocab_size)
    require_stable(mode, gain, vocab_size)
    assert contraction_factor(mode, gain, vocab_size) < 1.0


@pytest.mark.parametrize(
    ("mode", "gain", "numbers"),
    [
        ("fixed", 0.5, ["sampling.gain is 0.5", "'fixed'", "49152", "by 14.08", "0 < gain < 0.06631"]),
        ("newton", 2.5, ["sampling.gain is 2.5", "'newton'", "by 1.5", "0 < gain < 2"]),
        ("newton", -0.1, ["sampling.gain is -0.1", "by 1.1", "0 < gain < 2"]),
        ("fixed", 0.0, ["sampling.gain is 0:", "by 1 ", "0 < gain < 0.06631"]),
        ("fixed", math.nan, ["sampling.gain is nan", "0 < gain < 0.06631"]),
        ("newton", math.inf, ["sampling.gain is inf", "0 < gain < 2"]),
    ],
)
def test_an_unstable_gain_is_refused_with_its_number(mode: Mode, gain: float, numbers: list[str]) -> None:
    with pytest.raises(ValueError, match=r"sampling\.gain") as refusal:
        require_stable(mode, gain, 49_152)
    assert isinstance(refusal.value, ConfigError)
    assert [number for number in numbers if number not in str(refusal.value)] == []


def test_exact_mode_has_no_gain_to_refuse() -> None:
    assert require_stable("exact", math.nan, 49_152) is None


def test_a_vocabulary_without_a_token_is_refused() -> None:
    with pytest.raises(ValueError, match="vocab_size must be at least 1, not 0"):
        largest_varentropy(0)
