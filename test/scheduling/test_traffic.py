"""Columns hold what the facts hold."""

import math

from sgl_entropic.scheduling import RequestFacts
from sgl_entropic.scheduling.traffic import ALL_TRAFFIC, Columns, TrafficGroups


def test_columns_are_the_facts() -> None:
    groups = TrafficGroups()
    plain = RequestFacts("a", 3, 100, 50, 7, 40, route="chat")
    other = RequestFacts(
        "b", 4, 10, 5, 9, 64, ignores_eos=True, flow_nats=0.5, prefix_surprisal_nats=2.0, route="generate"
    )
    assert groups.of(plain) == ALL_TRAFFIC
    assert groups.observed(plain) == groups.of(plain) == 1
    columns = Columns.of([plain, other], groups)
    assert columns.group.tolist() == [1, ALL_TRAFFIC]
    assert columns.arrival.tolist() == [3, 4]
    assert columns.generated.tolist() == [7, 9]
    assert columns.remaining.tolist() == [plain.most_remaining_tokens, other.most_remaining_tokens]
    assert columns.context.tolist() == [plain.context_tokens, other.context_tokens]
    assert columns.uncached.tolist() == [plain.uncached_tokens, other.uncached_tokens]
    assert columns.private.tolist() == [67, 0]
    assert columns.ignores_eos.tolist() == [False, True]
    assert math.isnan(columns.flow_nats[0])
    assert columns.surprisal_nats[1] == 2.0


def test_no_requests_have_empty_columns() -> None:
    columns = Columns.of([], TrafficGroups())
    assert columns.uncached.shape == columns.group.shape == (0,)
