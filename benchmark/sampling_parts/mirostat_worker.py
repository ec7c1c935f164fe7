"""Mirostat v2 as llama.cpp has it, with the entropy that each token was drawn at. Runs in the environment of llama.cpp.

``python -P mirostat_worker.py JOB OUT``. llama.cpp draws the tokens; this script only looks at the logits that it drew them
from and follows Mirostat's state beside it, since neither the state nor the distribution drawn from can be asked for.
Per token, with p the softmax at temperature 1 (the Python package adds no temperature to Mirostat)::

    kept = tokens with -log2 p <= mu, at least the likeliest       q = p of these, renormalised
    draw from q;  mu' = mu - eta (-log2 q(drawn) - tau)            mu starts at 2 tau

as in ``llama_sampler_mirostat_v2_apply``. So tau and mu are in **bits**, the surprise that is steered is that in the
truncated distribution, and its expectation is the entropy of q: tau ln 2 nats is a target of what we measure as the entropy
sampled from. A token outside ``kept`` would disprove the replay; they are counted.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

LN2 = math.log(2.0)


@dataclass(frozen=True, slots=True)
class Drawn:
    """One token.

    Attributes:
        sampled_nats: entropy of the truncated distribution.
        model_nats: entropy of the whole.
        surprisal_nats: of the token in the whole.
        observed_bits: surprise of the token in the truncated distribution.
        kept: tokens that were left.
        inside: whether the token is one of them.
    """

    sampled_nats: float
    model_nats: float
    surprisal_nats: float
    observed_bits: float
    kept: int
    inside: bool


def drawn(logits: NDArray[Any], token: int, mu_bits: float) -> Drawn:
    """What ``token`` was drawn from at the state ``mu_bits``."""
    shifted = logits.astype(np.float64) - float(logits.max())
    log_p = shifted - math.log(float(np.exp(shifted).sum()))
    # A float32 rounding of llama.cpp's may decide otherwise on the border; what was drawn was kept.
    kept = log_p >= -mu_bits * LN2
    kept[int(log_p.argmax())] = True
    inside = bool(kept[token])
    kept[token] = True
    rest = log_p[kept]
    total = math.log(float(np.exp(rest).sum()))
    return Drawn(
        sampled_nats=_entropy(rest - total),
        model_nats=_entropy(log_p),
        surprisal_nats=-float(log_p[token]),
        observed_bits=max(0.0, total - float(log_p[token])) / LN2,
        kept=int(kept.sum()),
        inside=inside,
    )


def _entropy(log_p: NDArray[np.float64]) -> float:
    return max(0.0, -float(np.sum(np.exp(log_p) * np.maximum(log_p, -800.0))))


def next_mu_bits(mu_bits: float, observed_bits: float, tau_bits: float, eta: float) -> float:
    """The state at the next token."""
    return mu_bits - eta * (observed_bits - tau_bits)


def answer(model: Any, prompt: list[int], job: dict[str, Any], tau_bits: float, seed: int) -> dict[str, Any]:
    """``job["tokens"]`` tokens behind ``prompt``, going on after an end token."""
    from llama_cpp import llama_get_logits_ith  # noqa: PLC0415 -- only in llama.cpp's environment

    model.set_seed(seed)
    mu_bits, steps, ids = 2.0 * tau_bits, [], []
    made = model.generate(
        prompt, temp=1.0, mirostat_mode=2, mirostat_tau=tau_bits, mirostat_eta=job["eta"], repeat_penalty=1.0
    )
    for token in made:
        row = llama_get_logits_ith(model.ctx, -1)
        one = drawn(np.ctypeslib.as_array(row, (model.n_vocab(),)), token, mu_bits)
        mu_bits = next_mu_bits(mu_bits, one.observed_bits, tau_bits, job["eta"])
        steps.append(one)
        ids.append(token)
        if len(ids) == job["tokens"]:
            break
    return {
        "tau_bits": tau_bits,
        "ids": ids,
        "sampled_nats": [one.sampled_nats for one in steps],
        "model_nats": [one.model_nats for one in steps],
        "surprisal_nats": [one.surprisal_nats for one in steps],
        "outside": sum(not one.inside for one in steps),
    }


def main() -> None:
    """Command line."""
    from llama_cpp import Llama  # noqa: PLC0415 -- only in llama.cpp's environment

    job = json.loads(Path(sys.argv[1]).read_text())
    threads = job["threads"]
    model = Llama(
        job["gguf"],
        n_ctx=job["context"],
        n_threads=threads,
        n_threads_batch=threads,
        logits_all=False,
        verbose=False,
    )
    with Path(sys.argv[2]).open("w") as out:
        for tau_bits in job["taus_bits"]:
            for index, prompt in enumerate(job["prompts"]):
                row = answer(model, prompt, job, tau_bits, job["seed"] * 100_003 + index)
                out.write(json.dumps({"prompt": index, **row}) + "\n")
                print(
                    f"mirostat: tau {tau_bits:.2f} bits, prompt {index + 1} of {len(job['prompts'])}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
