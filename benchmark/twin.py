"""Servers compared on one machine: same model, same prompts, interleaved rounds, ratios of the same round.

Arms: stock SGLang on the least platform that makes it run on a CPU, this project's server with any flags, llama.cpp behind its
Python server and behind its own, ``transformers`` ``generate``. All servers live at once, but only one is awake; the others are
stopped (SIGSTOP). Every workload of a round is asked of every arm, in an order that turns. A crashed or empty arm, a failed
request or a wrong number of tokens ends the run with an error; what was measured until then is kept in a file that is
no result. How to read the figures: docs/reference/twin.md.

  twin.py --arms stock ours-float32 ours-int8 llamacpp --name cpu --rounds 5 --plot twin.png
  twin.py --arms ours llamacpp-native --arm "no-telemetry=--entropic-telemetry off" --workloads clients_1 clients_8
  twin.py --arms ours stock --workloads trace --trace FILE --trace-requests 30 --trace-scale-length 0.05 --trace-rate 0.5
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness import Claim, measuring, run_facts, write_result
from twin_parts import claims, llamacpp, mooncake, plot
from twin_parts.arms import CONTEXT_TOKENS, NAMES, OURS, Arm, make, named_flags
from twin_parts.prompts import WordPrompts
from twin_parts.runner import ArmError, Findings, Plan, Run
from twin_parts.workloads import CLAIMED, Sizes, Workload, catalogue

from sgl_entropic.models import resolve_model_path

# A goal rather than a promise: how near to the limit of the machine's memory a single client is served.
SHARE_BAR = ">= 0.6"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    it = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    it.add_argument("--name", default="", help="the result is benchmark/results/twin_NAME.json; none without")
    it.add_argument("--arms", nargs="+", default=[], metavar="ARM", help=", ".join(NAMES))
    it.add_argument(
        "--arm", action="append", default=[], metavar='"NAME=FLAGS"', help="our server with FLAGS"
    )
    it.add_argument("--stock-flags", default="", help="further flags of stock SGLang")
    it.add_argument("--model-path", help="default: the default model; the llama.cpp arms know no other")
    known = (*catalogue(Sizes()), "trace")
    it.add_argument(
        "--workloads", nargs="+", default=list(CLAIMED), choices=(*known, "all"), metavar="WORKLOAD"
    )
    it.add_argument("--rounds", type=int, default=5, help="after one that warms up")
    it.add_argument("--starts", type=int, default=3, help="how often each server is started and timed")
    it.add_argument("--seed", type=int, default=1)
    sizes = Sizes()
    it.add_argument("--input-tokens", type=int, default=sizes.input_tokens, help="of clients_*")
    it.add_argument("--output-tokens", type=int, default=sizes.output_tokens, help="of clients_*")
    it.add_argument("--context-output-tokens", type=int, default=sizes.context_output_tokens, help="of ctx*")
    it.add_argument(
        "--restart", action="store_true", help="restart servers in every round instead of pausing"
    )
    it.add_argument("--load-generator", choices=("own", "bench_serving"), default="own")
    it.add_argument(
        "--weight-bytes", action="append", default=[], metavar="ARM=BYTES", help="read for each token"
    )
    it.add_argument("--claim-float32", default="ours-float32", metavar="ARM", help="our side against stock")
    it.add_argument("--claim-int8", default="ours-int8", metavar="ARM", help="our side against llama.cpp")
    it.add_argument(
        "--claim-llamacpp", default="llamacpp", metavar="ARM", help="the llama.cpp arm of the claims"
    )
    it.add_argument("--plot", type=Path, help="a picture; the ending says its form")
    it.add_argument("--trace", type=Path, help="a trace in Mooncake's form, for the workload trace")
    it.add_argument("--trace-requests", type=int, default=30)
    it.add_argument("--trace-scale-length", type=float, default=0.05, help="factor of all lengths")
    it.add_argument("--trace-rate", type=float, default=0.5, help="requests a second")
    it.add_argument(
        "--work-dir", type=Path, help="logs and the partial result; default: a new temporary folder"
    )
    return it


def chosen_workloads(options: argparse.Namespace) -> list[Workload]:
    """The workloads that the command line names, in the order of the catalogue.

    Raises:
        ValueError: the trace is asked for without a file, or the file is not a trace.
    """
    sizes = Sizes(options.input_tokens, options.output_tokens, options.context_output_tokens)
    every = catalogue(sizes)
    if "all" in options.workloads:
        wanted = {*every, *(("trace",) if options.trace else ())}
    else:
        wanted = set(options.workloads)
    chosen = [workload for name, workload in every.items() if name in wanted]
    if "trace" in wanted:
        if options.trace is None:
            raise ValueError("the workload trace needs --trace FILE")
        most = CONTEXT_TOKENS // 2
        scale = mooncake.Scale(options.trace_scale_length, options.trace_rate, most, most // 4)
        rows = mooncake.read(options.trace, options.trace_requests)
        chosen.append(mooncake.workload(mooncake.scaled(rows, scale), scale.block_tokens))
    return chosen


def weight_bytes_of(texts: list[str]) -> dict[str, int]:
    """``ARM=BYTES`` by arm.

    Raises:
        ValueError: one is of another form.
    """
    pairs = [text.rpartition("=") for text in texts]
    return {name: int(count) for name, _, count in pairs}


def ours_of(options: argparse.Namespace, arms: list[Arm]) -> list[str]:
    """Names of the arms that are this project's server."""
    named = {*OURS, *named_flags(options.arm)}
    return [arm.name for arm in arms if arm.name in named]


def all_claims(options: argparse.Namespace, findings: Findings, ours: list[str]) -> list[Claim]:
    """Every claim whose arms took part; what is left out is said on stderr."""
    seed, arms, samples = options.seed, set(findings.start_s), findings.samples
    result: list[Claim] = []
    for one, peer, label, bars in (
        (options.claim_float32, "stock", "stock", claims.STOCK_BARS),
        (options.claim_int8, options.claim_llamacpp, "llamacpp", claims.LLAMACPP_BARS),
    ):
        if {one, peer} <= arms:
            result += claims.against(samples, one, peer, label, bars, seed)
        else:
            print(f"no claims against {label}: they need the arms {one} and {peer}", file=sys.stderr)
    if not ours:
        return result
    starts = {name: findings.start_s[name] for name in ours}
    gigabytes = {name: [m["pss_bytes"] / 1e9 for m in findings.memory if m["arm"] == name] for name in ours}
    result.append(claims.worst("cpu_start_seconds", starts, "s", claims.START_BAR, seed))
    result.append(claims.worst("cpu_rss_gb", gigabytes, "GB", claims.MEMORY_BAR, seed))
    preferred = [name for name in (options.claim_int8, options.claim_float32, *ours) if name in arms]
    arm = next((name for name in preferred if name in findings.weight_bytes), None)
    if arm and any(s["workload"] == "clients_1" for s in samples):
        weight_bytes = findings.weight_bytes[arm]
        share = claims.bandwidth_share(samples, arm, weight_bytes, findings.bandwidths, SHARE_BAR, seed)
        result.append(share)
    else:
        print(
            "no share of bandwidth: no weight bytes known (--weight-bytes) or no clients_1", file=sys.stderr
        )
    return result


def content_of(plan: Plan, findings: Findings) -> dict[str, Any]:
    """What stands in the result beside claims, facts and samples."""
    return {
        "arms": {arm.name: arm.described for arm in plan.arms},
        "llama_cpp_python": llamacpp.VERSION,
        "workloads": {one.name: one.description for one in plan.workloads},
        "start_s": findings.start_s,
        "memory": findings.memory,
        "read_bytes_per_s": {str(index): round(rate) for index, rate in findings.bandwidths.items()},
        "weight_bytes": findings.weight_bytes,
        "not_offered": findings.skipped,
    }


def prepared(options: argparse.Namespace, folder: Path) -> tuple[Plan, WordPrompts]:
    """The plan and the prompts of a command line; what arms need is installed.

    Raises:
        ValueError: the command line contradicts itself.
        RuntimeError: an installation failed.
    """
    own = named_flags(options.arm)
    names = list(dict.fromkeys([*options.arms, *own]))
    if len(names) < 2:
        raise ValueError("a comparison needs two arms or more (--arms, --arm)")
    workloads = chosen_workloads(options)
    if options.plot:
        plot.require()
    model = Path(resolve_model_path(options.model_path))
    if options.model_path is not None and any(name.startswith("llamacpp") for name in names):
        raise ValueError("the llama.cpp arms serve the default model; leave --model-path out")
    stock_flags = shlex.split(options.stock_flags)
    arms = [make(name, own, model, folder, stock_flags) for name in names]
    generator = model if options.load_generator == "bench_serving" else None
    plan = Plan(arms, workloads, options.rounds, options.starts, options.seed, options.restart, generator)
    return plan, WordPrompts.of_model(model)


def main() -> None:
    """Command line."""
    options = parser().parse_args()
    folder = options.work_dir or Path(tempfile.mkdtemp(prefix="twin_"))
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"twin_{options.name or 'run'}.partial.json"
    try:
        plan, prompts = prepared(options, folder)
        given = weight_bytes_of(options.weight_bytes)
    except (ValueError, RuntimeError) as error:
        raise SystemExit(f"twin.py: {error}") from error
    facts = run_facts(options.seed)

    def keep() -> None:
        content = {**facts, **content_of(plan, run.findings), "samples": run.findings.samples}
        partial.write_text(json.dumps(content, indent=1) + "\n")

    run = Run(plan, prompts, folder, keep)
    with measuring(folder, ArmError):
        try:
            findings = run.all()
        finally:
            keep()
    findings.weight_bytes |= given
    ours = ours_of(options, list(plan.arms))
    print(claims.table(findings.samples, ours, options.seed), end="\n\n")
    made = all_claims(options, findings, ours)
    keep()
    # A file of a load that nothing is claimed of would say nothing.
    name = f"twin_{options.name}" if options.name and made else ""
    write_result(name, made, facts, findings.samples, **content_of(plan, findings))
    if options.plot:
        plot.write(
            options.plot,
            findings.samples,
            f"{facts['host']['processor']}, {options.rounds} rounds",
            options.seed,
        )


if __name__ == "__main__":
    main()
