"""Our flags on a command line that holds another program's as well: each counts, each is refused by name, none is lost."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_entropic.config import (
    EntropicConfig,
    add_arguments,
    configuration,
    flag_specs,
    read_command_line,
    refuse_unknown,
)
from sgl_entropic.errors import ConfigError

FLAGS = ["--entropic-config", *(spec.flag for spec in flag_specs())]


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="server")
    add_arguments(parser)
    return parser


def configured(*flags: str) -> EntropicConfig:
    return configuration(make_parser().parse_args(list(flags)))


def test_the_help_lists_every_flag_with_its_range_and_default() -> None:
    text = " ".join(make_parser().format_help().split())
    assert "--entropic-config FILE.yaml" in text
    for spec in flag_specs():
        assert f"{spec.flag} {spec.metavar}" in text
        assert " ".join(spec.help.split()) in text


def test_no_flag_is_the_defaults() -> None:
    assert configured() == EntropicConfig()


def examples(tmp_path: Path) -> dict[str, tuple[str, Any]]:
    """A value for each flag, other than its default, and what it means."""
    return {
        "telemetry.enabled": ("off", False),
        "telemetry.prompt_surprisal": ("false", False),
        "telemetry.prompt_chunk_rows": ("512", 512),
        "trace.path": (str(tmp_path / "steps.jsonl"), str(tmp_path / "steps.jsonl")),
        "trace.publish": ("tcp://127.0.0.1:5555", "tcp://127.0.0.1:5555"),
        "trace.queue_records": ("16", 16),
        "sampling.target_nats": ("1.5", 1.5),
        "sampling.mode": ("newton", "newton"),
        "sampling.gain": ("1e-1", 0.1),
        "sampling.actuator": ("min_p", "min_p"),
        "sampling.min_temperature_scale": (".25", 0.25),
        "sampling.max_temperature_scale": ("3", 3.0),
        "scheduling.enabled": ("on", True),
        "scheduling.hold": ("off", False),
        "scheduling.pace": ("off", False),
        "scheduling.retraction": ("off", False),
        "scheduling.admission": ("off", False),
        "scheduling.compute_weight": ("2", 2.0),
        "scheduling.memory_weight": ("0", 0.0),
        "scheduling.latency_weight": ("1e1", 10.0),
        "scheduling.flow_weight": ("0", 0.0),
        "scheduling.ageing": (".5", 0.5),
        "scheduling.client_weight": ("2", 2.0),
        "scheduling.max_wait_tokens": ("1", 1),
        "scheduling.max_overtaken_tokens": ("0", 0),
        "scheduling.tier_margin": ("0.3", 0.3),
        "scheduling.max_held_steps": ("7", 7),
        "attention.enabled": ("on", True),
        "attention.policy": ("streaming", "streaming"),
        "attention.min_keep_ratio": (".25", 0.25),
        "attention.max_keep_ratio": ("0.5", 0.5),
        "attention.reference_entropy_nats": ("8", 8.0),
        "attention.floor_entropy_nats": ("0", 0.0),
        "attention.block_tokens": ("32", 32),
        "attention.sink_tokens": ("4", 4),
        "attention.recent_tokens": ("128", 128),
        "attention.recent_share": ("0", 0.0),
        "attention.min_context_tokens": ("1", 1),
        "attention.score_interval_steps": ("8", 8),
        "attention.spike_entropy_nats": ("5", 5.0),
        "attention.share_generated_kv": ("on", True),
        "gravity.enabled": ("on", True),
        "gravity.signal": ("surprisal", "surprisal"),
        "gravity.window": ("16", 16),
        "gravity.top_k": ("1", 1),
        "gravity.centre_decay": ("0.5", 0.5),
        "gravity.mean_path": ("mean.npy", "mean.npy"),
        "gravity.mean_rows": ("0", 0),
        "gravity.gravity_threshold": ("-0.5", -0.5),
        "gravity.medium_gravity_threshold": ("0.1", 0.1),
        "gravity.entropy_threshold_nats": ("2", 2.0),
        "gravity.medium_entropy_threshold_nats": ("3", 3.0),
        "gravity.gravity_margin": ("0", 0.0),
        "gravity.entropy_margin_nats": ("0.5", 0.5),
        "gravity.dwell_tokens": ("1", 1),
        "gravity.opening_tokens": ("0", 0),
        "gravity.free_energy_temperature": ("2", 2.0),
        "eviction.enabled": ("on", True),
        "eviction.surprisal_weight": ("0", 0.0),
        "eviction.work_weight": ("1", 1.0),
        "eviction.work_per_context": ("1e-4", 1e-4),
        "eviction.lookahead_requests": ("0", 0),
        "eviction.ghost_ratio": ("1.5", 1.5),
        "cpu.threads": ("2", 2),
        "cpu.kv_pool_mib": ("64", 64),
        "cpu.weights": ("float32", "float32"),
        "cpu.fast_path": ("off", False),
        "cpu.fork": ("off", False),
    }


@pytest.mark.parametrize("spec", flag_specs(), ids=lambda spec: spec.flag)
@pytest.mark.parametrize("joined", [False, True])
def test_each_flag_sets_its_setting_and_no_other(spec: Any, *, joined: bool, tmp_path: Path) -> None:
    text, value = examples(tmp_path)[spec.dotted]
    config = configured(f"{spec.flag}={text}") if joined else configured(spec.flag, text)
    section, _, name = spec.dotted.partition(".")
    expected = EntropicConfig().model_dump()
    expected[section][name] = value
    assert config.model_dump() == expected


def test_a_flag_wins_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "entropic.yaml"
    path.write_text("telemetry:\n  prompt_chunk_rows: 64\ntrace:\n  queue_records: 32\n")
    config = configured("--entropic-config", str(path), "--entropic-trace-queue-records", "16")
    assert (config.telemetry.prompt_chunk_rows, config.trace.queue_records) == (64, 16)


@pytest.mark.parametrize("text", ["15", "99999999", "x", "", "16.0"])
def test_what_a_flag_accepts_is_said_with_its_name(text: str) -> None:
    with pytest.raises(ConfigError, match=r"from 16 to 8192 \(flag --entropic-telemetry-prompt-chunk-rows\)"):
        configured("--entropic-telemetry-prompt-chunk-rows", text)


@pytest.mark.parametrize("content", [None, "telemetry: [", "telemetri: {}", "telemetry:\n  enabled: 7"])
def test_a_broken_file_is_named_together_with_its_flag(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "entropic.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError) as refusal:
        configured("--entropic-config", str(path))
    assert str(refusal.value).startswith("--entropic-config ")
    assert str(path) in str(refusal.value)


def test_the_file_is_not_blamed_for_a_flag(tmp_path: Path) -> None:
    path = tmp_path / "entropic.yaml"
    path.write_text("")
    with pytest.raises(ConfigError) as refusal:
        configured("--entropic-config", str(path), "--entropic-cpu-threads", "0")
    assert "--entropic-cpu-threads" in str(refusal.value)
    assert "--entropic-config" not in str(refusal.value)


@pytest.mark.parametrize("name", ["e", "flags", "c.yaml"])
def test_the_file_is_not_blamed_because_its_name_occurs_in_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text("trace: {path: /no/such/place/t.jsonl}")
    with pytest.raises(ConfigError) as refusal:
        configured("--entropic-config", name)
    assert str(refusal.value).startswith(f"--entropic-config {name}: trace.path = ")
    Path(name).write_text("")
    with pytest.raises(ConfigError, match=r"^flags: cpu\.threads = 0 "):
        configured("--entropic-config", name, "--entropic-cpu-threads", "0")


def refused(*argv: str) -> str:
    with pytest.raises(ConfigError) as refusal:
        read_command_line(argv)
    return str(refusal.value)


def test_the_flags_of_another_program_are_left_to_it() -> None:
    argv = ["--model-path", "m", "--entropic-cpu-threads=3", "--enable-metrics", "-5", "--port", "1", "x"]
    assert read_command_line(argv).cpu.threads == 3
    assert read_command_line(["--chat-template", "--entropic and more"]) == EntropicConfig()


def test_a_flag_may_be_shortened_as_everywhere_in_argparse() -> None:
    assert read_command_line(["--entropic-w", "float32"]).cpu.weights == "float32"
    message = refused("--entropic-t", "on")
    for word in ("ambiguous", "--entropic-t ", "--entropic-telemetry", "--entropic-trace-path"):
        assert word in message


@pytest.mark.parametrize(
    ("flag", "meant"),
    [
        ("--entropic-cpu-weights", "--entropic-weights"),  # as its key would have it
        ("--entropic-telemetry-enabled", "--entropic-telemetry"),
        ("--entropic-threads", "--entropic-cpu-threads"),
        ("--entropic_weights", "--entropic-weights"),
        ("--entropic-Weights", "--entropic-weights"),
        ("--entropic-cpu-kv-pool-mb", "--entropic-cpu-kv-pool-mib"),
        ("--entropic-trace-pth", "--entropic-trace-path"),
        ("--entropic-configuration", "--entropic-config"),
        ("--entropic-schedulling", "--entropic-scheduling"),
        # By their words, not by their letters.
        ("--entropic-target-entropy-nats", "--entropic-sampling-target-nats"),
        ("--entropic-target-entropy", "--entropic-sampling-target-nats"),
        ("--entropic-gravity-treshold", "--entropic-gravity-gravity-threshold"),
        ("--entropic-min-keep-ratio", "--entropic-attention-min-keep-ratio"),
        ("--entropic-client-weights", "--entropic-scheduling-client-weight"),
        ("--entropic-sampling-gian", "--entropic-sampling-gain"),
    ],
)
@pytest.mark.parametrize("joined", [False, True])
def test_an_unknown_flag_is_told_with_the_one_that_was_meant(flag: str, meant: str, *, joined: bool) -> None:
    message = refused("--port", "1", *([f"{flag}=1"] if joined else [flag, "1"]))
    assert message == f"unknown flag '{flag}'; did you mean '{meant}'? --help lists all"


@pytest.mark.parametrize("spec", flag_specs(), ids=lambda spec: spec.flag)
def test_a_flag_with_a_letter_too_many_or_a_word_too_few_is_told_itself(spec: Any) -> None:
    """Of those that resemble it, the nearest."""
    assert refused(f"{spec.flag}x").startswith(f"unknown flag '{spec.flag}x'; did you mean '{spec.flag}'?")
    section, _, rest = spec.flag.removeprefix("--entropic-").partition("-")
    others = [one.flag for one in flag_specs() if one.flag.endswith(f"-{rest}")]
    if rest and len(others) == 1:
        assert f"did you mean '{spec.flag}'?" in refused(f"--entropic-{section}z-{rest}")


def test_an_unknown_flag_that_resembles_none() -> None:
    assert refused("--entropic-x") == "unknown flag '--entropic-x'; --help lists all"


@given(st.text(max_size=200))
def test_any_flag_is_refused_in_one_line(text: str) -> None:
    name = "--entropic-x" + "".join(text.split()).replace("=", "")
    assert len(refused(name)) < 400


def test_who_asks_for_help_gets_it_first() -> None:
    refuse_unknown(["--entropic-x", "--help"])
    with pytest.raises(ConfigError, match="unknown flag '--entropic-x'"):
        refuse_unknown(["--entropic-x", "1"])


@pytest.mark.parametrize("flag", FLAGS)
def test_a_flag_without_its_value_is_told_what_it_takes(flag: str) -> None:
    accepted = {spec.flag: spec.accepted for spec in flag_specs()}.get(flag, "a YAML file")
    assert refused(flag) == f"flag {flag} has no value; expected {accepted}"
    assert refused(flag, "--port", "1") == f"flag {flag} has no value; expected {accepted}"


@given(
    st.lists(st.sampled_from([*FLAGS, "--port", "--entropic", "-h", "--", "off", "2"]) | st.text(max_size=8))
)
def test_any_command_line_is_a_configuration_or_a_refusal(argv: list[str]) -> None:
    """Nothing is printed, nothing exits; and who passes here has no unknown flag."""
    try:
        read_command_line(argv)
    except ConfigError as error:
        assert str(error)  # noqa: PT017 -- either end is right
    else:
        refuse_unknown(argv)
