"""Whether surprisal tells a prefix cache what to keep: hits with surprisals measured on real texts, beside none and shuffled ones.

No server. Requests are made of public texts: chats of problems and of two turns, problems behind prompts with examples,
JSON schemas, questions about documents; who returns and when is drawn. The default model reads every prompt (float32), and the
policies replay the requests in blocks of 16 tokens, ours with every active request in strong gravity, where surprisal counts
in full. Arms:

  plain            ours with surprisal_weight 0
  measured/V       ours with surprisal_weight V, mean surprisals of blocks
  nodes/V          the same with means over runs of blocks without a branch, as a server's node has
  reversed/V       what is surprising goes first
  placebo/V/SEED   measured/V with the same values at other blocks; nodes_placebo likewise

The files are public: gsm8k (openai/grade-school-math, test.jsonl), MT-bench (lm-sys/FastChat, question.jsonl), JSON lines with a
``schema`` each (guidance-ai/jsonschemabench), and any plain text of 10,000 tokens or more, for example WikiText-2.

  eviction_surprisal.py --gsm8k test.jsonl --mt-bench question.jsonl --schemas schemas.jsonl --text wikitext.txt
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from eviction_surprisal_parts import figures, loads, replays
from eviction_surprisal_parts.readings import Readings, greedy, measure
from eviction_surprisal_parts.texts import CLOSED, Ids, Reader, Texts, TextsError
from harness import measuring, run_facts, write_result
from tokenizers import Tokenizer

from sgl_entropic.models import resolve_model_path

NOT_SETTINGS = ("gsm8k", "mt_bench", "schemas", "text", "readings", "jobs", "threads", "name")
SHARES = [0.3, 0.5, 0.7]
CHAT_ANSWER_TOKENS = 48


def parser() -> argparse.ArgumentParser:
    """The command line."""
    it = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("gsm8k", "mt-bench", "schemas", "text"):
        it.add_argument(f"--{name}", type=Path, required=True, metavar="FILE")
    it.add_argument(
        "--readings", type=Path, metavar="FILE", help="measured before, and kept for the next run"
    )
    it.add_argument("--name", default="eviction_surprisal", help="of the result; an empty one writes none")
    it.add_argument("--draws", type=int, default=5, help="of arrivals, for the intervals")
    it.add_argument("--placebos", type=int, default=2, help="shuffles of each draw, others for each")
    it.add_argument(
        "--shares", nargs="+", type=float, default=SHARES, help="pools: LRU finds these shares of what can be"
    )
    it.add_argument("--documents", type=int, default=36, help="cut from the text")
    it.add_argument("--threads", type=int, default=1, help="of the model")
    it.add_argument("--jobs", type=int, default=2, help="replays at a time")
    it.add_argument("--seed", type=int, default=1)
    return it


def checked(it: argparse.ArgumentParser, arguments: list[str] | None = None) -> argparse.Namespace:
    """The options.

    Raises:
        SystemExit: one is out of range.
    """
    options = it.parse_args(arguments)
    for name in ("placebos", "documents", "threads", "jobs"):
        if getattr(options, name) < 1:
            it.error(f"--{name} has to be at least 1")
    if options.draws < 2:
        it.error("--draws has to be at least 2: intervals are over draws")
    if not all(0 < share < 1 for share in options.shares):
        it.error("--shares: within 0 and 1")
    return options


def prepared(options: argparse.Namespace) -> tuple[Texts, tuple[Ids, ...], Readings, int]:
    """The texts, the answers to the chats, what is measured of all draws, and how many tokens had to be computed now."""
    path = Path(resolve_model_path(None))
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    reader = Reader(tokenizer)
    texts = reader.texts(options.gsm8k, options.mt_bench, options.schemas, options.text, options.documents)
    readings = Readings.read(options.readings)
    model = None

    def model_of() -> Any:
        # Loaded only where something is left to measure.
        nonlocal model
        if model is None:
            import torch  # noqa: PLC0415
            from attention_quality_parts.model import Model  # noqa: PLC0415

            from sgl_entropic_kernels.native import library  # noqa: PLC0415

            torch.set_num_threads(options.threads)
            library().set_threads(options.threads)
            model = Model(path, 8192, 2048)
        return model

    if len(readings.answers) != len(texts.chats):
        firsts = [texts.system + first for first, _ in texts.chats]
        readings.answers = greedy(model_of(), firsts, CHAT_ANSWER_TOKENS, reader.ids(CLOSED)[0])
        readings.write(options.readings)
    answers = tuple((*answer, *reader.ids(CLOSED)) for answer in readings.answers)
    sequences = {
        ask.prompt + ask.answer
        for number in range(options.draws)
        for ask in loads.draw(loads.MIX, texts, answers, loads.Sizes(), (options.seed, number))
    }
    lacking = any(name not in readings.surprisal_nats for ids in sequences for name in replays.names_of(ids))
    computed = 0
    if lacking:
        progress = Steps(lambda: readings.write(options.readings))
        computed = measure(model_of(), list(sequences), readings.surprisal_nats, progress.step)
        readings.write(options.readings)
    return texts, answers, readings, computed


class Steps:
    """Says at every 5 % how far the model is, and keeps what it has read.

    Args:
        keep: does the latter.
    """

    def __init__(self, keep: Callable[[], None]) -> None:
        self._keep = keep
        self._begin = time.monotonic()
        self._said = 0

    def step(self, done: int, of: int) -> None:
        """``done`` of ``of`` prompts."""
        if 20 * done // of > self._said:
            self._said = 20 * done // of
            self._keep()
            print(
                f"{done} of {of} prompts, {time.monotonic() - self._begin:.0f} s", file=sys.stderr, flush=True
            )


def replayed(
    load: str, draw: int, made: replays.Load, pools: list[int], placebos: int
) -> list[figures.Sample]:
    """All arms on one draw of a load."""
    most = replays.most_hit_tokens(made)
    arms = replays.arms_of(made, [draw * placebos + number for number in range(placebos)])
    return [
        {
            "load": load,
            "draw": draw,
            "pool_blocks": pool,
            "most_hit_tokens": most,
            "hit_tokens": {name: replays.hit_tokens(made, make(), pool) for name, make in arms.items()},
        }
        for pool in pools
    ]


def run(options: argparse.Namespace, partial: Path) -> dict[str, Any]:
    """Everything; what is there of the samples is kept in ``partial``."""
    texts, answers, readings, computed = prepared(options)
    if computed:
        print(f"{computed} tokens computed", file=sys.stderr, flush=True)
    every = {
        (name, number): replays.load_of(
            loads.draw(name, texts, answers, loads.Sizes(), (options.seed, number)), readings.surprisal_nats
        )
        for name in loads.LOADS
        for number in range(options.draws)
    }
    pools = {name: replays.pools_of(every[name, 0], options.shares) for name in loads.LOADS}
    samples: list[figures.Sample] = []
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as executor:
        waiting = [
            executor.submit(replayed, name, number, made, pools[name], options.placebos)
            for (name, number), made in every.items()
        ]
        for one in waiting:
            samples += one.result()
            partial.write_text(json.dumps(samples) + "\n")
            print(
                f"{len(samples)} of {sum(map(len, pools.values())) * options.draws} pools",
                file=sys.stderr,
                flush=True,
            )
    described = {f"{name}/{number}": replays.described(made) for (name, number), made in every.items()}
    return {"samples": samples, "loads": described}


def main() -> None:
    """Command line."""
    options = checked(parser())
    facts = run_facts(options.seed)
    partial = Path(tempfile.mkdtemp(prefix="eviction_surprisal_")) / "eviction_surprisal.partial.json"
    with measuring(partial, TextsError, OSError):
        found = run(options, partial)
    samples = found["samples"]
    print(figures.table(samples), end="\n\n")
    settings = {name: value for name, value in vars(options).items() if name not in NOT_SETTINGS}
    files = [getattr(options, name).name for name in ("gsm8k", "mt_bench", "schemas", "text")]
    write_result(
        options.name,
        figures.claims_of(samples),
        facts,
        samples,
        settings=settings,
        files=files,
        weights=replays.WEIGHTS,
        loads=found["loads"],
        ratios=figures.ratios(samples),
    )


if __name__ == "__main__":
    main()
