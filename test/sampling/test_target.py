"""The automatic target: the mean of what is known of a prompt, within bounds."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from sgl_entropic.sampling.target import (
    FALLBACK_NATS,
    MAX_TARGET_NATS,
    MIN_KNOWN,
    MIN_TARGET_NATS,
    auto_target_nats,
)

NAN, INF = math.nan, math.inf
UNKNOWN = st.sampled_from([NAN, INF, -INF, -0.5])


@given(st.lists(st.floats(0.0, 12.0, width=32) | UNKNOWN, max_size=100))
def test_the_target_is_the_mean_of_the_known_entropies_within_bounds(entropies: list[float]) -> None:
    known = [value for value in entropies if math.isfinite(value) and value >= 0.0]
    mean = math.fsum(known) / len(known) if len(known) >= MIN_KNOWN else FALLBACK_NATS
    expected = min(max(mean, MIN_TARGET_NATS), MAX_TARGET_NATS)
    assert auto_target_nats(torch.tensor(entropies)).item() == pytest.approx(expected, rel=1e-6)


def test_a_prompt_hardly_known_gets_the_fallback() -> None:
    prompts = torch.full((2, 20), NAN)
    prompts[0, : MIN_KNOWN - 1] = 3.0
    prompts[1, :MIN_KNOWN] = 3.0
    assert auto_target_nats(prompts).tolist() == [FALLBACK_NATS, 3.0]


@pytest.mark.parametrize("shape", [(0,), (3, 0), (3, 5)])
def test_a_prompt_of_which_nothing_is_known_gets_the_fallback(shape: tuple[int, ...]) -> None:
    targets = auto_target_nats(torch.full(shape, NAN), min_known=0, fallback_nats=9.0, max_nats=2.0)
    assert targets.shape == shape[:-1]
    assert (targets == 2.0).all()


def test_bounds_and_the_least_number_are_the_callers() -> None:
    prompt = torch.tensor([5.0, NAN, 7.0])
    assert auto_target_nats(prompt, min_known=2, max_nats=9.0).item() == 6.0
    assert auto_target_nats(prompt, min_known=2, max_nats=3.0).item() == 3.0
    assert auto_target_nats(prompt, min_known=2, min_nats=8.0, max_nats=9.0).item() == 8.0
    assert auto_target_nats(prompt, min_known=3, fallback_nats=2.0).item() == 2.0


@given(st.lists(st.floats(0.0, 4.0, width=32), min_size=MIN_KNOWN, max_size=60), st.integers(0, 40))
def test_padding_does_not_show(entropies: list[float], padding: int) -> None:
    prompt = torch.tensor(entropies)
    padded = torch.cat([torch.full((padding,), NAN), prompt, torch.full((padding,), NAN)])
    torch.testing.assert_close(auto_target_nats(padded), auto_target_nats(prompt), rtol=2e-7, atol=0.0)


def test_a_more_uncertain_prompt_has_a_higher_target() -> None:
    targets = auto_target_nats(torch.tensor([[1.0], [1.5], [3.0]]).expand(3, MIN_KNOWN))
    assert targets.tolist() == [1.0, 1.5, 3.0]


def test_half_precision_is_summed_exactly() -> None:
    assert auto_target_nats(torch.full((5000,), 1.5, dtype=torch.float16)).item() == 1.5


def test_nothing_waits_for_the_device() -> None:
    with FakeTensorMode():  # refuses every operation whose outcome depends on the data
        assert auto_target_nats(torch.rand(4, 100)).shape == (4,)
