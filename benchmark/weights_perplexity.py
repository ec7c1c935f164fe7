"""How much ``--entropic-weights int8`` costs in perplexity: the served model's own probabilities of a plain text.

Two servers, one after the other, score the same windows of the text; SGLang's own path (``--entropic-cpu-fast-path off``)
is the third and says whether ``float32`` really changes nothing. The interval is a bootstrap over windows.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from harness import claim, run_facts, write_result
from transformers import AutoTokenizer

from sgl_entropic.models import default_model, ensure
from sgl_entropic.testing.servers import Server, entropic_server

ARMS = {
    "int8": ("--entropic-weights", "int8"),
    "float32": ("--entropic-weights", "float32"),
    "stock_ops": ("--entropic-cpu-fast-path", "off"),
}
MOST_RISE = 1.005


def windows_of(ids: list[int], tokens: int, count: int) -> list[list[int]]:
    """``count`` windows of ``tokens`` tokens, evenly spread over the text."""
    if len(ids) < tokens * count:
        raise ValueError(f"the text has {len(ids)} tokens; {count} windows of {tokens} need {tokens * count}")
    step = (len(ids) - tokens) // max(1, count - 1)
    return [ids[at * step : at * step + tokens] for at in range(count)]


def negative_log_likelihoods(server: Server, windows: list[list[int]]) -> list[float]:
    """Sum of the surprisals of each window's tokens but the first, in nats."""
    sums = []
    for index, window in enumerate(windows):
        body: dict[str, Any] = {
            "input_ids": window,
            "sampling_params": {"temperature": 0, "max_new_tokens": 1},
            "return_logprob": True,
            "logprob_start_len": 0,
        }
        answer = httpx.post(server.url + "/generate", json=body, timeout=600).raise_for_status().json()
        values = [entry[0] for entry in answer["meta_info"]["input_token_logprobs"]][1:]
        if len(values) != len(window) - 1 or any(value is None for value in values):
            raise RuntimeError(f"window {index}: {len(values)} log-probabilities for {len(window)} tokens")
        sums.append(-math.fsum(values))
        print(f"{index + 1} of {len(windows)} windows", flush=True)
    return sums


def ratio(numerator: np.ndarray, denominator: np.ndarray, tokens: int) -> float:
    """Quotient of two perplexities over the same windows of ``tokens`` scored tokens each."""
    return float(np.exp((numerator.sum() - denominator.sum()) / (len(numerator) * tokens)))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", type=Path, required=True, help="plain text")
    parser.add_argument("--windows", type=int, default=48)
    parser.add_argument("--tokens", type=int, default=512, help="tokens of one window")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(str(ensure(default_model().name)))
    ids = tokenizer(options.text.read_text())["input_ids"]
    windows = windows_of(ids, options.tokens, options.windows)
    sums = {}
    for arm, flags in ARMS.items():
        print(arm, flush=True)
        with entropic_server(Path(tempfile.mkdtemp()) / "server.log", *flags) as server:
            sums[arm] = np.array(negative_log_likelihoods(server, windows))
    rng = np.random.default_rng(options.seed)
    scored = options.tokens - 1
    claims = []
    for name, arm, base, bar in (
        ("cpu_int8_perplexity_ratio", "int8", "float32", f"<= {MOST_RISE}"),
        ("cpu_float32_perplexity_ratio", "float32", "stock_ops", "<= 1.0001"),
    ):
        draws = rng.integers(0, len(windows), (2000, len(windows)))
        spread = [ratio(sums[arm][draw], sums[base][draw], scored) for draw in draws]
        low, high = np.quantile(spread, (0.025, 0.975))
        claims.append(
            claim(name, ratio(sums[arm], sums[base], scored), (float(low), float(high)), "ratio", bar)
        )
    perplexity = {arm: float(np.exp(values.sum() / (len(values) * scored))) for arm, values in sums.items()}
    print(perplexity)
    write_result(
        "weights_perplexity",
        claims,
        run_facts(options.seed),
        {arm: [float(value) for value in values] for arm, values in sums.items()},
        text=options.text.name,
        window_tokens=options.tokens,
        perplexity=perplexity,
    )


if __name__ == "__main__":
    main()
