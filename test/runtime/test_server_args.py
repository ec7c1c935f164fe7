"""Our flags beside SGLang's, and the moment when the configuration becomes final."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

import pytest
from sglang.srt.server_args import ServerArgs

from sgl_entropic import activation
from sgl_entropic.config import EntropicConfig, add_arguments, configuration, flag_specs
from sgl_entropic.errors import SeamError
from sgl_entropic.runtime import server_args as module
from sgl_entropic.runtime.active_config import active_config
from sgl_entropic.runtime.server_args import around_add_cli_args, around_from_cli_args


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="server")
    add_arguments(parser)
    return parser


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


CONTRADICTIONS = [
    (
        ["attention-min-keep-ratio", "0.5", "attention-max-keep-ratio", "0.3"],
        "attention.max_keep_ratio = 0.3 is below",
    ),
    (["gravity-window", "4", "gravity-top-k", "5"], "gravity.top_k = 5 is more than gravity.window = 4"),
    (["gravity-mean-path", "no/such.npy"], "gravity.mean_path = no/such.npy cannot be read"),
    (["sampling-mode", "newton", "sampling-actuator", "min_p"], "sampling.mode = 'newton' contradicts"),
    (["attention-policy", "quest"], "attention.policy = quest needs the compiled kernels"),
]


@pytest.mark.parametrize(("settings", "named"), CONTRADICTIONS)
def test_contradictions_are_refused_though_the_switch_is_missing(
    resolve: Callable[..., argparse.Namespace], settings: list[str], named: str
) -> None:
    """Who forgot it is told of both mistakes, one after the other."""
    flags = [f"--entropic-{word}" if index % 2 == 0 else word for index, word in enumerate(settings)]
    with pytest.raises(SystemExit) as leaving:
        resolve(*flags)
    assert named in str(leaving.value.code)


def test_pages_concern_pruning_only(resolve: Callable[..., argparse.Namespace]) -> None:
    """Large ones are no mistake where the size of blocks is nobody's wish."""
    resolve("--page-size", "64")
    with pytest.raises(SystemExit, match=r"attention\.block_tokens = 24 is no multiple of --page-size 64"):
        resolve("--page-size", "64", "--entropic-attention-block-tokens", "24")


def test_settings_without_their_switch_are_warned_of_once(
    resolve: Callable[..., argparse.Namespace], caplog: pytest.LogCaptureFixture
) -> None:
    resolve("--entropic-attention-min-keep-ratio", "0.5", "--entropic-gravity-window", "16")
    ours = [record.getMessage() for record in caplog.records if "sgl_entropic" in record.name]
    assert ours == [
        "sgl_entropic: attention.min_keep_ratio = 0.5 has no effect without --entropic-attention on.",
        "sgl_entropic: gravity.window = 16 has no effect without --entropic-gravity on.",
    ]


@pytest.mark.parametrize("flags", [[], ["--entropic-scheduling", "on"], ["--entropic-telemetry", "off"]])
@pytest.mark.parametrize("on_cpu", [False, True])
def test_plain_flags_warn_of_nothing(
    resolve: Callable[..., argparse.Namespace],
    caplog: pytest.LogCaptureFixture,
    flags: list[str],
    *,
    on_cpu: bool,
) -> None:
    resolve(*flags, on_cpu=on_cpu)
    assert [record for record in caplog.records if "sgl_entropic" in record.name] == []


def test_an_unknown_flag_of_ours_is_told_before_the_parser_complains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever command started SGLang."""
    monkeypatch.setattr("sys.argv", ["server", "--port", "1", "--entropic-cpu-weights", "int8"])
    with pytest.raises(SystemExit, match=r"sgl_entropic: unknown flag .*did you mean '--entropic-weights'"):
        around_add_cli_args(ServerArgs.add_cli_args, argparse.ArgumentParser())


def test_a_dead_seam_stops_the_start(
    resolve: Callable[..., argparse.Namespace], monkeypatch: pytest.MonkeyPatch
) -> None:
    def dead(process: str) -> None:
        raise SeamError(f"dead in {process}")

    monkeypatch.setattr(module, "verify", dead)
    with pytest.raises(SystemExit, match="sgl_entropic: dead in main"):
        resolve()
