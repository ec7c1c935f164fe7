"""Prometheus metrics of the scheduler process, on SGLang's own ``/metrics``; their cardinality is constant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prometheus_client import Counter, Gauge, Histogram

from sgl_entropic.signals import TokenReading
from sgl_entropic.trace.counters import Counters

# Nats. ln(vocabulary) is about 10.8 to 12.5, so the last bucket holds a flat distribution.
_TOKENS = (0, 64, 256, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576)
_NATS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0, 12.5)


class Metrics:
    """``sgl_entropic:*`` metrics with the labels of SGLang's scheduler metrics."""

    def __init__(self, labels: dict[str, Any]) -> None:
        """Register the metrics; call it once a process, after SGLang has set up its multi-process directory."""
        names = list(labels)
        self._entropy = Histogram(
            "sgl_entropic:entropy_nats",
            "Entropy of the model's own next-token distribution.",
            names,
            buckets=_NATS,
        ).labels(**labels)
        self._sampled = Histogram(
            "sgl_entropic:sampled_entropy_nats",
            "Entropy after penalties, grammar mask, logit bias and temperature.",
            names,
            buckets=_NATS,
        ).labels(**labels)
        self._surprisal = Histogram(
            "sgl_entropic:surprisal_nats",
            "Surprisal of generated tokens under the model's own distribution.",
            names,
            buckets=_NATS,
        ).labels(**labels)
        self._wait = Histogram(
            "sgl_entropic:wait_tokens",
            "Tokens that the server processed between a request's arrival and its first admission.",
            names,
            buckets=_TOKENS,
        ).labels(**labels)
        self._counters = {
            name: Counter(f"sgl_entropic:{name}", f"Count of {name.replace('_', ' ')}.", names).labels(
                **labels
            )
            for name in Counters().snapshot()
        }
        self._slot_bytes = Gauge(
            "sgl_entropic:slot_store_bytes",
            "Memory of the per-slot readings.",
            names,
            multiprocess_mode="mostrecent",
        ).labels(**labels)
        self._fleet_gravity = Gauge(
            "sgl_entropic:fleet_gravity",
            "Share of the running requests in strong gravity.",
            names,
            multiprocess_mode="mostrecent",
        ).labels(**labels)
        self._seen = dict.fromkeys(self._counters, 0)

    def set_slot_bytes(self, nbytes: int) -> None:
        """Memory that the slot store holds."""
        self._slot_bytes.set(nbytes)

    def set_fleet_gravity(self, share: float) -> None:
        """Share of the running requests in strong gravity."""
        self._fleet_gravity.set(share)

    def observe(self, readings: Sequence[TokenReading]) -> None:
        """Observe the readings of one step; undefined ones are left out."""
        for reading in readings:
            if reading.entropy_nats is not None:
                self._entropy.observe(reading.entropy_nats)
            if reading.sampled_entropy_nats is not None:
                self._sampled.observe(reading.sampled_entropy_nats)
            if reading.surprisal_nats is not None:
                self._surprisal.observe(reading.surprisal_nats)

    def observe_wait(self, tokens: int) -> None:
        """Observe how long a request waited, in tokens that the server processed meanwhile."""
        self._wait.observe(tokens)

    def publish(self, counters: Counters) -> None:
        """Bring the exported counters up to ``counters``."""
        for name, value in counters.snapshot().items():
            if value != self._seen[name]:
                self._counters[name].inc(value - self._seen[name])
                self._seen[name] = value
