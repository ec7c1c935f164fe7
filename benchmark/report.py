"""Put the claims of all result files into README.md and the docs, so that no figure is typed by hand.

``python benchmark/report.py`` rewrites what stands between the two markers; ``--check`` only says whether that is needed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
# What the README shows of each mechanism, reached or not; the docs have every claim.
HEADLINES = {
    "telemetry_tps_ratio_16": "Telemetry on over off, tokens per second, 16 clients",
    "cpu_1_clients_vs_stock": "This server over stock SGLang on a CPU, tokens per second, 1 client",
    "cpu_8_clients_vs_stock": "8 clients",
    "cpu_16_clients_vs_stock": "16 clients",
    "cpu_prefill2k_vs_stock": "prefill of 2,000 tokens",
    "cpu_8_clients_vs_llamacpp": "over llama.cpp's server, 8 clients",
    "prune_tps_8x2k": "Attention pruned to half over dense, tokens per second, 8 clients with 2,000 tokens",
    "prune_tps_8x6k": "with 6,000 tokens",
    "prune_dnll_r50_nats": "its loss on running text",
    "prune_needle_recall_r50": "digits of hidden codes that it recalls",
    "prune_needle_codes_r50": "hidden codes that it recalls whole, where reading all recalls every one",
    "prune_dnll_vs_best_r50": "its loss on running text less that of the best other policy",
    "prune_kl_vs_quest_r50": "its KL divergence over that of Quest",
    "prune_json_lost_r50": "documents valid under a schema when dense, and lost by it",
    "sampling_rms_vs_fixed": "Held entropy's distance from its target over that of the best fixed temperature",
    "sampling_rms_vs_mirostat": "over that of Mirostat v2",
    "sampling_tps_ratio_16": "its tokens per second over a fixed temperature's, 16 clients",
    "sched_mean_vs_fcfs": "Scheduling by entropy over `fcfs`, mean latency",
    "sched_mean_vs_hrrn": "over `hrrn`, mean latency",
    "sched_p99_ttft_vs_hrrn": "over `hrrn`, p99 of the time to the first token",
    "sched_tight_tps_vs_fcfs": "over `fcfs` with too little KV, tokens per second",
    "sched_tight_recompute_vs_fcfs": "and tokens computed anew",
    "sched_tight_early_tps_vs_fcfs": "where half of the answers end before their limits, tokens per second",
    "sched_trace_mean_vs_hrrn": "over `hrrn` on a replayed trace, mean latency",
    "sched_trace_entropic_time_rate": "and entropic time for each second",
    "sched_flood_longest_wait_vs_lpm": "over `lpm`, longest wait beside a flood on one prefix",
    "evict_server_recompute_vs_lru": "Eviction by return time over LRU, prompt tokens computed",
    "evict_server_ttft_p90_vs_lru": "p90 of the time to the first token",
    "evict_surprisal_vs_placebo": "its hits with surprisals drawn at random over the same shuffled: a check, no evidence",
    "evict_measured_surprisal_vs_plain": "its hits with surprisals measured on real texts over none",
    "gravity_tps_ratio": "Narrative gravity on over off, tokens per second",
}


def headlines() -> str:
    """Markdown table of ``HEADLINES``, in words."""
    lines = ["| what | measured | interval | bar | reached |", "| --- | --- | --- | --- | --- |"]
    claims = {claim["name"]: claim for path in _results() for claim in json.loads(path.read_text())["claims"]}
    for name, words in HEADLINES.items():
        claim = claims[name]
        lines.append("| " + " | ".join((words, *_figures(claim))) + " |")
    return "\n".join(lines)


def table() -> str:
    """Markdown table of every claim, one row each, with the host it was measured on."""
    lines = ["| claim | value | interval | bar | reached | file |", "| --- | --- | --- | --- | --- | --- |"]
    hosts = set()
    for path in _results():
        content = json.loads(path.read_text())
        host = content["host"]
        hosts.add(f"{host['processor']}, {host['cores']} cores")
        lines += [_row(claim, path.name) for claim in content["claims"]]
    lines += ["", f"Measured on {'; '.join(sorted(hosts)) or 'no machine yet'}."]
    return "\n".join(lines)


def _results() -> list[Path]:
    return sorted((ROOT / "benchmark/results").glob("*.json"))


def _row(claim: dict[str, Any], file: str) -> str:
    return "| " + " | ".join((f"`{claim['name']}`", *_figures(claim), f"`{file}`")) + " |"


def _figures(claim: dict[str, Any]) -> tuple[str, str, str, str]:
    unit = "" if claim["unit"] == "ratio" else f" {claim['unit']}"
    interval = f"{claim['low']:.4g} to {claim['high']:.4g}"
    return f"{claim['value']:.4g}{unit}", interval, claim["bar"], "yes" if claim["ok"] else "**no**"


PAGES: dict[str, Callable[[], str]] = {"README.md": headlines, "docs/reference/benchmarks.md": table}


def rewritten(page: str) -> str:
    """The text of ``page`` with its current table between the markers."""
    text = (ROOT / page).read_text()
    head, _, rest = text.partition(BEGIN)
    _, found, tail = rest.partition(END)
    if not found:
        raise ValueError(f"the page has no {BEGIN} ... {END}")
    return f"{head}{BEGIN}\n\n{PAGES[page]()}\n\n{END}{tail}"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="change nothing, fail when a page is out of date"
    )
    options = parser.parse_args()
    stale = [page for page in PAGES if rewritten(page) != (ROOT / page).read_text()]
    if options.check and stale:
        raise SystemExit(f"out of date: {', '.join(stale)}; run python benchmark/report.py")
    for page in stale:
        (ROOT / page).write_text(rewritten(page))
        print(f"rewritten: {page}")


if __name__ == "__main__":
    main()
