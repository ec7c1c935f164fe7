"""Temperature as a controlled variable: does it hold the entropy, is the text better, and what does it cost?

Arms at each target: every variant of the controller (``--arms``, MODE[:ACTUATOR][@GAIN]); ``constant for X``, the one
temperature at which the mean entropy sampled from is that of the variant X; and Mirostat v2 of llama.cpp. All answer the same
prompts with exactly ``--tokens`` tokens. Claims are of the first variant, over all targets. A failed, short or empty arm ends
the run with an error; what was measured until then is kept in a file that is no result.

  sampling_control.py --prompts mt_bench.jsonl --parts tracking text cost mirostat
  sampling_control.py --prompts mt_bench.jsonl --count 6 --tokens 96 --match-tokens 64 --targets 2 --arms exact --name ""     (2 minutes)

``--prompts FILE``: a text file of one prompt a line, or JSON lines with ``prompt``, ``question``, ``text`` or ``turns``, such as
the public MT-bench or GSM8K questions. ``--schemas FILE`` adds documents of JSON schemas ({"id": ..., "schema": ...} a line).
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from harness import Claim, measuring, run_facts, write_result
from sampling_parts import cost, measures, mirostat, report, schemas
from sampling_parts.arms import MIROSTAT, Variant, constant_of, end_ids, read_prompts, token_ids
from sampling_parts.client import Answer, AnswerError, Asker
from sampling_parts.matching import Match, MatchError, Range, match_temperature
from transformers import AutoTokenizer

from sgl_entropic.models import resolve_model_path
from sgl_entropic.testing.servers import Server, entropic_server

PARTS = ("tracking", "text", "cost", "mirostat")
ARMS = ("exact", "newton", "fixed", "exact:min_p")
LOADS = (1, 8, 16)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    it = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    it.add_argument("--prompts", type=Path, required=True)
    it.add_argument("--schemas", type=Path)
    it.add_argument("--parts", nargs="+", choices=PARTS, default=["tracking", "text", "cost"], metavar="PART")
    it.add_argument("--name", default="sampling_control", help="of the result; an empty one writes none")
    it.add_argument(
        "--arms",
        nargs="+",
        type=Variant.of,
        default=[Variant.of(text) for text in ARMS],
        metavar="MODE[:ACTUATOR][@GAIN]",
        help="modes exact, newton, fixed; actuators temperature, min_p",
    )
    it.add_argument(
        "--match",
        nargs="+",
        type=Variant.of,
        metavar="ARM",
        help="variants to find a constant for; the first",
    )
    it.add_argument("--targets", nargs="+", type=float, default=[1.5, 2.0, 2.5], help="nats")
    it.add_argument("--count", type=int, default=40, help="prompts")
    it.add_argument("--tokens", type=int, default=512, help="of each answer")
    it.add_argument("--clients", type=int, default=16, help="at a time; not of the part cost")
    it.add_argument("--plain", action="store_true", help="prompts as they stand, not as a chat")
    it.add_argument("--temperature", type=float, default=1.0, help="of controlled requests, before control")
    it.add_argument("--min-temperature-scale", type=float, help="default: the server's")
    it.add_argument("--max-temperature-scale", type=float, help="default: the server's")
    it.add_argument("--match-tokens", type=int, default=128, help="of an answer while a constant is searched")
    it.add_argument("--match-steps", type=int, default=8, help="most of these")
    it.add_argument("--match-full-runs", type=int, default=3, help="most at the full length")
    it.add_argument("--match-tolerance", type=float, default=0.02, help="of the mean, as a share")
    it.add_argument("--match-limit", type=float, default=0.1, help="a difference beyond it is an error")
    it.add_argument("--eta", type=float, default=0.1, help="Mirostat's learning rate; llama.cpp's default")
    it.add_argument("--rounds", type=int, default=5, help="of the part cost")
    it.add_argument("--cost-tokens", type=int, default=96)
    it.add_argument(
        "--cost-arms", nargs="+", type=Variant.of, metavar="ARM", help="default: the first of --arms"
    )
    it.add_argument("--loads", nargs="+", type=int, default=list(LOADS), help="clients of the part cost")
    it.add_argument("--schema-count", type=int, default=40)
    it.add_argument("--schema-tokens", type=int, default=256)
    it.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="last: further flags of the server")
    it.add_argument("--seed", type=int, default=1)
    return it


def checked(it: argparse.ArgumentParser, arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options, or an end with the reason why they cannot be."""
    options = it.parse_args(arguments)
    options.match = options.match or options.arms[:1]
    options.cost_arms = options.cost_arms or options.arms[:1]
    names = [variant.name for variant in options.arms]
    answers = bool({"tracking", "text"} & set(options.parts))
    least = max(measures.SKIP, measures.SETTLING_WINDOW, measures.LOOP_WINDOW)
    for wrong, reason in (
        (len(set(names)) < len(names), "--arms: a variant stands twice"),
        (not {one.name for one in options.match} <= set(names), "--match: a variant is not of --arms"),
        (
            options.arms[0] not in options.match or options.arms[0] not in options.cost_arms,
            "--match and --cost-arms need the first variant, of which the claims are",
        ),
        (min(options.targets) <= 0, "--targets: entropies are above 0"),
        (len(set(options.targets)) < len(options.targets), "--targets: one stands twice"),
        (answers and options.tokens < least, f"--tokens: at least {least}, the window of cycles"),
        (
            answers and not measures.SKIP < options.match_tokens <= options.tokens,
            f"--match-tokens: more than {measures.SKIP}, at most --tokens",
        ),
        ("mirostat" in options.parts and not answers, "the part mirostat needs tracking or text"),
        (bool(options.schemas) and not answers, "--schemas needs tracking or text: they find the constant"),
        (min(options.count, options.rounds, options.clients) < 1, "a size is below 1"),
    ):
        if wrong:
            it.error(reason)
    return options


@dataclass(slots=True)
class Findings:
    """What a run has found so far.

    Attributes:
        rows: measures by arm, target and prompt.
        matches: of the constants, by arm and target.
        mirostat_differs_nats: of llama.cpp's surprisals from ours, by target.
        cost: samples.
        schemas: outcomes by arm.
    """

    rows: report.Rows = field(default_factory=dict)
    matches: dict[str, dict[float, Match]] = field(default_factory=dict)
    mirostat_differs_nats: dict[float, float] = field(default_factory=dict)
    cost: list[cost.Sample] = field(default_factory=list)
    schemas: dict[str, list[str]] = field(default_factory=dict)

    def content(self) -> dict[str, Any]:
        """For the result file."""
        matches = {
            arm: {f"{target:g}": {**asdict(match), "gap": match.gap} for target, match in by_target.items()}
            for arm, by_target in self.matches.items()
        }
        differs = {f"{target:g}": value for target, value in self.mirostat_differs_nats.items()}
        return {"matches": matches, "mirostat_differs_nats": differs, "schemas": self.schemas}


class Run:
    """One run: the arms of all targets on one server.

    Attributes:
        findings: of the run so far.
    """

    def __init__(
        self, options: argparse.Namespace, asker: Asker, ends: list[int], folder: Path, facts: dict[str, Any]
    ) -> None:
        self._options, self._asker, self._ends = options, asker, ends
        self._partial, self._facts = folder / "sampling_control.partial.json", facts
        self.findings = Findings()

    def all(self, drawn: dict[float, list[dict[str, Any]]], rows: list[schemas.Row]) -> None:
        """Every chosen part; ``drawn`` is Mirostat's, by target."""
        options = self._options
        if {"tracking", "text"} & set(options.parts):
            for target in options.targets:
                self._one_target(target)
                if drawn:
                    answers, differs = mirostat.judged(drawn[target], self._asker)
                    self.findings.mirostat_differs_nats[target] = differs
                    self._keep(MIROSTAT, target, answers)
            if rows:
                self._schemas(rows)
        if "cost" in options.parts:
            target = _middle(options.targets)
            arms = {one.name: one.asked(target, bounds_of(options)) for one in options.cost_arms}
            self.findings.cost = cost.run(
                self._asker.url, arms, options.loads, options.cost_tokens, options.rounds
            )
            self._save()

    def _one_target(self, target: float) -> None:
        options = self._options
        for variant in options.arms:
            asked = variant.asked(target, bounds_of(options))
            answers = self._asker.answers(options.tokens, options.temperature, asked)
            self._keep(variant.name, target, answers)
            if variant in options.match:
                self._constant(variant, target, _mean_nats(answers))

    def _constant(self, variant: Variant, target: float, goal_nats: float) -> None:
        options, name = self._options, constant_of(variant)
        answers: dict[float, list[Answer]] = {}

        def short(temperature: float) -> float:
            found = _mean_nats(self._asker.answers(options.match_tokens, temperature))
            print(f"{name}: {temperature:.4f} gives {found:.3f}, wanted {goal_nats:.3f}", flush=True)
            return found

        def whole(temperature: float) -> float:
            answers[temperature] = self._asker.answers(options.tokens, temperature)
            return _mean_nats(answers[temperature])

        tolerance = options.match_tolerance
        coarse = Range(0.05, 20.0, 1.25, tolerance, options.match_steps)
        fine = Range(0.05, 20.0, 1.04, tolerance, options.match_full_runs)
        first = match_temperature(short, goal_nats, options.temperature, coarse)
        match = match_temperature(whole, goal_nats, first.temperature, fine)
        if match.gap > options.match_limit:
            raise MatchError(
                f"{name}: mean entropy {match.mean_nats:.3f}, {goal_nats:.3f} wanted: {match.tried}"
            )
        self.findings.matches.setdefault(name, {})[target] = match
        self._keep(name, target, answers[match.temperature])

    def _schemas(self, rows: list[schemas.Row]) -> None:
        options, target, variant = self._options, _middle(self._options.targets), self._options.arms[0]
        constant = constant_of(variant)
        usable = schemas.accepted(self._asker.url, rows)
        for name, temperature, asked in (
            (variant.name, options.temperature, variant.asked(target, bounds_of(options))),
            (constant, self.findings.matches[constant][target].temperature, None),
        ):
            found = schemas.outcomes(
                self._asker.url, usable, options.schema_tokens, temperature, asked, options.clients
            )
            self.findings.schemas[name] = found
            print(f"schemas, {name}: { ({one: found.count(one) for one in sorted(set(found))}) }", flush=True)
        self._save()

    def _keep(self, arm: str, target: float, answers: list[Answer]) -> None:
        rows: list[report.Row] = []
        for answer in answers:
            row: report.Row = {}
            if "tracking" in self._options.parts:
                row |= report.tracking_row(answer, target)
            if "text" in self._options.parts:
                row |= report.text_row(answer, self._ends)
            rows.append(row)
        self.findings.rows.setdefault(arm, {})[target] = rows
        self._save()
        print(f"{target:g} nats, {arm}: mean {_mean_nats(answers):.3f} nats", flush=True)

    def _save(self) -> None:
        found = self.findings
        content = {**self._facts, **found.content(), "rows": report.packed(found.rows), "cost": found.cost}
        self._partial.write_text(json.dumps(content, indent=1) + "\n")


def _mean_nats(answers: list[Answer]) -> float:
    values = [measures.mean(answer.sampled_nats) for answer in answers]
    return measures.mean(values, 0)


def _middle(targets: Sequence[float]) -> float:
    return sorted(targets)[len(targets) // 2]


def bounds_of(options: argparse.Namespace) -> dict[str, float]:
    """Bounds of the temperature that the command line names."""
    names = ("min_temperature_scale", "max_temperature_scale")
    return {name: value for name in names if (value := getattr(options, name)) is not None}


def claims_of(options: argparse.Namespace, findings: Findings) -> tuple[list[Claim], dict[str, Any]]:
    """The claims of the parts that ran, and beside them their ratios at each target alone and the validity of documents."""
    rows, seed, arm = findings.rows, options.seed, options.arms[0].name
    constant, made = constant_of(options.arms[0]), []
    details: dict[str, Any] = {}
    wanted = (
        ("tracking", "sampling_rms_vs_fixed", constant, "rms_nats", report.RMS_BAR),
        ("mirostat", "sampling_rms_vs_mirostat", MIROSTAT, "rms_nats", report.MIROSTAT_BAR),
        ("tracking", "sampling_oscillation_vs_fixed", constant, "oscillation_nats", report.OSCILLATION_BAR),
    )
    for part, name, other, measure, bar in wanted:
        if {part, "tracking"} <= set(options.parts):
            made.append(report.ratio_claim(name, rows, (arm, other), measure, bar, seed))
            details[name] = report.per_target(rows, arm, other, measure, seed)
    if "text" in options.parts:
        made.append(report.loop_claim(rows, arm, constant, seed))
    if findings.schemas:
        details["schemas_valid_share"] = report.validity(findings.schemas, arm, constant, seed)
    if findings.cost:
        made += report.cost_claims(findings.cost, arm, seed)
    return made, details


def measured(options: argparse.Namespace, folder: Path, facts: dict[str, Any]) -> Findings:
    """Run all that the options choose.

    Raises:
        ValueError: a file does not hold what is needed.
        AnswerError: a request, an answer or llama.cpp failed.
        MatchError: no constant temperature has the mean entropy of a variant.
    """
    model = Path(resolve_model_path(None))
    tokenizer = AutoTokenizer.from_pretrained(str(model))
    prompts = token_ids(read_prompts(options.prompts, options.count), tokenizer, chat=not options.plain)
    rows = schemas.read_schemas(options.schemas, options.schema_count) if options.schemas else []
    drawn: dict[float, list[dict[str, Any]]] = {}
    if "mirostat" in options.parts:
        # Before the server starts: the two would share the cores.
        job = mirostat.Job(prompts, options.targets, options.tokens, options.eta, options.seed)
        drawn = mirostat.drawn(job, folder)
    flags = ("--random-seed", str(options.seed), *options.flags)
    server: Server
    with entropic_server(folder / "server.log", *flags) as server:
        asker = Asker(server.url, prompts, options.clients)
        run = Run(options, asker, end_ids(model, tokenizer), folder, facts)
        run.all(drawn, rows)
        if not server.alive():
            raise AnswerError("the server ended: " + server.log_tail())
    return run.findings


def main() -> None:
    """Command line."""
    options = checked(parser())
    folder = Path(tempfile.mkdtemp(prefix="sampling_control_"))
    facts = run_facts(options.seed)
    with measuring(folder, ValueError, AnswerError, MatchError):
        findings = measured(options, folder, facts)
        made, details = claims_of(options, findings)
    tables = report.summaries(findings.rows, options.seed) if findings.rows else {}
    if tables:
        print(report.table(tables), end="\n\n")
    settings = {
        name: [one.name for one in value] if name in {"arms", "match", "cost_arms"} else value
        for name, value in vars(options).items()
        if not isinstance(value, Path)
    }
    files = {"prompts": options.prompts.name, "schemas": options.schemas and options.schemas.name}
    write_result(
        options.name,
        made,
        facts,
        {"answers": report.packed(findings.rows), "cost": findings.cost},
        settings={**settings, **files},
        model=Path(resolve_model_path(None)).name,
        beside_claims=details,
        tables=tables,
        **findings.content(),
    )


if __name__ == "__main__":
    main()
