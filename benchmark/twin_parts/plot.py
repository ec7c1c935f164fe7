"""Bars of the medians with their intervals, one panel for each workload."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import bootstrap_median

from twin_parts.claims import figures_by_round

_COLUMNS = 3


def write(path: Path, samples: Sequence[dict[str, Any]], title: str, seed: int) -> None:
    """Write the picture; its form follows the ending of ``path``.

    Raises:
        SystemExit: matplotlib is not installed.
    """
    require()
    import matplotlib as mpl  # noqa: PLC0415 -- only where a plot was asked for

    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 -- after the backend was chosen

    workloads = list(dict.fromkeys(s["workload"] for s in samples))
    arms = list(dict.fromkeys(s["arm"] for s in samples))
    rows = -(-len(workloads) // _COLUMNS)
    figure, panels = plt.subplots(
        rows, min(_COLUMNS, len(workloads)), figsize=(12, 0.8 + 2.6 * rows), squeeze=False
    )
    for panel in panels.flat[len(workloads) :]:
        panel.axis("off")
    for panel, workload in zip(panels.flat, workloads, strict=False):
        for at, arm in enumerate(arms):
            values = list(figures_by_round(samples, arm, workload).values())
            if not values:
                continue
            median, (low, high) = bootstrap_median(values, seed)
            panel.barh(at, median, xerr=[[median - low], [high - median]], capsize=3, color=f"C{at}")
            panel.text(0, at, f" {median:.3g}", va="center", color="white", fontsize=8)
        kind = next(s["figure"] for s in samples if s["workload"] == workload)
        panel.set_title(workload, fontsize=10)
        panel.set_xlabel(kind.replace("_tokens_per_s", " tokens/s"), fontsize=8)
        panel.set_yticks(range(len(arms)), arms, fontsize=8)
        panel.invert_yaxis()
    figure.suptitle(title, fontsize=10)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def require() -> None:
    """Fail now rather than after the run.

    Raises:
        SystemExit: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl  # noqa: F401, PLC0415 -- only where a plot was asked for
    except ModuleNotFoundError as error:
        raise SystemExit("--plot needs matplotlib: the extra 'bench' of this project") from error
