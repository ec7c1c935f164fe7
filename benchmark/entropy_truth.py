"""How far the server's entropies and surprisals lie from a teacher-forced transformers run of the same weights.

Every prompt is sent twice, and branched once, so that prefix-cache hits are measured too; sampling is at temperature 1.
``--text FILE`` takes any plain text to cut prompts from; without it a few built-in sentences serve.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from harness import claim, run_facts, write_result
from telemetry_cost import PROMPTS
from transformers import AutoModelForCausalLM, AutoTokenizer

from sgl_entropic.models import default_model, ensure
from sgl_entropic.testing.servers import Server, entropic_server

ASK = {"entropic": {"return_entropy": True, "return_prompt_surprisal": True}}


def prompts_from(text: str, count: int, rng: random.Random) -> list[str]:
    """``count`` passages of 20 to 150 words."""
    words = text.split()
    cuts = [(rng.randrange(max(1, len(words) - 150)), rng.randrange(20, 150)) for _ in range(count)]
    return [" ".join(words[at : at + length]) for at, length in cuts]


@torch.inference_mode()
def truth(model: Any, ids: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Entropy and surprisal of ``ids[1:]``, float64 statistics of float32 logits."""
    log_p = torch.log_softmax(model(torch.tensor([ids])).logits[0, :-1].double(), -1)
    entropy = -(log_p.exp() * log_p).sum(-1)
    surprisal = -log_p[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]
    return entropy.numpy(), surprisal.numpy()


def errors_of(
    server: Server, model: Any, tokenizer: Any, prompts: list[str], tokens: int
) -> list[dict[str, float]]:
    """Largest absolute error of each prompt's readings."""
    body = {
        "text": prompts,
        "sampling_params": {"temperature": 1.0, "max_new_tokens": tokens, "custom_params": ASK},
    }
    answers = httpx.post(server.url + "/generate", json=body, timeout=1200).raise_for_status().json()
    samples = []
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = tokenizer(prompt)["input_ids"] + answer["output_ids"]
        entropy, surprisal = truth(model, ids)
        got = answer["meta_info"]["entropic"]
        measured_entropy = np.array(got["prompt_entropy_nats"][1:] + got["entropy_nats"], float)
        measured_surprisal = np.array(got["prompt_surprisal_nats"][1:] + got["surprisal_nats"], float)
        samples.append(
            {
                "tokens": len(ids),
                "cached_tokens": answer["meta_info"]["cached_tokens"],
                "entropy_abs_error_max_nats": float(np.abs(measured_entropy - entropy).max()),
                "surprisal_abs_error_max_nats": float(np.abs(measured_surprisal - surprisal).max()),
            }
        )
    return samples


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", type=Path, help="plain text to cut prompts from")
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)  # noqa: S311 -- reproducible prompts
    prompts = prompts_from(options.text.read_text(), options.prompts, rng) if options.text else list(PROMPTS)
    branched = [prompt.rsplit(" ", 1)[0] + " otherwise" for prompt in prompts]
    path = str(ensure(default_model().name))
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    samples = []
    # The truth is computed in float32; the default arithmetic of the CPU platform rounds the inputs of its products.
    flags = ("--chunked-prefill-size", "128", "--entropic-weights", "float32")
    with entropic_server(Path(tempfile.mkdtemp()) / "server.log", *flags) as server:
        for round_prompts in (prompts, prompts, branched):
            for at in range(0, len(round_prompts), 8):
                samples += errors_of(server, model, tokenizer, round_prompts[at : at + 8], options.tokens)
                print(f"{len(samples)} requests", flush=True)
    if not any(sample["cached_tokens"] for sample in samples):
        raise RuntimeError("no request hit the prefix cache; the measurement would not cover it")
    claims = []
    for name in ("entropy_abs_error_max_nats", "surprisal_abs_error_max_nats"):
        values = [sample[name] for sample in samples]
        claims.append(claim(name, max(values), (min(values), max(values)), "nats", "<= 0.001"))
    write_result(
        "entropy_truth", claims, run_facts(options.seed), samples, text=options.text and options.text.name
    )


if __name__ == "__main__":
    main()
