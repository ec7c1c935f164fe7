"""Hit share over the size of the pool, a line for each policy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sgl_entropic.errors import UnsupportedError
from sgl_entropic.replay.table import Row


def write(path: Path, rows: Sequence[Row], title: str) -> None:
    """Write the picture; its form follows the ending of ``path``.

    Raises:
        UnsupportedError: matplotlib is not installed.
    """
    require()
    import matplotlib as mpl  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415 -- an extra

    mpl.use("agg")
    from matplotlib import pyplot as plt  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415

    figure, panel = plt.subplots(figsize=(8, 5))
    for policy in dict.fromkeys(row["policy"] for row in rows):
        own = sorted((row["pool_blocks"], row["hit_tokens_share"]) for row in rows if row["policy"] == policy)
        style = {"ours": "-", "belady": ":"}.get(policy, "--")
        panel.plot(*zip(*own, strict=True), style, marker="o", label=policy, alpha=0.8)
    panel.set_xscale("log")
    panel.set_xlabel("pool, blocks")
    panel.set_ylabel("share of prompt tokens found cached")
    panel.set_title(title, fontsize=10)
    panel.legend(fontsize=8)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def require() -> None:
    """Fail now rather than after the run.

    Raises:
        UnsupportedError: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl  # type: ignore[import-not-found,unused-ignore]  # noqa: F401, PLC0415
    except ModuleNotFoundError as error:
        raise UnsupportedError("--plot needs matplotlib: the extra 'bench' of this project") from error
