"""When does narrative gravity trigger? The essay's 30 steps, 10 exploring and 20 converging, as a table and a picture.

``python benchmark/gravity_simulation.py [--plot FILE]``. The picture needs matplotlib, the extra ``bench``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from gravity_parts.simulation import EXPLORING, SETTINGS, Step, simulate

from sgl_entropic.errors import UnsupportedError

_COLOURS = {"strong": "tab:red", "medium": "tab:orange", "weak": "tab:grey"}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="write the picture; its form follows the ending"
    )
    options = parser.parse_args()
    steps = simulate(options.seed)
    print("step  part         entropy  gravity  energy  free energy  tier")
    for index, step in enumerate(steps):
        part, reading = "exploring" if index < EXPLORING else "converging", step.reading
        energy, cost = (f"{value:.3f}" if value is not None else "-" for value in reading[1:3])
        print(
            f"{index:4}  {part:11}  {step.entropy_nats:7.3f}  {reading.gravity:7.3f}  {energy:>6}  {cost:>11}  {reading.tier}"
        )
    if options.plot is not None:
        try:
            draw(options.plot, steps)
        except UnsupportedError as error:
            raise SystemExit(str(error)) from None
        print(f"written: {options.plot}")


def draw(path: Path, steps: Sequence[Step]) -> None:
    """Gravity, entropy and free energy over the steps; a dot's colour is the tier.

    Raises:
        UnsupportedError: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415 -- an extra
    except ModuleNotFoundError as error:
        raise UnsupportedError("--plot needs matplotlib: the extra 'bench' of this project") from error
    mpl.use("agg")
    from matplotlib import pyplot as plt  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415

    at = range(len(steps))
    figure, (upper, lower) = plt.subplots(2, 1, sharex=True, figsize=(8, 6))
    upper.plot(at, [step.reading.gravity for step in steps], color="black", linewidth=0.8)
    upper.scatter(
        at,
        [step.reading.gravity for step in steps],
        c=[_COLOURS[step.reading.tier] for step in steps],
        zorder=2,
    )
    for tier, asked in (("strong", SETTINGS.strong), ("medium", SETTINGS.medium)):
        upper.axhline(
            asked.gravity, color=_COLOURS[tier], linestyle="--", linewidth=0.8, label=f"{tier} begins"
        )
    upper.set_ylabel("gravity")
    upper.legend(fontsize=8)
    lower.plot(at, [step.entropy_nats for step in steps], label="entropy, nats")
    known = [
        (index, cost) for index, step in enumerate(steps) if (cost := step.reading.free_energy) is not None
    ]
    lower.plot(*zip(*known, strict=True), label="free energy")
    lower.set_xlabel("step")
    lower.legend(fontsize=8)
    for panel in (upper, lower):
        panel.axvspan(-0.5, EXPLORING - 0.5, color="tab:blue", alpha=0.08)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    main()
