"""From samples to tables and claims. A ratio is formed within a round, and only of two figures that are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness import Claim, bootstrap_median, claim

from twin_parts.rates import summary
from twin_parts.workloads import CLAIMED

Sample = dict[str, Any]

# Workloads in the order of twin_parts.workloads.CLAIMED.
STOCK_BARS = (5.0, 4.0, 4.0, 6.0, 3.0)
LLAMACPP_BARS = (0.9, 1.5, 1.5, 1.0, 1.5)
START_BAR, MEMORY_BAR = "<= 45", "<= 2.5"
_CLAIM_NAMES = {
    "clients_1": "cpu_1_clients",
    "clients_8": "cpu_8_clients",
    "clients_16": "cpu_16_clients",
    "ctx2k_4_clients": "cpu_ctx2k_4_clients",
    "prefill2k": "cpu_prefill2k",
}


class NoRatioError(RuntimeError):
    """A ratio was asked for of figures that are not all there."""


def figures_by_round(samples: Sequence[Sample], arm: str, workload: str) -> dict[int, float]:
    """The compared figure of an arm and workload in each round.

    Raises:
        NoRatioError: one is zero, negative or not a number.
    """
    chosen = [s for s in samples if s["arm"] == arm and s["workload"] == workload]
    result = {s["round"]: float(s[s["figure"]]) for s in chosen}
    bad = {index: value for index, value in result.items() if not 0 < value < float("inf")}
    if bad:
        raise NoRatioError(f"{arm}, {workload}: no rate in rounds {bad}")
    return result


def ratios(samples: Sequence[Sample], ours: str, peer: str, workload: str) -> list[float]:
    """``ours`` over ``peer`` in each round.

    Raises:
        NoRatioError: one of the two lacks a round, or there are none.
    """
    upper, lower = (figures_by_round(samples, arm, workload) for arm in (ours, peer))
    if not upper or upper.keys() != lower.keys():
        raise NoRatioError(
            f"{workload}: {ours} has rounds {sorted(upper)}, {peer} has {sorted(lower)}; a ratio needs the same of both"
        )
    return [upper[index] / lower[index] for index in sorted(upper)]


def against(
    samples: Sequence[Sample], ours: str, peer: str, label: str, bars: Sequence[float], seed: int
) -> list[Claim]:
    """The claims ``cpu_..._vs_LABEL`` of the workloads that were measured."""
    measured = {s["workload"] for s in samples}
    result = []
    for workload, bar in zip(CLAIMED, bars, strict=True):
        if workload in measured:
            median, interval = bootstrap_median(ratios(samples, ours, peer, workload), seed)
            name = f"{_CLAIM_NAMES[workload]}_vs_{label}"
            result.append(claim(name, median, interval, "ratio", f">= {bar:g}"))
    return result


def worst(name: str, by_arm: Mapping[str, Sequence[float]], unit: str, bar: str, seed: int) -> Claim:
    """A claim of which less is better, of the arm with the largest median."""
    median, interval = max(bootstrap_median(values, seed) for values in by_arm.values())
    return claim(name, median, interval, unit, bar)


def bandwidth_share(
    samples: Sequence[Sample],
    arm: str,
    weight_bytes: int,
    bandwidths: Mapping[int, float],
    bar: str,
    seed: int,
) -> Claim:
    """Bytes of weights times tokens per second of one client, over what the machine reads in the same round.

    Args:
        samples: of the run.
        arm: whose.
        weight_bytes: that a token reads.
        bandwidths: bytes per second by round.
        bar: of the claim.
        seed: of the bootstrap.

    Raises:
        NoRatioError: the arm was not measured with one client.
    """
    rates = figures_by_round(samples, arm, "clients_1")
    if not rates:
        raise NoRatioError(f"{arm} has no rounds of clients_1")
    shares = [weight_bytes * rate / bandwidths[index] for index, rate in rates.items()]
    median, interval = bootstrap_median(shares, seed)
    return claim("cpu_1_client_share_of_bandwidth", median, interval, "share", bar)


def table(samples: Sequence[Sample], ours: Sequence[str], seed: int) -> str:
    """Medians of every arm and workload, and the ratios of ``ours`` to all others, as text.

    Raises:
        NoRatioError: see :func:`ratios`.
    """
    arms = list(dict.fromkeys(s["arm"] for s in samples))
    workloads = list(dict.fromkeys(s["workload"] for s in samples))
    lines = [
        (
            f"{'workload':18} {'arm':18} {'tokens/s':>9} {'interval':>19} {'with prefill':>12} "
            f"{'first ms':>9} {'gap ms':>8} {'whole s':>8}"
        )
    ]
    for workload in workloads:
        for arm in arms:
            values = list(figures_by_round(samples, arm, workload).values())
            if not values:
                continue
            median, (low, high) = bootstrap_median(values, seed)
            own = [s for s in samples if s["arm"] == arm and s["workload"] == workload]
            whole, _ = bootstrap_median([s["output_tokens_per_s"] for s in own], seed)
            times = summary(own)
            lines.append(
                f"{workload:18} {arm:18} {median:9.1f} {f'{low:.1f} to {high:.1f}':>19} {whole:12.1f} "
                f"{times['ttft_ms']:9.0f} {times['gap_ms']:8.1f} {times['latency_s']:8.2f}"
            )
    lines += ["", f"{'workload':18} {'ratio':36} {'median':>7} {'interval':>15}"]
    for workload in workloads:
        present = [arm for arm in arms if figures_by_round(samples, arm, workload)]
        for one in (arm for arm in present if arm in ours):
            for peer in (arm for arm in present if arm != one):
                median, (low, high) = bootstrap_median(ratios(samples, one, peer, workload), seed)
                lines.append(
                    f"{workload:18} {f'{one} / {peer}':36} {median:7.2f} {f'{low:.2f} to {high:.2f}':>15}"
                )
    return "\n".join(lines)
