"""Expected flow: shrunk means, own flow, and the slope on the prefix's surprisal."""

import math

import numpy as np
import pytest

from sgl_entropic.scheduling import FlowPrior, RequestFacts
from sgl_entropic.scheduling.prior import PRIOR_FLOW_NATS


def request(
    flow: float | None = None, surprisal: float | None = None, generated: int = 0, route: str = "chat"
) -> RequestFacts:
    return RequestFacts(
        "r", 0, 100, 512, generated, route=route, flow_nats=flow, prefix_surprisal_nats=surprisal
    )


def test_before_any_data_it_is_the_prior() -> None:
    assert FlowPrior().expected(request()) == PRIOR_FLOW_NATS
    assert FlowPrior().expected(request(surprisal=3.0)) == PRIOR_FLOW_NATS


def test_kinds_have_means_of_their_own_and_unknown_ones_the_traffics() -> None:
    prior = FlowPrior()
    for _ in range(200):
        prior.observe_finished(request(0.2, route="code"))
        prior.observe_finished(request(1.0, route="story"))
    assert prior.expected(request(route="code")) == pytest.approx(0.2, abs=0.05)
    assert prior.expected(request(route="story")) == pytest.approx(1.0, abs=0.05)
    assert prior.expected(request(route="new")) == pytest.approx(prior.mean_nats)
    assert prior.mean_nats == pytest.approx(0.6, abs=0.03)


def test_a_running_request_is_believed_more_with_each_token() -> None:
    prior = FlowPrior()
    expected = [prior.expected(request(2.0, generated=tokens)) for tokens in (0, 8, 64, 4096)]
    assert expected == sorted(expected)
    assert expected[0] == PRIOR_FLOW_NATS
    assert expected[-1] == pytest.approx(2.0, rel=0.02)


def test_the_prefixs_surprisal_moves_it_by_the_slope_of_the_traffic() -> None:
    prior, rng = FlowPrior(), np.random.default_rng(0)
    for surprisal in rng.uniform(1.0, 5.0, 400):
        prior.observe_finished(request(0.1 + 0.2 * surprisal, float(surprisal)))
    assert prior.expected(request(surprisal=3.5)) == pytest.approx(0.8, abs=0.03)
    assert prior.expected(request(surprisal=2.5)) == pytest.approx(0.6, abs=0.03)
    # Far outside of what was seen, by no more than half of the mean.
    assert prior.expected(request(surprisal=500.0)) == pytest.approx(1.5 * prior.mean_nats, rel=0.05)


@pytest.mark.parametrize("flow", [None, math.nan, math.inf, -1.0])
def test_what_is_no_flow_teaches_nothing(flow: float | None) -> None:
    prior = FlowPrior()
    prior.observe_finished(request(flow, 2.0))
    assert prior.mean_nats == PRIOR_FLOW_NATS
    assert prior.expected(request(surprisal=9.0)) == PRIOR_FLOW_NATS
