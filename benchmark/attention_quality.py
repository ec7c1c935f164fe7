"""What attention pruning costs in quality: every policy at equal realised shares of the context, beside reading all of it.

No server: the compiled decoder (float32) and the code that chooses the blocks for it. The same tokens are forced upon all
variants in one batch after one prefill. Two sentences with codes are hidden in contexts of running text; then the text goes on
(divergence and surprisal beside the dense run), or both codes are asked for, one after the other (recall).

  attention_quality.py --text wikitext.txt
  attention_quality.py --text wikitext.txt --contexts 6 --long-contexts 0 --name ""
  attention_quality.py --claims-from results/attention_quality.json

The last makes the claims of a result file anew, from its own samples and settings, and changes nothing else in it.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from attention_quality_parts import documents, measures, plot, report, variants
from attention_quality_parts.bootstrap import EmptyError
from attention_quality_parts.forced import MOST_STEPS, prefill, slots_needed
from attention_quality_parts.model import Model
from harness import Claim, measuring, print_claims, run_facts, write_result
from tokenizers import Tokenizer
from twin_parts.progress import Progress

from sgl_entropic.attention.settings import RECENT_SHARES, AttentionSettings
from sgl_entropic.models import resolve_model_path
from sgl_entropic_kernels.native import library

KEEPS = [0.75, 0.5, 0.35, 0.25]
NOT_SETTINGS = ("text", "claims_from", "plot")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    it = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = it.add_mutually_exclusive_group(required=True)
    source.add_argument("--text", type=Path, help="running text, 250,000 tokens for the defaults")
    source.add_argument("--claims-from", type=Path, metavar="FILE", help="a result file; nothing is measured")
    it.add_argument("--name", default="attention_quality", help="of the result; an empty one writes none")
    it.add_argument("--parts", nargs="+", default=list(measures.PARTS), choices=measures.PARTS)
    it.add_argument("--keeps", nargs="+", type=float, default=KEEPS, help="shares of the context to read")
    it.add_argument(
        "--context", type=int, default=2000, help="tokens of a context, of which the claims speak"
    )
    it.add_argument("--contexts", type=int, default=100, help="how many")
    it.add_argument("--long-context", type=int, default=4000, help="tokens of a long one")
    it.add_argument("--long-contexts", type=int, default=40, help="how many")
    it.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    it.add_argument("--plot", type=Path, help="picture, by its ending")
    it.add_argument("--seed", type=int, default=1)
    return it


def checked(options: argparse.Namespace) -> dict[int, int]:
    """How many contexts of each length.

    Raises:
        SystemExit: an option is out of range.
    """
    least = AttentionSettings().min_context_tokens
    if options.context == options.long_context:
        raise SystemExit("--context and --long-context: two lengths")
    lengths = {options.context: options.contexts, options.long_context: options.long_contexts}
    lengths = {tokens: count for tokens, count in lengths.items() if count > 0}
    if not lengths or min(lengths) < least:
        raise SystemExit(f"at least one context of {least} tokens or more, none of fewer")
    claimed = 0.5 in options.keeps or (0.25 in options.keeps and options.parts != [measures.TEXT_PART])
    if options.name and not (options.contexts > 0 and claimed):
        raise SystemExit('claims are of --contexts and --keeps 0.5 and 0.25; without them, --name ""')
    if not all(0 < keep <= 1 for keep in options.keeps) or len(set(options.keeps)) < len(options.keeps):
        raise SystemExit("--keeps: different shares above 0 and up to 1")
    return lengths


class Measurement:
    """All contexts, one after the other.

    Attributes:
        samples: so far.
    """

    def __init__(self, options: argparse.Namespace, lengths: dict[int, int]) -> None:
        model = Path(resolve_model_path(None))
        tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        ids = tokenizer.encode(options.text.read_text(), add_special_tokens=False).ids
        # Whatever cannot be is said before the model is loaded.
        self._documents = [
            document
            for tokens, count in lengths.items()
            for document in documents.cut(tokenizer, ids, tokens, count, options.seed)
        ]
        self._variants = variants.every(options.keeps)
        for tokens in lengths:
            for variant in self._variants:
                variants.budget(variant, tokens, documents.FOLLOWING_TOKENS)
        self._parts: Sequence[str] = options.parts
        longest = max(lengths)
        slots = slots_needed(longest, len(self._variants), 2)
        self._model = Model(model, slots, longest + MOST_STEPS)
        self.samples: list[report.Sample] = []

    def run(self, partial: Path) -> None:
        """Measure; what is there is kept in ``partial`` after each context."""
        progress = Progress([len(document.context) for document in self._documents])
        for document in self._documents:
            tokens = len(document.context)
            prefix = prefill(self._model, document.context)
            found = measures.of_document(self._model, prefix, document, self._variants, self._parts)
            self.samples.append(report.Sample(tokens, document.depths, found))
            partial.write_text(json.dumps(report.compact(self.samples), indent=1) + "\n")
            progress.done(tokens, f"{len(self.samples)} of {len(self._documents)} contexts, {tokens} tokens")


def described(options: argparse.Namespace) -> dict[str, Any]:
    """The settings, for the result file."""
    plain = {name: value for name, value in vars(options).items() if name not in NOT_SETTINGS}
    return {
        "settings": plain,
        "text": options.text.name,
        "figures": measures.FIGURES,
        "recent_shares": RECENT_SHARES,
        "following_tokens": documents.FOLLOWING_TOKENS,
    }


def claims_of(samples: Sequence[report.Sample], settings: Mapping[str, Any]) -> list[Claim]:
    """Of the contexts and the long ones of a run with these settings."""
    seed = settings["seed"]
    return [
        *report.claims(samples, settings["context"], seed),
        *report.long_claims(samples, settings["long_context"], seed),
    ]


def made_later(content: dict[str, Any]) -> dict[str, Any]:
    """A result file with its claims made anew from its own samples; facts, tables and samples are as they were."""
    made = claims_of(report.stored(content), content["settings"])
    print_claims(made)
    note = "made from the samples of this file after the run, by --claims-from"
    return {"claims": [asdict(one) for one in made], "claims_note": note} | {
        name: value for name, value in content.items() if name not in ("claims", "claims_note")
    }


def main() -> None:
    """Command line."""
    options = parser().parse_args()
    if options.claims_from is not None:
        content = made_later(json.loads(options.claims_from.read_text()))
        options.claims_from.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")
        return
    lengths = checked(options)
    if options.plot is not None:
        plot.require()
    facts = run_facts(options.seed)
    torch.set_num_threads(options.threads)
    library().set_threads(options.threads)
    partial = Path(tempfile.mkdtemp(prefix="attention_quality_")) / "attention_quality.partial.json"
    with measuring(partial, measures.MeasureError, variants.KeepError, documents.TextError, EmptyError):
        measurement = Measurement(options, lengths)
        measurement.run(partial)
        rows = report.rows(measurement.samples, options.keeps, options.seed)
        made = claims_of(measurement.samples, vars(options))
    print(report.table(rows), end="\n\n")
    below = report.below_every_baseline(rows)
    for where, is_below in below.items():
        print(f"surprisal of mixed below that of every other policy, {where}: {'yes' if is_below else 'no'}")
    if options.plot is not None:
        plot.write(options.plot, rows, "attention pruning beside reading all of the context")
    more = {**described(options), "table": report.in_lines(rows), "dnll_below_every_baseline": below}
    write_result(options.name, made, facts, report.compact(measurement.samples), **more)


if __name__ == "__main__":
    main()
