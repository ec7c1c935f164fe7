"""Documents of real JSON schemas behind a long preamble, with blocks of it left out: does pruning cost validity?

One server answers all of it, since a request chooses its own policy and share: greedy, the same schemas and preambles for
everyone. A grammar holds the form, so what pruning can cost is that a document does not come to its end, or says nothing that
the one with the whole context says. Both are counted.

  attention_structured.py --schemas jsonschemabench.jsonl --text wikitext.txt
  attention_structured.py --schemas jsonschemabench.jsonl --text wikitext.txt --count 4 --name ""

``--schemas FILE``: {"id": ..., "schema": ...} a line, such as JSONSchemaBench. ``--text FILE``: running text for the preambles.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from harness import Claim, claim, run_facts, write_result
from sampling_parts import schemas
from sampling_parts.client import AnswerError, posted
from tokenizers import Tokenizer

from sgl_entropic.models import resolve_model_path
from sgl_entropic.testing.servers import entropic_server

POLICIES = ("mixed", "quest", "surprisal", "streaming", "attention")
DENSE = "dense"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    it = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    it.add_argument("--schemas", type=Path, required=True)
    it.add_argument("--text", type=Path, required=True)
    it.add_argument("--name", default="attention_structured", help="of the result; an empty one writes none")
    it.add_argument("--count", type=int, default=60, help="schemas")
    it.add_argument("--preamble-tokens", type=int, default=1500)
    it.add_argument(
        "--tokens", type=int, default=512, help="most of a document; what is cut says nothing of its validity"
    )
    it.add_argument("--keeps", nargs="+", type=float, default=[0.5, 0.25])
    it.add_argument("--policies", nargs="+", default=list(POLICIES), choices=POLICIES)
    it.add_argument("--clients", type=int, default=8)
    it.add_argument("--seed", type=int, default=1)
    return it


def with_preamble(body: dict[str, Any], preamble: str) -> dict[str, Any]:
    """The same request behind a text."""
    asked = body["messages"][0]["content"]
    return {**body, "messages": [{"role": "user", "content": f"{preamble}\n\n{asked}"}]}


def preambles(path: Path, count: int, tokens: int, seed: int) -> list[str]:
    """Pieces of a text of about ``tokens`` tokens.

    Raises:
        ValueError: the text is shorter than one.
    """
    tokenizer = Tokenizer.from_file(str(Path(resolve_model_path(None)) / "tokenizer.json"))
    ids = tokenizer.encode(path.read_text(), add_special_tokens=False).ids
    if len(ids) <= tokens:
        raise ValueError(f"{path} has {len(ids)} tokens, {tokens} are needed")
    starts = np.random.default_rng(seed).integers(0, len(ids) - tokens, count)
    return [str(tokenizer.decode(ids[start : start + tokens])) for start in starts.tolist()]


def variants(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """What each variant asks of the server, by name."""
    asked: dict[str, dict[str, Any]] = {DENSE: {"attention_pruning": False}}
    for policy in options.policies:
        for keep in options.keeps:
            share = {"min_keep_ratio": keep, "max_keep_ratio": keep}
            asked[f"{policy} {keep:g}"] = {"attention_policy": policy, **share}
    return asked


def figures_of(contents: list[dict[str, Any]], rows: list[schemas.Row], *, pruned: bool) -> dict[str, Any]:
    """Outcomes, texts and realised shares of one variant.

    Raises:
        AnswerError: an answer that was to be pruned says nothing of it.
    """
    choices = [content["choices"][0] for content in contents]
    shares = []
    for choice in choices:
        report = (choice.get("entropic") or {}).get("attention")
        if report is not None:
            shares.append(report["keep_ratio"])
    if len(shares) != (len(choices) if pruned else 0):
        raise AnswerError(f"{len(shares)} of {len(choices)} answers say what was read of their contexts")
    return {
        "outcomes": [
            schemas.outcome_of(choice, row["schema"]) for choice, row in zip(choices, rows, strict=True)
        ],
        "texts": [choice["message"]["content"] for choice in choices],
        "tokens": [content["usage"]["completion_tokens"] for content in contents],
        "shares": shares or [1.0] * len(choices),
    }


def samples_of(found: dict[str, dict[str, Any]], rows: list[schemas.Row]) -> list[dict[str, Any]]:
    """What became of each document, by variant."""
    dense = found[DENSE]["texts"]
    return [
        {
            "schema": row["id"],
            **{
                name: {
                    "outcome": one["outcomes"][at],
                    "tokens": one["tokens"][at],
                    "keep_ratio": one["shares"][at],
                    "as_dense": one["texts"][at] == dense[at],
                }
                for name, one in found.items()
            },
        }
        for at, row in enumerate(rows)
    ]


def share_interval(found: list[bool], seed: int) -> tuple[float, tuple[float, float]]:
    """A share and its bootstrap interval."""
    values = np.array(found, dtype=float)
    rng = np.random.default_rng(seed)
    means = values[rng.integers(0, len(values), (2000, len(values)))].mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5]).tolist()
    return float(values.mean()), (low, high)


def main() -> None:
    """Command line."""
    options = parser().parse_args()
    facts = run_facts(options.seed)
    log = Path(tempfile.mkdtemp(prefix="attention_structured_")) / "server.log"
    found: dict[str, dict[str, Any]] = {}
    flags = ("--entropic-attention", "on", "--entropic-cpu-kv-pool-mib", "2048")
    with entropic_server(log, *flags) as server:
        rows = schemas.accepted(server.url, schemas.read_schemas(options.schemas, options.count))
        texts = preambles(options.text, len(rows), options.preamble_tokens, options.seed)
        for name, asked in variants(options).items():
            bodies = [
                with_preamble(schemas.body_of(row, options.tokens, 0.0, asked), text)
                for row, text in zip(rows, texts, strict=True)
            ]
            try:
                contents = posted(server.url, "/v1/chat/completions", bodies, options.clients)
                found[name] = figures_of(contents, rows, pruned=name != DENSE)
            except AnswerError as error:
                raise SystemExit(f"attention_structured.py: {name}: {error}\n{server.log_tail()}") from error
            print(f"{name:16} {dict(Counter(found[name]['outcomes']))}", flush=True)
    dense = found[DENSE]
    table = {}
    claims: list[Claim] = []
    print(f"\n{'variant':16} {'read':>6} {'valid':>22} {'as dense':>9}")
    for name, one in found.items():
        valid, interval = share_interval([o == "valid" for o in one["outcomes"]], options.seed)
        same = float(np.mean([a == b for a, b in zip(one["texts"], dense["texts"], strict=True)]))
        read = float(np.mean(one["shares"]))
        table[name] = {"valid": valid, "interval": interval, "as_dense": same, "keep_ratio": read}
        table[name]["outcomes"] = dict(Counter(one["outcomes"]))
        print(f"{name:16} {read:6.3f} {valid:6.3f} [{interval[0]:.3f}, {interval[1]:.3f}] {same:9.3f}")
        if name == "mixed 0.5":
            pairs = zip(one["outcomes"], dense["outcomes"], strict=True)
            worse, limits = share_interval([a != "valid" and b == "valid" for a, b in pairs], options.seed)
            claims.append(claim("prune_json_lost_r50", worse, limits, "share", "<= 0.02"))
    if options.name and claims:
        settings = {
            "count": len(rows),
            "preamble_tokens": options.preamble_tokens,
            "tokens": options.tokens,
        }
        samples = samples_of(found, rows)
        write_result(options.name, claims, facts, samples, settings=settings, table=table)


if __name__ == "__main__":
    main()
