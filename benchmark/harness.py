"""What every benchmark shares: claims with intervals, the facts of the run, and the result file."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Claim:
    """One figure that the project states.

    Attributes:
        name: stable name.
        value: the figure, usually a median.
        low: lower end of its interval.
        high: upper end of its interval.
        unit: its unit; ``ratio`` for paired quotients.
        bar: what was to be reached, as text such as ``>= 0.98``.
        ok: whether ``value`` reaches the bar.
    """

    name: str
    value: float
    low: float
    high: float
    unit: str
    bar: str
    ok: bool


def claim(name: str, value: float, interval: tuple[float, float], unit: str, bar: str) -> Claim:
    """A claim with its verdict; ``bar`` is ``>= x`` or ``<= x``."""
    relation, limit = bar.split()
    ok = value >= float(limit) if relation == ">=" else value <= float(limit)
    return Claim(name, value, interval[0], interval[1], unit, bar, ok)


def bootstrap_median(
    samples: Sequence[float], seed: int, confidence: float = 0.95, draws: int = 10_000
) -> tuple[float, tuple[float, float]]:
    """Median of ``samples`` and its percentile bootstrap interval."""
    data = np.asarray(samples, float)
    rng = np.random.default_rng(seed)
    medians = np.median(data[rng.integers(0, len(data), (draws, len(data)))], axis=1)
    tail = (1 - confidence) / 2
    low, high = np.quantile(medians, (tail, 1 - tail))
    return float(np.median(data)), (float(low), float(high))


def run_facts(seed: int) -> dict[str, Any]:
    """Commit, date, host and versions of this run."""
    packages = ("sglang", "torch", "transformers", "sgl-entropic")
    return {
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(
            _git("status", "--porcelain", "--", "python", "kernels", "benchmark/*.py")
        ),
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "host": {
            "processor": _processor(),
            "cores": len(os.sched_getaffinity(0)),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
            "system": platform.platform(),
        },
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in packages}},
        # Files by their names alone: where they lay is nobody's business.
        "command": " ".join(Path(word).name if word.startswith("/") else word for word in sys.argv),
        "seed": seed,
    }


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@contextmanager
def measuring(kept: Path, *errors: type[Exception]) -> Iterator[None]:
    """What of a run may end early: any of ``errors`` and an interruption from outside become an end that says why.

    Args:
        kept: where what was measured until then lies.
        errors: what the run is known to raise.
    """
    script = Path(sys.argv[0]).name
    # Ended from outside it must stop its servers too, some of which would wait for ever. Both signals: what a shell
    # starts in the background ignores an interruption, and with it one that is only raised again.
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, _interrupt)
    print(f"logs and what is measured until the end: {kept}", file=sys.stderr, flush=True)
    try:
        yield
    except (*errors, KeyboardInterrupt) as error:
        reason = str(error) or "interrupted"
        raise SystemExit(f"{script}: {reason}\nno result; measured until then: {kept}") from error


def write_result(
    name: str, claims: Sequence[Claim], facts: dict[str, Any], samples: Any, **more: Any
) -> Path | None:
    """Print the claims and write ``results/NAME.json``; without a name no file."""
    print_claims(claims)
    if not name:
        print("no result file: no --name, or nothing is claimed")
        return None
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    content = {"claims": [asdict(one) for one in claims], **facts, **more, "samples": samples}
    path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")
    print(f"written: {path}")
    return path


def print_claims(claims: Sequence[Claim]) -> None:
    """A line for each."""
    for one in claims:
        verdict = "ok" if one.ok else "MISSED"
        print(
            f"{one.name:32} {one.value:.6g} [{one.low:.6g}, {one.high:.6g}] {one.unit}  bar {one.bar}  {verdict}"
        )


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments],  # noqa: S607 -- whichever git the user has
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
