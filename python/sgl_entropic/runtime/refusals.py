"""Combinations that would be silently wrong are refused at start, naming the flag to change."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sgl_entropic.config import EntropicConfig
from sgl_entropic.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class Refusal:
    """One thing that cannot be had.

    Attributes:
        field: attribute of SGLang's server arguments.
        flag: how the user spells it.
        works: whether a value of the field is acceptable.
        reason: why not otherwise, and what to do.
    """

    field: str
    flag: str
    works: Callable[[Any], bool]
    reason: str


def unset(value: Any) -> bool:
    """Whether a flag was left alone or switched off."""
    return value is None or value is False or value in ("null", "off", "none", 0)


_ONE = (1, None)

_ALWAYS: tuple[Refusal, ...] = (
    Refusal(
        "tokenizer_worker_num",
        "--tokenizer-worker-num",
        lambda v: v in _ONE,
        "extra HTTP workers load no plugins, so their requests would not be checked; accepted: 1",
    ),
    Refusal("grpc_mode", "--grpc-mode", unset, "only the HTTP server checks and answers entropic parameters"),
    Refusal(
        "smg_grpc_mode",
        "--smg-grpc-mode",
        unset,
        "only the HTTP server checks and answers entropic parameters",
    ),
    Refusal("use_ray", "--use-ray", unset, "Ray workers are not covered"),
    Refusal("encoder_only", "--encoder-only", unset, "an encoder predicts no tokens"),
)

_TELEMETRY: tuple[Refusal, ...] = (
    Refusal(
        "speculative_algorithm",
        "--speculative-algorithm",
        unset,
        "verification bypasses the sampler that is measured; use --entropic-telemetry off",
    ),
    Refusal(
        "dllm_algorithm",
        "--dllm-algorithm",
        unset,
        "diffusion models have no next token; use --entropic-telemetry off",
    ),
    Refusal(
        "pp_size",
        "--pp-size",
        lambda v: v in _ONE,
        "only the last stage sees logits; accepted: 1, or --entropic-telemetry off",
    ),
    Refusal(
        "disaggregation_mode",
        "--disaggregation-mode",
        unset,
        "readings do not travel with the KV cache; use --entropic-telemetry off",
    ),
)

# Where no sampler of ours draws, or its state would not travel.
_STEERING = tuple(
    Refusal(rule.field, rule.flag, rule.works, "a target entropy is not followed there")
    for rule in _TELEMETRY
)

_SLOTS: tuple[Refusal, ...] = (
    Refusal(
        "enable_hierarchical_cache",
        "--enable-hierarchical-cache",
        unset,
        "KV that returns from the host lands in other slots than its readings; use --entropic-telemetry-prompt-surprisal off",
    ),
    Refusal(
        "enable_lmcache",
        "--enable-lmcache",
        unset,
        "KV that returns from the store has no readings; use --entropic-telemetry-prompt-surprisal off",
    ),
    Refusal(
        "attn_dp_size",
        "--attn-dp-size",
        lambda v: v in _ONE,
        "the LM head gathers across ranks; accepted: 1, or --entropic-telemetry-prompt-surprisal off",
    ),
    Refusal(
        "dcp_size",
        "--dcp-size",
        lambda v: v in _ONE,
        "KV slots are spread over ranks; accepted: 1, or --entropic-telemetry-prompt-surprisal off",
    ),
)


_SCHEDULING: tuple[Refusal, ...] = (
    Refusal(
        "schedule_policy",
        "--schedule-policy",
        lambda v: v in ("fcfs", None),
        "one policy orders the queue; leave it out, or use --entropic-scheduling off",
    ),
    Refusal(
        "pp_size",
        "--pp-size",
        lambda v: v in _ONE,
        "stages keep running batches of their own; accepted: 1, or --entropic-scheduling off",
    ),
    Refusal(
        "disaggregation_mode",
        "--disaggregation-mode",
        unset,
        "prefill and decode have queues of their own there; use --entropic-scheduling off",
    ),
    Refusal(
        "dllm_algorithm",
        "--dllm-algorithm",
        unset,
        "diffusion models are scheduled by blocks; use --entropic-scheduling off",
    ),
)


_EVICTION: tuple[Refusal, ...] = (
    Refusal(
        "disable_radix_cache",
        "--disable-radix-cache",
        unset,
        "there is nothing to evict; leave it out, or use --entropic-eviction off",
    ),
    Refusal(
        "radix_eviction_policy",
        "--radix-eviction-policy",
        lambda v: v in ("lru", None),
        "one policy evicts; leave it out, or use --entropic-eviction off",
    ),
    Refusal(
        "radix_cache_backend",
        "--radix-cache-backend",
        unset,
        "another cache evicts by rules of its own; leave it out, or use --entropic-eviction off",
    ),
    *(
        Refusal(
            flag.replace("-", "_"),
            f"--{flag}",
            unset,
            "prefixes that move to another store would count as lost; leave it out, or use --entropic-eviction off",
        )
        for flag in (
            "enable-hierarchical-cache",
            "enable-lmcache",
            "enable-flexkv",
            "enable-unified-cache-external-linker",
        )
    ),
    Refusal(
        "enable_session_radix_cache",
        "--enable-session-radix-cache",
        unset,
        "sessions would decide what is evicted; leave it out, or use --entropic-eviction off",
    ),
    Refusal(
        "enable_streaming_session",
        "--enable-streaming-session",
        unset,
        "a prefix that sessions use would look forgotten; leave it out, or use --entropic-eviction off",
    ),
    Refusal(
        "speculative_algorithm",
        "--speculative-algorithm",
        unset,
        "its cache is keyed by pairs of tokens; use --entropic-eviction off",
    ),
    Refusal(
        "dllm_algorithm",
        "--dllm-algorithm",
        unset,
        "diffusion models are scheduled by blocks; use --entropic-eviction off",
    ),
    Refusal(
        "pp_size",
        "--pp-size",
        lambda v: v in _ONE,
        "stages see requests at different times; accepted: 1, or --entropic-eviction off",
    ),
    Refusal(
        "dcp_size",
        "--dcp-size",
        lambda v: v in _ONE,
        "KV slots are spread over ranks; accepted: 1, or --entropic-eviction off",
    ),
    Refusal(
        "disaggregation_mode",
        "--disaggregation-mode",
        unset,
        "prefill and decode have caches of their own there; use --entropic-eviction off",
    ),
)

_TREE_CORE = "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND"


_GRAVITY: tuple[Refusal, ...] = (
    Refusal(
        "enable_return_aux_hidden_states",
        "--enable-return-aux-hidden-states",
        unset,
        "they take the place of the last hidden states; leave it out, or use --entropic-gravity-signal entropy or surprisal",
    ),
)


def refuse_combinations(server_args: Any, config: EntropicConfig) -> None:
    """Refuse what the asked-for mechanisms cannot work with.

    Args:
        server_args: SGLang's server arguments, or the parsed flags.
        config: the validated configuration.

    Raises:
        UnsupportedError: naming every flag in the way and what is accepted.
    """
    problems = explain(_rules(config), server_args) + _contradictions(server_args, config)
    raise_if_any([*problems, *environment_problems()])


def _rules(config: EntropicConfig) -> list[Refusal]:
    rules = list(_ALWAYS)
    if config.telemetry.enabled:
        rules += _TELEMETRY
        if config.telemetry.prompt_surprisal:
            rules += _SLOTS
    if config.sampling.target_nats is not None:
        rules += _STEERING
    if config.scheduling.enabled:
        rules += _SCHEDULING
    if config.eviction.enabled:
        rules += _EVICTION
    if config.gravity.enabled and config.gravity.signal == "hidden":
        rules += _GRAVITY
    return rules


def _contradictions(server_args: Any, config: EntropicConfig) -> list[str]:
    """What single flags do not tell."""
    problems = []
    if config.gravity.enabled and not config.telemetry.enabled:
        problems.append("--entropic-gravity on needs the entropies of --entropic-telemetry on")
    if config.attention.enabled and not (config.telemetry.enabled and config.telemetry.prompt_surprisal):
        problems.append(
            "--entropic-attention on needs the entropies and surprisals of --entropic-telemetry on and "
            "--entropic-telemetry-prompt-surprisal on"
        )
    if config.eviction.enabled and os.environ.get(_TREE_CORE):
        problems.append(
            f"{_TREE_CORE}={os.environ[_TREE_CORE]} is not available here: --entropic-eviction on brings a tree core of its own; "
            "unset it, or use --entropic-eviction off"
        )
    if config.attention.enabled and getattr(server_args, "enable_streaming_session", False):
        problems.append(
            "--enable-streaming-session is not available with --entropic-attention on: a session's later turns go on with "
            "the keys and values of turns that left blocks out"
        )
    if config.attention.enabled and not config.cpu.fast_path:
        problems.append(
            "--entropic-attention on is not available with --entropic-cpu-fast-path off: SGLang's own CPU operations read "
            "whole contexts"
        )
    if config.trace.publish is not None and (getattr(server_args, "dp_size", 1) or 1) > 1:
        problems.append(
            "--entropic-trace-publish is not available with --dp-size > 1: every rank would bind the endpoint"
        )
    return problems


def steering_problems(server_args: Any) -> list[str]:
    """Why no request of this server can have a target entropy; empty where it can."""
    return explain(list(_STEERING), server_args)


def environment_problems() -> list[str]:
    """One sentence for each variable that asks for what cannot be had, whatever the flags say."""
    if os.environ.get("SGLANG_RUST_SERVER", "0").lower() in ("", "0", "false"):
        return []
    return ["SGLANG_RUST_SERVER is not available with sgl_entropic: the Rust front end bypasses its checks"]


def explain(rules: list[Refusal], server_args: Any) -> list[str]:
    """One sentence for each rule that ``server_args`` breaks."""
    problems = []
    for rule in rules:
        value = getattr(server_args, rule.field, None)
        if not rule.works(value):
            given = rule.flag if value is True else f"{rule.flag} {value}"
            problems.append(f"{given} is not available here: {rule.reason}")
    return problems


def raise_if_any(problems: list[str]) -> None:
    """Raise :class:`UnsupportedError` with all ``problems``."""
    if problems:
        raise UnsupportedError("; ".join(problems))
