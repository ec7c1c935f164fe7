"""Bounding the entropy from another server's ``top_logprobs``."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_softmax
from scipy.stats import entropy as scipy_entropy

from sgl_entropic.entropy.from_logprobs import entropy_bounds_from_logprobs
from sgl_entropic_kernels import reference


@given(st.lists(st.floats(-60.0, 60.0), min_size=1, max_size=50), st.data())
def test_the_bounds_contain_the_entropy(logits: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(logits)))
    logprobs = log_softmax(np.array(logits))
    topk = data.draw(st.permutations(sorted(logprobs.tolist(), reverse=True)[:k]))
    bounds = entropy_bounds_from_logprobs(topk, len(logits))
    exact = scipy_entropy(np.exp(logprobs))
    assert bounds.low_nats - 1e-11 <= exact <= bounds.high_nats + 1e-11
    assert bounds.low_nats <= bounds.point_nats <= bounds.high_nats
    assert bounds == pytest.approx(reference.tail_bounds(topk, 0.0, len(logits)), abs=1e-11)


def test_a_flat_tail_reaches_the_upper_bound() -> None:
    p = [0.5, *[0.5 / 99] * 99]
    bounds = entropy_bounds_from_logprobs([math.log(p[0])], 100)
    assert bounds.high_nats == pytest.approx(scipy_entropy(p))
    assert bounds.low_nats == pytest.approx(math.log(2.0))
    assert bounds.point_nats == pytest.approx((bounds.low_nats + bounds.high_nats) / 2.0)
    assert bounds.tail_mass == pytest.approx(0.5)


def test_a_packed_tail_reaches_the_lower_bound() -> None:
    p = [0.4, 0.2, 0.2, 0.2, *[0.0] * 96]
    assert entropy_bounds_from_logprobs([math.log(0.4), math.log(0.2)], 100).low_nats == pytest.approx(
        scipy_entropy(p)
    )


@pytest.mark.parametrize("absent", [-math.inf, -9999.0])
def test_an_impossible_alternative_leaves_no_tail(absent: float) -> None:
    assert entropy_bounds_from_logprobs([0.0, absent], 50_000) == (0.0, 0.0, 0.0, 0.0)


def test_a_whole_vocabulary_is_exact() -> None:
    p = [0.7, 0.2, 0.1]
    bounds = entropy_bounds_from_logprobs([math.log(value) for value in p], 3)
    assert bounds.low_nats == bounds.high_nats == pytest.approx(scipy_entropy(p))


def test_probabilities_rounded_above_one_are_one() -> None:
    assert entropy_bounds_from_logprobs([1e-6], 10) == (0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("logprobs", "vocab_size", "message"),
    [
        ([], 10, "from 1 to vocab_size = 10"),
        ([-1.0, -2.0], 1, "not 2"),
        ([0.5], 10, "at most 0, not 0.5"),
        ([math.nan], 10, "at most 0, not nan"),
    ],
)
def test_numbers_that_are_no_logprobs_are_refused(
    logprobs: list[float], vocab_size: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        entropy_bounds_from_logprobs(logprobs, vocab_size)
