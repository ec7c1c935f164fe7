"""What a variant's logits of one context say beside those that read everything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from attention_quality_parts.documents import FOLLOWING_TOKENS, Document
from attention_quality_parts.forced import Forced, Prefix, Stream
from attention_quality_parts.model import Model
from attention_quality_parts.variants import Variant, check

TEXT_PART, NEEDLE_PART, QUESTIONS_PART = PARTS = ("text", "needle", "questions")
TEXT, ASKED = "text", "asked"
DENSE = "dense"
FIGURES = {
    "kl": "nats, divergence of the variant's probabilities from those of the dense run, mean over the text's steps",
    "dnll": "nats, surprisal of the text's next token less that of the dense run",
    "top1": "share of the text's steps whose likeliest token is the dense run's",
    "needle": "share of the digits of the first question's code that are the likeliest token, the true digits before them given",
    "needle_known": "likewise, and the dense run's too",
    "second": "as needle, of the second question, asked after the first and its answer, whatever the variant made of it",
    "second_known": "as needle_known, of the second question",
    "keep_text": "share of the contexts that the steps of the text read",
    "keep_asked": "share of the contexts that the steps of the questions read",
}
Figures = dict[str, float]


class MeasureError(RuntimeError):
    """A figure is missing or no number."""


@dataclass(slots=True)
class TextSums:
    """Sums over the steps of the text, one row for each variant and the dense one before them."""

    rows: int
    steps: int = 0
    sums: dict[str, NDArray[np.float64]] = field(init=False)

    def __post_init__(self) -> None:
        self.sums = {name: np.zeros(self.rows) for name in ("kl", "dnll", "top1")}

    def add(self, logits: torch.Tensor, target: int) -> None:
        """One step's logits ``[rows, vocabulary]``, of which the first row is the dense one."""
        log_p = torch.log_softmax(logits, -1)
        best = logits.argmax(-1)
        self.sums["kl"] += (log_p[0].exp() * (log_p[0] - log_p)).sum(-1).double().numpy()
        self.sums["dnll"] += (log_p[0, target] - log_p[:, target]).double().numpy()
        self.sums["top1"] += (best == best[0]).numpy()
        self.steps += 1

    def means(self, row: int) -> Figures:
        """Of one row."""
        return {name: float(values[row]) / self.steps for name, values in self.sums.items()}


@dataclass(slots=True)
class Asked:
    """The questions of a document as one stream, and where their digits are.

    Attributes:
        ids: of the questions and answers, one after the other.
        places: of each question's digits.
    """

    ids: list[int]
    places: list[list[int]]

    @staticmethod
    def of(document: Document, parts: Sequence[str]) -> Asked:
        """Both questions, the first alone, or none, by ``parts``."""
        asked = Asked([], [])
        count = 2 if QUESTIONS_PART in parts else int(NEEDLE_PART in parts)
        for question in document.questions[:count]:
            asked.places.append([len(asked.ids) + at for at in question.digits])
            asked.ids += question.ids
        return asked

    def stream(self) -> Stream:
        """The last digit is computed, not put in; the token before a digit computes it."""
        wanted = frozenset(at - 1 for places in self.places for at in places)
        return Stream(ASKED, np.array(self.ids[:-1]), wanted)

    def recall(self, hits: dict[int, NDArray[np.bool_]], row: int) -> Figures:
        """Of one row; ``hits`` has all rows for each place, the dense one first."""
        figures: Figures = {}
        for name, places in zip(("needle", "second"), self.places, strict=False):
            figures[name] = float(np.mean([hits[at][row] for at in places]))
            figures[f"{name}_known"] = float(np.mean([hits[at][row] and hits[at][0] for at in places]))
        return figures


def of_document(
    model: Model, prefix: Prefix, document: Document, variants: list[Variant], parts: Sequence[str]
) -> dict[str, Figures]:
    """Figures by the names of the variants, and those of the dense run.

    Raises:
        MeasureError: one is no number.
        KeepError: a variant read another share than it should have.
    """
    streams = []
    if TEXT_PART in parts:
        streams.append(Stream(TEXT, document.following[:-1], frozenset(range(FOLLOWING_TOKENS))))
    asked = Asked.of(document, parts)
    if asked.ids:
        streams.append(asked.stream())
    forced = Forced(model, prefix, variants, streams)
    text, hits = TextSums(len(variants) + 1), {}
    for stream, step, logits in forced.logits():
        if stream.name == TEXT:
            text.add(logits, int(document.following[step + 1]))
        else:
            hits[step + 1] = (logits.argmax(-1) == asked.ids[step + 1]).numpy()
    found: dict[str, Figures] = {}
    for row, name in enumerate([DENSE, *(variant.name for variant in variants)]):
        figures = {**(text.means(row) if text.steps else {}), **asked.recall(hits, row)}
        for stream_name, courses in forced.courses.items():
            figures[f"keep_{stream_name}"] = courses[row - 1].realised() if row else 1.0
            if row:
                check(variants[row - 1], figures[f"keep_{stream_name}"])
        if not figures or not np.isfinite(list(figures.values())).all():
            raise MeasureError(f"{name}: {figures}")
        found[name] = figures
    return found
