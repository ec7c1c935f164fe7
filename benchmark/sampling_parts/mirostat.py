"""Mirostat v2 of llama.cpp on the same prompts and weights: its answers, then judged by our server.

Our target of H nats is Mirostat's ``tau = H / ln 2`` bits. What stands for "entropy sampled from" is that of Mirostat's
truncated distribution, replayed beside llama.cpp; surprisals and the model's own entropies are those that our server gives
the same tokens, so that all arms are judged by one model. How far llama.cpp's own lie from them is kept in the result.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from twin_parts import llamacpp

from sampling_parts.client import Answer, AnswerError, Asker
from sgl_entropic.models import default_model

WORKER = Path(__file__).with_name("mirostat_worker.py")
MOST_OUTSIDE = 0.001


@dataclass(frozen=True, slots=True)
class Job:
    """What is asked of llama.cpp.

    Attributes:
        prompts: ids of each.
        targets: in nats.
        tokens: of each answer.
        eta: Mirostat's learning rate.
        seed: of the first prompt.
    """

    prompts: list[list[int]]
    targets: Sequence[float]
    tokens: int
    eta: float
    seed: int


def tau_bits(target_nats: float) -> float:
    """Mirostat's target of the same entropy."""
    return target_nats / math.log(2.0)


def drawn(job: Job, folder: Path) -> dict[float, list[dict[str, Any]]]:
    """Rows of the worker by target, in the order of the prompts. llama.cpp is installed if it is missing.

    Raises:
        AnswerError: it failed, an answer is missing, or the replay does not fit what llama.cpp drew.
    """
    task, out = folder / "mirostat_job.json", folder / "mirostat_rows.jsonl"
    content = {
        "gguf": str(llamacpp.weights(default_model())),
        "prompts": job.prompts,
        "taus_bits": [tau_bits(target) for target in job.targets],
        "tokens": job.tokens,
        "eta": job.eta,
        "seed": job.seed,
        "threads": len(os.sched_getaffinity(0)),
        "context": max(map(len, job.prompts)) + job.tokens + 8,
    }
    task.write_text(json.dumps(content))
    # This project's sources must not reach another environment's Python; -P keeps our module names from it too.
    env = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    command = [str(llamacpp.python()), "-P", str(WORKER), str(task), str(out)]
    status = subprocess.run(command, env=env, check=False).returncode
    if status != 0:
        raise AnswerError(f"mirostat: llama.cpp ended with status {status}")
    return by_target([json.loads(line) for line in out.read_text().splitlines()], job)


def by_target(rows: list[dict[str, Any]], job: Job) -> dict[float, list[dict[str, Any]]]:
    """Sort the worker's rows.

    Raises:
        AnswerError: one is missing or short, or more tokens than rounding explains lie outside what was kept.
    """
    result = {}
    for target in job.targets:
        own = [row for row in rows if math.isclose(row["tau_bits"], tau_bits(target), rel_tol=1e-9)]
        own.sort(key=lambda row: int(row["prompt"]))
        if [row["prompt"] for row in own] != list(range(len(job.prompts))):
            raise AnswerError(f"mirostat at {target:g} nats: {len(own)} of {len(job.prompts)} answers")
        if any(len(row["ids"]) != job.tokens for row in own):
            raise AnswerError(f"mirostat at {target:g} nats: an answer is shorter than {job.tokens} tokens")
        outside = sum(row["outside"] for row in own) / (len(own) * job.tokens)
        if outside > MOST_OUTSIDE:
            raise AnswerError(f"mirostat: {outside:.2%} of the tokens lie outside the replayed distribution")
        result[target] = own
    return result


def judged(rows: list[dict[str, Any]], asker: Asker) -> tuple[list[Answer], float]:
    """The answers as our server sees them, and by how much llama.cpp's surprisals differ, on average in nats.

    Raises:
        AnswerError: any request failed.
    """
    scores = asker.scored([row["ids"] for row in rows])
    answers = [
        Answer(row["ids"], row["sampled_nats"], entropy, surprisal, [], [])
        for row, (entropy, surprisal) in zip(rows, scores, strict=True)
    ]
    differences = [
        np.abs(np.asarray(row["surprisal_nats"]) - np.asarray(one.surprisal_nats)).mean()
        for row, one in zip(rows, answers, strict=True)
    ]
    return answers, float(np.mean(differences))
