"""Fairness between clients keeps a bounded number of names."""

from __future__ import annotations

from sgl_entropic.scheduling.clients import MOST_CLIENTS, ClientCounters


def test_names_that_only_ever_wait_are_forgotten() -> None:
    counters = ClientCounters()
    for at in range(3 * MOST_CLIENTS):
        counters.factors([f"a{at}", f"b{at}"])
    assert len(counters._served) <= MOST_CLIENTS


def test_who_was_served_most_is_remembered_longest() -> None:
    counters = ClientCounters()
    counters.charge("heavy", 1e6)
    for at in range(2 * MOST_CLIENTS):
        counters.charge(f"c{at}", 1.0)
    factors = counters.factors(["heavy", "new"])
    assert factors[0] < 1.0 < factors[1]
