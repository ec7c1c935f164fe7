"""Quality against the share of the context that is read, one line for each policy, one row of panels for each length."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from twin_parts.plot import require

from attention_quality_parts.measures import DENSE
from attention_quality_parts.report import OURS, Row
from sgl_entropic.attention.settings import POLICIES

_PANELS = {
    "kl": "KL from dense, nats",
    "dnll": "surprisal less dense, nats",
    "needle": "digits recalled, first question",
    "second": "digits recalled, second question",
}
__all__ = ["require", "write"]


def write(path: Path, made: Sequence[Row], title: str) -> None:
    """Write the picture of the rows of a table; its form follows the ending of ``path``.

    Raises:
        SystemExit: matplotlib is not installed.
    """
    require()
    import matplotlib as mpl  # noqa: PLC0415 -- only where a plot was asked for

    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 -- after the backend was chosen

    lengths = list(dict.fromkeys(row["context_tokens"] for row in made))
    figures = [figure for figure in _PANELS if figure in made[0]]
    plot, panels = plt.subplots(
        len(lengths), len(figures), figsize=(3.6 * len(figures), 0.8 + 3.0 * len(lengths)), squeeze=False
    )
    for line, tokens in zip(panels, lengths, strict=True):
        for panel, figure in zip(line, figures, strict=True):
            for policy in POLICIES:
                _line(panel, [r for r in made if r["context_tokens"] == tokens], policy, figure)
            panel.set_title(f"{_PANELS[figure]} ({tokens} tokens)", fontsize=9)
            panel.set_xlabel("share of the context that is read", fontsize=8)
            panel.tick_params(labelsize=8)
            if figure == "kl":
                panel.set_yscale("symlog", linthresh=1e-3)
    panels[0][0].legend(fontsize=8)
    plot.suptitle(title, fontsize=10)
    plot.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    plot.savefig(path, dpi=150)
    plt.close(plot)


def _line(panel: object, made: Sequence[Row], policy: str, figure: str) -> None:
    points = sorted(
        (row for row in made if row["policy"] in (policy, DENSE)), key=lambda row: float(row["keep"])
    )
    x = [(row.get("keep_text") or row["keep_asked"])[0] for row in points]
    y = [row[figure][0] for row in points]
    spread = [
        [row[figure][0] - row[figure][1] for row in points],
        [row[figure][2] - row[figure][0] for row in points],
    ]
    width = 2.0 if policy == OURS else 1.0
    panel.errorbar(x, y, yerr=spread, marker="o", markersize=3, capsize=2, linewidth=width, label=policy)  # type: ignore[attr-defined]
