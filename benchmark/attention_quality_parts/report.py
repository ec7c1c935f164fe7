"""From the figures of contexts to tables, claims and what the result file keeps of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness import Claim, claim

from attention_quality_parts import bootstrap
from attention_quality_parts.measures import DENSE, FIGURES, Figures
from attention_quality_parts.variants import Variant
from sgl_entropic.attention.settings import POLICIES, Policy

OURS: Policy = "mixed"
Row = dict[str, Any]
_SHARES_OF_KNOWN = {"needle_known": "needle", "second_known": "second"}
# Heading, key of a row, whether its interval is shown.
_COLUMNS = (
    ("KL", "kl", True),
    ("dNLL", "dnll", True),
    ("top-1", "top1", False),
    ("needle", "needle", True),
    ("of known", "needle_known", False),
    ("2nd", "second", True),
    ("of known", "second_known", False),
    ("KL mixed/this", "kl_ratio", True),
    ("dNLL mixed-this", "dnll_less", True),
)


@dataclass(frozen=True, slots=True)
class Sample:
    """One context.

    Attributes:
        context_tokens: of it.
        depths: of its two sentences.
        figures: by the names of the variants and the dense run.
    """

    context_tokens: int
    depths: tuple[float, float]
    figures: dict[str, Figures]


def column(samples: Sequence[Sample], context_tokens: int, variant: str, figure: str) -> list[float]:
    """One figure of one variant in all contexts of a length, in order."""
    return [s.figures[variant][figure] for s in samples if s.context_tokens == context_tokens]


def rows(samples: Sequence[Sample], keeps: Sequence[float], seed: int) -> list[Row]:
    """A row for each length, share and policy; estimates are ``[mean, low, high]``.

    Raises:
        EmptyError: a variant lacks a context.
    """
    result = []
    for tokens in dict.fromkeys(s.context_tokens for s in samples):
        result.append(_row(samples, tokens, None, seed))
        result += [
            _row(samples, tokens, Variant(policy, keep), seed) for keep in keeps for policy in POLICIES
        ]
    return result


def _row(samples: Sequence[Sample], tokens: int, variant: Variant | None, seed: int) -> Row:
    name = DENSE if variant is None else variant.name

    def of(figure: str, whose: str = name) -> list[float]:
        return column(samples, tokens, whose, figure)

    row: Row = {
        "context_tokens": tokens,
        "policy": DENSE if variant is None else variant.policy,
        "keep": 1.0 if variant is None else variant.keep,
    }
    measured = [figure for figure in FIGURES if figure in next(iter(samples)).figures[DENSE]]
    for figure in measured:
        if figure in _SHARES_OF_KNOWN:
            if sum(known := of(_SHARES_OF_KNOWN[figure], DENSE)) > 0:
                row[figure] = _plain(bootstrap.ratio(of(figure), known, seed))
        else:
            row[figure] = _plain(bootstrap.mean(of(figure), seed))
    if variant is None or variant.policy == OURS or variant.keep >= 1:
        return row
    ours = Variant(OURS, variant.keep).name
    for figure in ("kl", "dnll", "needle", "second"):
        if figure in measured:
            row[f"{figure}_less"] = _plain(bootstrap.difference(of(figure, ours), of(figure), seed))
    if "kl" in measured:
        row["kl_ratio"] = _plain(bootstrap.ratio(of("kl", ours), of("kl"), seed))
    return row


def _plain(estimate: bootstrap.Estimate) -> list[float]:
    value, (low, high) = estimate
    return [float(f"{number:.6g}") for number in (value, low, high)]


def table(made: Sequence[Row]) -> str:
    """Rows as text."""
    shown = [c for c in _COLUMNS if any(c[1] in row for row in made)]
    cells = [["context", "keep", "read", "policy", *(heading for heading, _, _ in shown)]]
    for row in made:
        read = row.get("keep_text") or row["keep_asked"]
        cells.append([str(row["context_tokens"]), f"{row['keep']:g}", f"{read[0]:.3f}", row["policy"]])
        cells[-1] += [_cell(row.get(key), interval=interval) for _, key, interval in shown]
    widths = [max(map(len, cells_of)) for cells_of in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in cells
    )


def _cell(estimate: list[float] | None, *, interval: bool) -> str:
    if estimate is None:
        return "-"
    value, low, high = estimate
    return f"{value:.4f} [{low:.4f}, {high:.4f}]" if interval else f"{value:.4f}"


def below_every_baseline(made: Sequence[Row]) -> dict[str, bool]:
    """By length and share: whether the mean ``dnll`` of ours is below that of every other policy."""
    found: dict[str, bool] = {}
    for row in made:
        if "dnll_less" in row:
            key = f"{row['context_tokens']} tokens, keep {row['keep']:g}"
            found[key] = found.get(key, True) and row["dnll_less"][0] < 0
    return found


class _Measured:
    """The figures of the contexts of one length."""

    def __init__(self, samples: Sequence[Sample], context_tokens: int) -> None:
        self._samples = [s for s in samples if s.context_tokens == context_tokens]

    def of(self, figure: str, policy: Policy, keep: float) -> list[float] | None:
        """One figure of one variant; ``None`` where it was not measured."""
        name = Variant(policy, keep).name
        if not self._samples or figure not in self._samples[0].figures.get(name, {}):
            return None
        return [sample.figures[name][figure] for sample in self._samples]


def claims(samples: Sequence[Sample], context_tokens: int, seed: int) -> list[Claim]:
    """Of the contexts of one length, as far as their figures were measured."""
    measured = _Measured(samples, context_tokens)
    result = []
    for name, baseline, bar in (
        ("prune_kl_vs_streamingllm_r50", "streaming", "<= 0.9"),
        ("prune_kl_vs_quest_r50", "quest", "<= 1"),
    ):
        ours, theirs = measured.of("kl", OURS, 0.5), measured.of("kl", baseline, 0.5)  # type: ignore[arg-type]
        if ours is not None and theirs is not None:
            result.append(claim(name, *bootstrap.ratio(ours, theirs, seed), "ratio", bar))
    return [*result, *_losses(measured, seed, "")]


def long_claims(samples: Sequence[Sample], context_tokens: int, seed: int) -> list[Claim]:
    """What is lost and what is found in the long contexts, by the same bars."""
    return _losses(_Measured(samples, context_tokens), seed, f"_{context_tokens // 1000}k")


def _losses(measured: _Measured, seed: int, ending: str) -> list[Claim]:
    result = []
    for name, figure, keep, unit, bar in (
        ("prune_dnll_r50_nats", "dnll", 0.5, "nats", "<= 0.05"),
        ("prune_needle_recall_r50", "needle", 0.5, "share", ">= 0.98"),
        ("prune_needle_recall_r25", "needle", 0.25, "share", ">= 0.8"),
        ("prune_needle_codes_r50", "needle", 0.5, "share", ">= 0.98"),
        ("prune_needle_codes_r25", "needle", 0.25, "share", ">= 0.8"),
    ):
        values = measured.of(figure, OURS, keep)
        if values is None:
            continue
        if "_codes_" in name:
            values = whole(values)
        result.append(claim(f"{name}{ending}", *bootstrap.mean(values, seed), unit, bar))
    others = [measured.of("dnll", policy, 0.5) for policy in POLICIES if policy != OURS]
    ours, theirs = measured.of("dnll", OURS, 0.5), [other for other in others if other is not None]
    if ours is not None and theirs:
        best = min(theirs, key=sum)
        found = bootstrap.difference(ours, best, seed)
        result.append(claim(f"prune_dnll_vs_best_r50{ending}", *found, "nats", "<= 0"))
    return result


def whole(recalls: Sequence[float]) -> list[float]:
    """1 for each code of which all digits are right, else 0."""
    return [float(recall >= 1.0) for recall in recalls]


def in_lines(made: Sequence[Row]) -> list[Row]:
    """Rows for the result file: an estimate is a line of its mean, low and high."""
    return [
        {key: _line(value) if isinstance(value, list) else value for key, value in row.items()}
        for row in made
    ]


def compact(samples: Sequence[Sample]) -> dict[str, Any]:
    """By length, variant and figure a line of numbers, one for each context in the same order."""
    result: dict[str, Any] = {}
    for tokens in dict.fromkeys(s.context_tokens for s in samples):
        chosen = [s for s in samples if s.context_tokens == tokens]
        variants = {
            name: {figure: _line(column(chosen, tokens, name, figure)) for figure in figures}
            for name, figures in chosen[0].figures.items()
        }
        depths = [_line([s.depths[at] for s in chosen]) for at in (0, 1)]
        result[str(tokens)] = {"depths": depths, **variants}
    return result


def stored(content: dict[str, Any]) -> list[Sample]:
    """The samples of a result file: the inverse of :func:`compact`, but for what that has rounded."""
    result = []
    for tokens, of_length in content["samples"].items():
        depths = [_numbers(line) for line in of_length["depths"]]
        figures = {
            name: {figure: _numbers(line) for figure, line in lines.items()}
            for name, lines in of_length.items()
            if name != "depths"
        }
        for at, (first, second) in enumerate(zip(*depths, strict=True)):
            of_context = {
                name: {figure: values[at] for figure, values in of_variant.items()}
                for name, of_variant in figures.items()
            }
            result.append(Sample(int(tokens), (first, second), of_context))
    return result


def _numbers(line: str) -> list[float]:
    return [float(word) for word in line.split()]


def _line(values: Sequence[float]) -> str:
    return " ".join(f"{value:.6g}" for value in values)
