"""Our flags beside SGLang's, and the moment when the configuration becomes final."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sglang.srt.server_args import ServerArgs

from sgl_entropic import activation
from sgl_entropic.config import EntropicConfig, flag_specs
from sgl_entropic.errors import ConfigError, SeamError
from sgl_entropic.runtime import server_args as module
from sgl_entropic.runtime.active_config import active_config
from sgl_entropic.runtime.server_args import (
    add_arguments,
    around_add_cli_args,
    around_from_cli_args,
    configuration,
)


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


def test_every_setting_has_a_place_of_its_own() -> None:
    """Neither of our flags share one with another, nor with a flag of SGLang's."""
    theirs, ours = argparse.ArgumentParser(), make_parser()
    ServerArgs.add_cli_args(theirs)
    mine = [action.dest for action in ours._actions if action.dest != "help"]
    assert len(mine) == len(set(mine)) == len(flag_specs()) + 1
    assert not set(mine) & {action.dest for action in theirs._actions}


def test_our_flags_join_sglang_s_own() -> None:
    """On one parser, after SGLang's, with none of them in conflict."""
    parser, order = argparse.ArgumentParser(), []

    def original(given: argparse.ArgumentParser) -> None:
        order.append(len(given._actions))
        ServerArgs.add_cli_args(given)

    around_add_cli_args(original, parser)
    assert order == [1]
    namespace = parser.parse_args(["--model-path", "m", "--entropic-telemetry", "off"])
    assert namespace.model_path == "m"
    assert configuration(namespace).telemetry.enabled is False


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
    with pytest.raises(ConfigError, match=r"--entropic-telemetry-prompt-chunk-rows.*from 16 to 8192"):
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


@pytest.fixture
def resolve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., argparse.Namespace]]:
    """Runs the hook as SGLang would, on a machine with or without the CPU platform, and returns what SGLang gets."""
    monkeypatch.setenv("SGLANG_ENTROPIC_CONFIG", EntropicConfig().to_json())
    monkeypatch.setattr(module, "verify", lambda process: None)
    monkeypatch.setattr(module, "refuse_on_cpu", lambda namespace: None)
    active_config.cache_clear()

    def run(*flags: str, on_cpu: bool = False) -> argparse.Namespace:
        monkeypatch.setattr(module, "_on_portable_cpu", lambda: on_cpu)
        parser = argparse.ArgumentParser()
        around_add_cli_args(ServerArgs.add_cli_args, parser)
        namespace = parser.parse_args(["--model-path", "m", *flags])
        made: argparse.Namespace = around_from_cli_args(lambda cls, given: given, ServerArgs, namespace)
        return made

    yield run
    active_config.cache_clear()


def test_the_final_configuration_reaches_this_process_and_its_children(
    resolve: Callable[..., argparse.Namespace],
) -> None:
    """Also when the defaults were looked at before the flags were read."""
    assert active_config() == EntropicConfig()
    resolve("--entropic-cpu-threads", "3")
    assert active_config().cpu.threads == 3
    assert activation.exported_config() == active_config().to_json()


def test_an_accelerator_leaves_sglang_s_choices_alone(resolve: Callable[..., argparse.Namespace]) -> None:
    namespace = resolve()
    assert (namespace.device, namespace.sleep_on_idle) == (None, False)


def test_the_cpu_platform_is_chosen_and_sleeps_when_idle(resolve: Callable[..., argparse.Namespace]) -> None:
    namespace = resolve(on_cpu=True)
    assert (namespace.device, namespace.sleep_on_idle) == ("cpu", True)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--entropic-cpu-threads", "many"], "--entropic-cpu-threads"),
        (["--pp-size", "2"], "--pp-size 2"),
    ],
)
def test_a_refusal_leaves_with_one_line(
    resolve: Callable[..., argparse.Namespace], flags: list[str], named: str
) -> None:
    with pytest.raises(SystemExit) as leaving:
        resolve(*flags)
    assert str(leaving.value.code).startswith("sgl_entropic: ")
    assert named in str(leaving.value.code)
    assert activation.exported_config() == EntropicConfig().to_json()


def test_a_dead_seam_stops_the_start(
    resolve: Callable[..., argparse.Namespace], monkeypatch: pytest.MonkeyPatch
) -> None:
    def dead(process: str) -> None:
        raise SeamError(f"dead in {process}")

    monkeypatch.setattr(module, "verify", dead)
    with pytest.raises(SystemExit, match="sgl_entropic: dead in main"):
        resolve()
