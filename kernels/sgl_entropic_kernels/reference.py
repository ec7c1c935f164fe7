"""What each operation means: float64, plain loops, nothing clever. Every fast version is tested against this.

Rows are any iterables of numbers (lists, numpy arrays). Natural logs, entropies in nats.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple


class RowReference(NamedTuple):
    """Statistics of one row. A row that is no distribution has ``valid`` False and every number 0."""

    max_logit: float
    log_partition: float
    """ln sum exp(z - max_logit)."""
    log_normalizer: float
    """ln sum exp(z); ``+inf`` for a row that contains ``+inf``."""
    entropy_nats: float
    varentropy: float
    valid: bool


class TailReference(NamedTuple):
    """Bounds on an entropy, from the largest logits only."""

    low_nats: float
    high_nats: float
    point_nats: float
    tail_mass: float


_NO_DISTRIBUTION = RowReference(0.0, 0.0, 0.0, 0.0, 0.0, False)


def row_statistics(logits: Iterable[Iterable[float]], temperature: float = 1.0) -> list[RowReference]:
    """Return the statistics of each row of ``logits`` [B, V] divided by ``temperature``."""
    return [one_row(row, temperature) for row in logits]


def one_row(row: Iterable[float], temperature: float = 1.0) -> RowReference:
    """Return the statistics of one row of logits at a temperature.

    ``-inf`` is an illegal token. Entries at ``+inf`` share all probability evenly, as in the limit.
    Temperature 0 is the limit too: the largest logits share it evenly. NaN anywhere, no legal token, no token
    at all, or a temperature that is negative, infinite or NaN: no distribution.
    """
    logits = [float(z) for z in row]
    legal = any(z > -math.inf for z in logits)
    if not legal or any(math.isnan(z) for z in logits) or not 0.0 <= temperature < math.inf:
        return _NO_DISTRIBUTION
    max_logit = _divide(max(logits), temperature)
    shifted = _shifted(logits, temperature)

    partition = 0.0
    for d in shifted:
        partition += math.exp(d)
    log_partition = math.log(partition)

    entropy_nats = 0.0
    for d in shifted:
        p = math.exp(d) / partition
        if p > 0.0:
            entropy_nats += p * (log_partition - d)

    varentropy = 0.0
    for d in shifted:
        p = math.exp(d) / partition
        if p > 0.0:
            varentropy += p * (log_partition - d - entropy_nats) ** 2
    return RowReference(max_logit, log_partition, max_logit + log_partition, entropy_nats, varentropy, True)


def surprisal(row: Iterable[float], token_id: int) -> float:
    """Return ``-ln p`` of one token: ``+inf`` if illegal or outside the row, 0 without a distribution."""
    logits = [float(z) for z in row]
    statistics = one_row(logits)
    if not statistics.valid:
        return 0.0
    if not 0 <= token_id < len(logits):
        return math.inf
    return statistics.log_partition - _shifted(logits, 1.0)[token_id]


def truncated_entropy(topk_logits: Iterable[float]) -> float:
    """Return the entropy of one row renormalised over its k largest logits."""
    return one_row(topk_logits).entropy_nats


def tail_bounds(topk_logits: Iterable[float], log_normalizer: float, vocab_size: int) -> TailReference:
    """Bound the entropy of one row from its k largest logits and its true normaliser.

    The tail of mass ``r`` holds most entropy when flat over the ``vocab_size - k`` other tokens, and least
    when packed into tokens as likely as the k-th. No tail token is likelier than that, so that
    ``r <= (vocab_size - k) p_k``.
    """
    logits = [float(z) for z in topk_logits]
    if not math.isfinite(log_normalizer) or not all(z < math.inf for z in logits):
        high_nats = math.log(vocab_size)
        return TailReference(0.0, high_nats, high_nats / 2.0, 1.0)
    head = 0.0
    tail_mass = 1.0
    p_k = 1.0
    for z in logits:
        p = min(1.0, math.exp(min(0.0, z - log_normalizer)))
        if p > 0.0:
            head -= p * math.log(p)
        tail_mass -= p
        p_k = min(p_k, p)
    tail_tokens = vocab_size - len(logits)
    tail_mass = min(max(0.0, tail_mass), tail_tokens * p_k)
    if tail_mass == 0.0:
        return TailReference(head, head, head, 0.0)
    low_nats = head - tail_mass * math.log(p_k)
    high_nats = max(low_nats, head - tail_mass * math.log(tail_mass / tail_tokens))
    return TailReference(low_nats, high_nats, (low_nats + high_nats) / 2.0, tail_mass)


def _shifted(logits: list[float], temperature: float) -> list[float]:
    """Return ``(z - max z) / temperature``: 0 for the largest logits, even where that is inf - inf."""
    largest = max(logits)
    return [0.0 if z == largest else _divide(z - largest, temperature) for z in logits]


def _divide(numerator: float, temperature: float) -> float:
    """Return the quotient, or its limit as the temperature falls to 0."""
    if temperature == 0.0:
        return math.copysign(math.inf, numerator) if numerator != 0.0 else 0.0
    return numerator / temperature
