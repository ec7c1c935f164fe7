"""The mean is that of the first states, and then stays."""

from __future__ import annotations

import math

import torch

from sgl_entropic.runtime.gravity.mean import MeanVector


def test_it_is_the_mean_of_all_states_however_they_arrive() -> None:
    states = torch.randn(40, 7) * 3 + 5
    mean = MeanVector(torch.zeros(7), wanted=40)
    at = 0
    for count in (1, 16, 3, 20):
        assert not mean.known
        mean.learn(states[at : at + count])
        at += count
    assert mean.known
    torch.testing.assert_close(mean.values, states.double().mean(0).float(), atol=1e-5, rtol=0)


def test_a_state_that_is_no_vector_moves_nothing() -> None:
    mean = MeanVector(torch.zeros(3), wanted=4)
    mean.learn(torch.ones(2, 3))
    mean.learn(torch.tensor([[math.nan, 1.0, 1.0], [1.0, math.inf, 1.0]]))
    assert mean.known
    assert mean.values.tolist() == [1.0, 1.0, 1.0]


def test_a_mean_that_is_given_is_known() -> None:
    assert MeanVector(torch.zeros(3)).known
