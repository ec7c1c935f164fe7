"""Hit share over the size of the pool, a line for each policy."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sgl_entropic.errors import UnsupportedError
from sgl_entropic.replay.table import Row


def write(path: Path, rows: Sequence[Row], title: str) -> None:
    """Write the picture; its form follows the ending of ``path``.

    Raises:
        UnsupportedError: matplotlib is not installed.
    """
    plt = _pyplot()
    figure, panel = plt.subplots(figsize=(8, 5))
    for policy in dict.fromkeys(row["policy"] for row in rows):
        own = sorted((row["pool_blocks"], row["hit_tokens_share"]) for row in rows if row["policy"] == policy)
        style = {"ours": "-", "belady": ":"}.get(policy, "--")
        panel.plot(*zip(*own, strict=True), style, marker="o", label=policy, alpha=0.8)
    panel.set_xscale("log")
    panel.set_xlabel("pool, blocks")
    panel.set_ylabel("share of prompt tokens found cached")
    # The name of a file is no formula, and may be no text.
    panel.set_title(title.encode("utf-8", "replace").decode(), fontsize=10, parse_math=False)
    panel.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def require(path: Path) -> None:
    """Fail now rather than after the run: write a small picture of that form to memory.

    Raises:
        UnsupportedError: matplotlib is not installed, or cannot write what ``path`` ends in.
    """
    plt = _pyplot()
    figure, panel = plt.subplots(figsize=(1, 1))
    known = sorted(figure.canvas.get_supported_filetypes())
    form = path.suffix[1:].lower()
    try:
        if form not in known:
            raise UnsupportedError(f"--plot is {path}: it has to end in one of .{', .'.join(known)}")
        panel.set_title("0")
        figure.savefig(io.BytesIO(), format=form)
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        raise UnsupportedError(f"--plot is {path}: matplotlib cannot write .{form} here: {error}") from error
    finally:
        plt.close(figure)


def _pyplot() -> Any:
    try:
        import matplotlib as mpl  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise UnsupportedError("--plot needs matplotlib: the extra 'bench' of this project") from error
    mpl.use("agg")
    from matplotlib import pyplot as plt  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415

    return plt
