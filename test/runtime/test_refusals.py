"""Combinations that would be silently wrong are refused, naming flag, value and way out, and none but those."""

from __future__ import annotations

import argparse
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.server_args import ServerArgs

from sgl_entropic.config import EntropicConfig, TelemetryConfig
from sgl_entropic.config.model import EvictionConfig
from sgl_entropic.errors import UnsupportedError
from sgl_entropic.runtime import cpu_refusals, refusals
from sgl_entropic.runtime.refusals import Refusal, explain, raise_if_any, refuse_combinations, unset

ON = EntropicConfig()
NO_PROMPT = EntropicConfig(telemetry=TelemetryConfig(prompt_surprisal=False))
OFF = EntropicConfig(telemetry=TelemetryConfig(enabled=False))
EVICTS = EntropicConfig(telemetry=TelemetryConfig(enabled=False), eviction=EvictionConfig(enabled=True))
ALWAYS = [
    ["--tokenizer-worker-num", "2"],
    ["--grpc-mode"],
    ["--smg-grpc-mode"],
    ["--use-ray"],
    ["--encoder-only"],
]
TELEMETRY = [
    ["--speculative-algorithm", "EAGLE"],
    ["--dllm-algorithm", "LowConfidence"],
    ["--pp-size", "2"],
    ["--disaggregation-mode", "prefill"],
    ["--disaggregation-mode", "decode"],
]
SLOTS = [
    ["--enable-hierarchical-cache"],
    ["--enable-lmcache"],
    ["--attn-dp-size", "2"],
    ["--dcp-size", "2"],
]
EVICTION = [
    ["--disable-radix-cache"],
    ["--radix-eviction-policy", "slru"],
    ["--radix-cache-backend", "mine"],
    ["--enable-hierarchical-cache"],
    ["--enable-lmcache"],
    ["--enable-flexkv"],
    ["--enable-unified-cache-external-linker"],
    ["--enable-session-radix-cache"],
    ["--enable-streaming-session"],
    ["--speculative-algorithm", "EAGLE"],
    ["--dllm-algorithm", "LowConfidence"],
    ["--pp-size", "2"],
    ["--dcp-size", "2"],
    ["--disaggregation-mode", "decode"],
]


@pytest.fixture(scope="module")
def parser() -> argparse.ArgumentParser:
    """SGLang's own."""
    made = argparse.ArgumentParser()
    ServerArgs.add_cli_args(made)
    return made


@pytest.fixture(autouse=True)
def no_rust_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SGLANG_RUST_SERVER", raising=False)
    monkeypatch.delenv("SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND", raising=False)


def parsed(parser: argparse.ArgumentParser, flags: list[str]) -> argparse.Namespace:
    return parser.parse_args(["--model-path", "m", *flags])


def assert_accepted(server_args: Any, config: EntropicConfig) -> None:
    """Nothing of these flags is refused."""
    try:
        refuse_combinations(server_args, config)
    except UnsupportedError as refusal:
        raise AssertionError(str(refusal)) from refusal


@pytest.mark.parametrize("config", [ON, NO_PROMPT, OFF])
def test_the_defaults_are_accepted(parser: argparse.ArgumentParser, config: EntropicConfig) -> None:
    assert_accepted(parsed(parser, []), config)


@pytest.mark.parametrize("flags", ALWAYS + TELEMETRY + SLOTS, ids=" ".join)
def test_a_flag_in_the_way_is_named_with_its_value(parser: argparse.ArgumentParser, flags: list[str]) -> None:
    """As SGLang's own parser understands it."""
    with pytest.raises(UnsupportedError) as refusal:
        refuse_combinations(parsed(parser, flags), ON)
    assert f"{' '.join(flags)} is not available here: " in str(refusal.value)


@pytest.mark.parametrize("flags", EVICTION, ids=" ".join)
def test_what_another_cache_would_decide_is_refused_beside_eviction(
    parser: argparse.ArgumentParser, flags: list[str]
) -> None:
    with pytest.raises(UnsupportedError) as refusal:
        refuse_combinations(parsed(parser, flags), EVICTS)
    assert f"{' '.join(flags)} is not available here: " in str(refusal.value)
    assert "--entropic-eviction off" in str(refusal.value)
    assert_accepted(parsed(parser, flags), OFF)


def test_a_policy_that_is_the_default_one_anyway_is_fine(parser: argparse.ArgumentParser) -> None:
    assert_accepted(parsed(parser, ["--radix-eviction-policy", "lru"]), EVICTS)


@pytest.mark.parametrize("core", ["python", "rust"])
def test_a_tree_core_that_the_user_named_is_refused_beside_eviction(
    parser: argparse.ArgumentParser, monkeypatch: pytest.MonkeyPatch, core: str
) -> None:
    monkeypatch.setenv("SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND", core)
    with pytest.raises(UnsupportedError, match=f"SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND={core}"):
        refuse_combinations(parsed(parser, []), EVICTS)
    assert_accepted(parsed(parser, []), OFF)


@pytest.mark.parametrize("flags", TELEMETRY + SLOTS, ids=" ".join)
def test_without_telemetry_there_is_nothing_to_be_wrong(
    parser: argparse.ArgumentParser, flags: list[str]
) -> None:
    assert_accepted(parsed(parser, flags), OFF)


@pytest.mark.parametrize("flags", SLOTS, ids=" ".join)
def test_without_prompt_surprisal_slots_may_move(parser: argparse.ArgumentParser, flags: list[str]) -> None:
    assert_accepted(parsed(parser, flags), NO_PROMPT)


@pytest.mark.parametrize("flags", TELEMETRY, ids=" ".join)
def test_sampled_tokens_are_measured_without_prompt_surprisal_too(
    parser: argparse.ArgumentParser, flags: list[str]
) -> None:
    with pytest.raises(UnsupportedError):
        refuse_combinations(parsed(parser, flags), NO_PROMPT)


@pytest.mark.parametrize("flags", ALWAYS, ids=" ".join)
def test_some_doors_are_always_closed(parser: argparse.ArgumentParser, flags: list[str]) -> None:
    with pytest.raises(UnsupportedError):
        refuse_combinations(parsed(parser, flags), OFF)


def test_all_problems_are_told_at_once(parser: argparse.ArgumentParser) -> None:
    flags = ["--pp-size", "2", "--use-ray", "--dcp-size", "4"]
    with pytest.raises(UnsupportedError) as refusal:
        refuse_combinations(parsed(parser, flags), ON)
    for flag in ("--pp-size 2", "--use-ray", "--dcp-size 4"):
        assert flag in str(refusal.value)


def all_rules() -> list[Refusal]:
    return [
        *refusals._ALWAYS,
        *refusals._TELEMETRY,
        *refusals._SLOTS,
        *refusals._EVICTION,
        *cpu_refusals._RULES,
    ]


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.flag)
def test_a_rule_looks_where_sglang_puts_its_flag(parser: argparse.ArgumentParser, rule: Refusal) -> None:
    """A rule on a field that SGLang has renamed would never fire."""
    action = next(action for action in parser._actions if rule.flag in action.option_strings)
    assert action.dest == rule.field
    assert rule.works(parsed(parser, []).__dict__[rule.field])


@pytest.mark.parametrize("value", ["1", "true", "yes"])
def test_the_rust_front_end_is_refused(
    parser: argparse.ArgumentParser, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("SGLANG_RUST_SERVER", value)
    with pytest.raises(UnsupportedError, match="SGLANG_RUST_SERVER"):
        refuse_combinations(parsed(parser, []), OFF)


@pytest.mark.parametrize("value", ["", "0", "false", "False"])
def test_a_rust_front_end_that_is_off_is_fine(
    parser: argparse.ArgumentParser, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("SGLANG_RUST_SERVER", value)
    assert_accepted(parsed(parser, []), ON)


@pytest.mark.parametrize(
    ("value", "left_alone"),
    [
        (None, True),
        (False, True),
        (0, True),
        ("null", True),
        ("none", True),
        ("off", True),
        (True, False),
        (1, False),
        ("EAGLE", False),
        ("", False),
    ],
)
def test_unset(value: Any, *, left_alone: bool) -> None:
    assert unset(value) is left_alone


def test_a_field_that_is_not_there_is_unset() -> None:
    assert explain([Refusal("gone", "--gone", unset, "why")], SimpleNamespace()) == []


def test_no_problem_is_no_error() -> None:
    raise_if_any([])
    with pytest.raises(UnsupportedError, match=r"^one; two$"):
        raise_if_any(["one", "two"])
