"""Decode throughput with and without attention pruning: one server reads all of its contexts, the other what its flags leave.

Both live at once and one is awake; each workload of a round is asked of both, in an order that turns. Throughput is that of
decoding alone, from the first token on. The realised share of the contexts comes from the servers' own counters.

  attention_speed.py --text wikitext.txt --rounds 5
  attention_speed.py --text wikitext.txt --rounds 1 --name "" --pruned-flags "--entropic-attention-min-keep-ratio 0.25"

``--text FILE``: running text from which the prompts are cut, so that entropies are those of text.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import tempfile
from pathlib import Path
from typing import Any

import httpx
from harness import Claim, bootstrap_median, claim, measuring, run_facts, write_result
from tokenizers import Tokenizer
from twin_parts import claims
from twin_parts.arms import Arm, make
from twin_parts.runner import ArmError, Plan, Run
from twin_parts.workloads import Sizes, catalogue

from sgl_entropic.models import resolve_model_path

DENSE, PRUNED = "dense", "pruned"
CLAIMED = {
    "ctx2k_8_clients": ("prune_tps_8x2k", ">= 1.30"),
    "ctx6k_8_clients": ("prune_tps_8x6k", ">= 1.55"),
    "clients_8": ("prune_tps_short", ">= 0.98"),
}
KEEP_BAR = "<= 0.5"
# Of an answer to a short prompt: enough for a visit of some ten seconds, and below min_context_tokens with its prompt.
SHORT_OUTPUT_TOKENS = 384


class TextPrompts:
    """Pieces of a text with a known number of tokens; what twin_parts.prompts.Prompts asks for.

    Raises:
        ValueError: the text is too short.
    """

    def __init__(self, text: str, model: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._ids = self._tokenizer.encode(text, add_special_tokens=False).ids

    def text(self, tokens: int, *key: object) -> str:
        """A piece of exactly ``tokens`` tokens, the same for the same key."""
        chooser = random.Random("/".join(map(str, key)))  # noqa: S311 -- reproducible, not secret
        if len(self._ids) < 2 * tokens:
            raise ValueError(f"the text has {len(self._ids)} tokens, pieces of {tokens} need twice as many")
        for _ in range(1000):
            begin = chooser.randrange(len(self._ids) - tokens)
            # A number in front makes two pieces that overlap share no prefix.
            piece = f"{chooser.randrange(10**6)} " + self._tokenizer.decode(self._ids[begin : begin + tokens])
            encoded = self._tokenizer.encode(piece, add_special_tokens=False)
            cut = piece[: encoded.offsets[tokens - 1][1]] if len(encoded.ids) >= tokens else piece
            if self.count(cut) == tokens:
                return cut
        raise ValueError(f"no piece of the text is {tokens} tokens long when it is cut out")

    def count(self, text: str) -> int:
        """Tokens of ``text``."""
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    it = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    it.add_argument("--text", type=Path, required=True)
    it.add_argument("--name", default="attention_speed", help="of the result; an empty one writes none")
    it.add_argument("--workloads", nargs="+", default=list(CLAIMED), choices=list(CLAIMED))
    it.add_argument("--rounds", type=int, default=5, help="after one that warms up")
    it.add_argument("--output-tokens", type=int, default=96, help="of each answer to a long prompt")
    it.add_argument("--flags", default="", help="of both servers")
    it.add_argument(
        "--pruned-flags", default="", help="of the one that prunes, beside --entropic-attention on"
    )
    it.add_argument("--pool-mib", type=int, default=1536, help="KV pool of each server")
    it.add_argument("--seed", type=int, default=1)
    return it


def reads(url: str) -> tuple[int, int]:
    """Tokens of context that decode steps could have read and did read, so far."""
    counters: dict[str, Any] = httpx.get(url + "/server_info", timeout=60).json()["internal_states"][0][
        "sgl_entropic"
    ]["counters"]
    return counters["context_tokens"], counters["read_tokens"]


class Reads:
    """The share of the contexts that each visit to the pruning server read."""

    def __init__(self, arm: Arm) -> None:
        self.shares: dict[str, list[float]] = {}
        self._before = (0, 0)
        self._arm = arm

    def note(self, arm: str, workload: str, round_index: int) -> None:
        """After each workload of each round."""
        if arm != PRUNED:
            return
        now = reads(self._arm.server.url)
        context, read = (n - b for n, b in zip(now, self._before, strict=True))
        self._before = now
        if round_index >= 0:
            self.shares.setdefault(workload, []).append(read / context if context else 1.0)


def made_claims(samples: list[dict[str, Any]], shares: dict[str, list[float]], seed: int) -> list[Claim]:
    """Of the workloads that were measured."""
    result = []
    for workload, (name, bar) in CLAIMED.items():
        if any(sample["workload"] == workload for sample in samples):
            median, interval = bootstrap_median(claims.ratios(samples, PRUNED, DENSE, workload), seed)
            result.append(claim(name, median, interval, "ratio", bar))
    if "ctx2k_8_clients" in shares:
        median, interval = bootstrap_median(shares["ctx2k_8_clients"], seed)
        result.append(claim("prune_realised_keep_8x2k", median, interval, "share", KEEP_BAR))
    return result


def main() -> None:
    """Command line."""
    options = parser().parse_args()
    folder = Path(tempfile.mkdtemp(prefix="attention_speed_"))
    model = Path(resolve_model_path(None))
    both = ("--entropic-cpu-kv-pool-mib", str(options.pool_mib), *shlex.split(options.flags))
    flags = {DENSE: both, PRUNED: (*both, "--entropic-attention", "on", *shlex.split(options.pruned_flags))}
    arms = [make(name, flags, model, folder) for name in flags]
    every = catalogue(Sizes(output_tokens=SHORT_OUTPUT_TOKENS, context_output_tokens=options.output_tokens))
    plan = Plan(arms, [every[name] for name in options.workloads], options.rounds, 1, options.seed)
    facts = run_facts(options.seed)
    partial = folder / "attention_speed.partial.json"
    prompts = TextPrompts(options.text.read_text(), model)

    def keep() -> None:
        partial.write_text(json.dumps({**facts, "samples": run.findings.samples}, indent=1) + "\n")

    realised = Reads(arms[1])
    run = Run(plan, prompts, folder, keep, realised.note)
    with measuring(folder, ArmError):
        try:
            findings = run.all()
        finally:
            keep()
    print(claims.table(findings.samples, [PRUNED], options.seed), end="\n\n")
    for workload, shares in realised.shares.items():
        print(
            f"{workload}: share of the contexts that was read {bootstrap_median(shares, options.seed)[0]:.3f}"
        )
    made = made_claims(findings.samples, realised.shares, options.seed)
    content = {
        "settings": {name: value for name, value in vars(options).items() if name != "text"},
        "text": options.text.name,
        "arms": {arm.name: arm.described for arm in arms},
        "workloads": {one.name: one.description for one in plan.workloads},
        "shares_read": realised.shares,
        "memory": findings.memory,
    }
    write_result(options.name, made, facts, findings.samples, **content)


if __name__ == "__main__":
    main()
