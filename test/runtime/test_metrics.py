"""Prometheus metrics: one series a name and process, counters that only grow, undefined readings left out."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY, generate_latest

from sgl_entropic.runtime.metrics import Metrics
from sgl_entropic.signals import TokenReading
from sgl_entropic.trace.counters import Counters

LABELS = {"model_name": "m", "engine_type": "unified", "tp_rank": 0}
COUNTERS = list(Counters().snapshot())
HISTOGRAMS = ("entropy_nats", "sampled_entropy_nats", "surprisal_nats")


@pytest.fixture
def metrics() -> Iterator[Metrics]:
    """Registered for one test; a process registers them once."""
    before = set(REGISTRY._collector_to_names)
    yield Metrics(LABELS)
    for collector in set(REGISTRY._collector_to_names) - before:
        REGISTRY.unregister(collector)


def value(name: str, **more: str) -> float | None:
    labels = {key: str(item) for key, item in LABELS.items()} | more
    return REGISTRY.get_sample_value(f"sgl_entropic:{name}", labels)


def series() -> set[str]:
    """All our series, with their labels and without their values."""
    lines = generate_latest(REGISTRY).decode().splitlines()
    return {line.rpartition(" ")[0] for line in lines if line.startswith("sgl_entropic:")}


def test_every_series_is_there_from_the_start(metrics: Metrics) -> None:
    """At zero, so that a rate over them is defined."""
    assert [value(f"{name}_total") for name in COUNTERS] == [0.0] * len(COUNTERS)
    assert [value(f"{name}_count") for name in HISTOGRAMS] == [0.0] * len(HISTOGRAMS)
    metrics.set_slot_bytes(4096)
    assert value("slot_store_bytes") == 4096.0


def test_the_number_of_series_does_not_grow(metrics: Metrics) -> None:
    """Whatever is observed: no label holds a request, a token or a number."""
    before = series()
    counters = Counters()
    for number in range(50):
        metrics.observe([TokenReading(number / 4, 1.0, number * 3.0, None)])
        counters.measured_tokens += 1
        metrics.publish(counters)
    assert series() == before
    for line in before:
        for label, item in LABELS.items():
            assert f'{label}="{item}"' in line


def test_readings_fall_into_the_buckets_of_their_size(metrics: Metrics) -> None:
    metrics.observe([TokenReading(0.3, None, 7.0, 0.02), TokenReading(20.0, None, 0.0, 12.5)])
    assert [value("entropy_nats_bucket", le=le) for le in ("0.25", "0.5", "12.5", "+Inf")] == [0, 1, 1, 2]
    assert [value("surprisal_nats_bucket", le=le) for le in ("0.01", "6.0", "8.0")] == [1, 1, 2]
    assert [value("sampled_entropy_nats_bucket", le=le) for le in ("0.01", "0.05", "12.5")] == [0, 1, 2]
    assert value("entropy_nats_sum") == pytest.approx(20.3)


def test_undefined_readings_are_left_out_one_by_one(metrics: Metrics) -> None:
    metrics.observe(
        [
            TokenReading(None, None, None, None),
            TokenReading(1.0, None, None, 2.0),
            TokenReading(None, 1.0, 3.0, None),
        ]
    )
    assert [value(f"{name}_count") for name in HISTOGRAMS] == [1.0, 1.0, 1.0]
    assert [value(f"{name}_sum") for name in HISTOGRAMS] == [1.0, 2.0, 3.0]


@given(st.lists(st.lists(st.sampled_from(COUNTERS), max_size=5), max_size=6))
def test_exported_counters_follow_and_never_fall(steps: list[list[str]]) -> None:
    before = set(REGISTRY._collector_to_names)
    metrics = Metrics(LABELS)
    try:
        counters, last = Counters(), dict.fromkeys(COUNTERS, 0.0)
        for step in steps:
            for name in step:
                setattr(counters, name, getattr(counters, name) + 3)
            metrics.publish(counters)
            now = {name: value(f"{name}_total") or 0.0 for name in COUNTERS}
            assert now == counters.snapshot()
            assert all(now[name] >= last[name] for name in COUNTERS)
            last = now
    finally:
        for collector in set(REGISTRY._collector_to_names) - before:
            REGISTRY.unregister(collector)
