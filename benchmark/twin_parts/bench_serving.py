"""SGLang's own load generator (``sglang.bench_serving``, by its newer name) for the workloads it can make: equal, independent clients.

Its prompts are random token ids turned into text, which a server may cut into another number of tokens; it never checks how
many came. So the counts are checked here, and servers that do not know ``ignore_eos`` are refused.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from twin_parts.client import LoadError
from twin_parts.workloads import DECODE, Workload

KINDS = ("sglang", "llamacpp-native", "hf")
_SMALLEST_COUNT_SHARE = 0.9
_TIMEOUT_S = 3600


def serves(workload: Workload, kind: str) -> bool:
    """Whether it can make this workload for this kind of server, with the figure that is compared."""
    return workload.shape is not None and workload.figure != DECODE and kind in KINDS


def run(url: str, workload: Workload, model: Path, folder: Path, seed: int) -> dict[str, Any]:
    """Figures of ``workload``, in the form of :func:`twin_parts.rates.figures`.

    Raises:
        LoadError: it failed, a request failed, or far fewer tokens came than asked for.
    """
    assert workload.shape is not None
    clients, input_tokens, output_tokens = workload.shape
    out = folder / "bench_serving.jsonl"
    out.unlink(missing_ok=True)
    command = [sys.executable, "-m", "sglang.benchmark.serving", "--backend", "sglang-oai", "--base-url", url]
    command += ["--model", str(model), "--tokenizer", str(model), "--dataset-name", "random-ids"]
    command += ["--num-prompts", str(clients), "--max-concurrency", str(clients), "--seed", str(seed)]
    command += ["--random-input-len", str(input_tokens), "--random-output-len", str(output_tokens)]
    command += ["--random-range-ratio", "1", "--warmup-requests", "0", "--disable-tqdm"]
    command += ["--output-file", str(out), "--output-details"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode != 0 or not out.exists():
        raise LoadError(f"bench_serving ended with {done.returncode}: {(done.stdout + done.stderr)[-1500:]}")
    return figures(json.loads(out.read_text().splitlines()[-1]), workload.shape)


def figures(report: dict[str, Any], shape: tuple[int, int, int]) -> dict[str, Any]:
    """The report of a run in our form.

    Raises:
        LoadError: see :func:`run`.
    """
    clients, _, output_tokens = shape
    wanted = clients * output_tokens
    errors = [error for error in report.get("errors", []) if error]
    counted = report["total_output_tokens_retokenized"]
    if report["completed"] != clients or errors or counted < _SMALLEST_COUNT_SHARE * wanted:
        raise LoadError(
            f"bench_serving: {report['completed']} of {clients} requests, {counted} of {wanted} tokens; "
            f"{str(errors[:1])[:500]}"
        )
    return {
        "duration_s": report["duration"],
        "input_tokens": report["total_input_tokens"],
        "output_tokens": report["total_output_tokens"],
        "input_tokens_per_s": report["input_throughput"],
        "output_tokens_per_s": report["output_throughput"],
        "ttft_s": [round(time_s, 4) for time_s in report["ttfts"]],
        "latency_s": [
            round(first + sum(gaps), 4) for first, gaps in zip(report["ttfts"], report["itls"], strict=True)
        ],
        "inter_token_ms": [" ".join(f"{1000 * gap:.1f}" for gap in gaps) for gaps in report["itls"]],
    }
