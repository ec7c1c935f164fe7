"""One request's settings, from the server's and its own parameters."""

from __future__ import annotations

import math

from sgl_entropic.attention.settings import MIN_KEEP_RATIOS, RECENT_SHARES, AttentionSettings, Policy
from sgl_entropic.config.model import AttentionConfig
from sgl_entropic.errors import ConfigError, RequestParameterError
from sgl_entropic.request_params.parameters import ATTENTION, RequestParams
from sgl_entropic.runtime.where_fast import compiled_kernels_asked_for

# Shares of ln V, the largest entropy that a model can have.
_SPIKE_SHARE = 0.6


BY_KERNEL = ("attention", "quest", "mixed")
"""Policies that look at queries or at the attention paid: only the compiled kernels tell."""


def settings_of(params: RequestParams, config: AttentionConfig, vocab_size: int) -> AttentionSettings | None:
    """What ``params`` ask for over the server's ``config``; ``None`` reads all of the context, always."""
    if not config.enabled or params.attention_pruning is False:
        return None
    largest = math.log(vocab_size)
    policy = _policy_of(params.attention_policy or config.policy)
    least = _least_of(policy, config) if params.min_keep_ratio is None else float(params.min_keep_ratio)
    most = config.max_keep_ratio if params.max_keep_ratio is None else float(params.max_keep_ratio)
    return AttentionSettings(
        policy=policy,
        min_keep_ratio=least,
        max_keep_ratio=max(most, least),
        reference_entropy_nats=largest
        if config.reference_entropy_nats is None
        else config.reference_entropy_nats,
        floor_entropy_nats=config.floor_entropy_nats,
        block_tokens=config.block_tokens,
        sink_tokens=config.sink_tokens,
        recent_tokens=config.recent_tokens,
        recent_share=RECENT_SHARES[policy] if config.recent_share is None else config.recent_share,
        min_context_tokens=config.min_context_tokens,
        score_interval_steps=config.score_interval_steps,
        spike_entropy_nats=_SPIKE_SHARE * largest
        if config.spike_entropy_nats is None
        else config.spike_entropy_nats,
    )


def default_policy() -> Policy:
    """What measures best among what the platform can do: only the compiled kernels choose in every layer and step."""
    return "mixed" if compiled_kernels_asked_for() else "surprisal"


def _policy_of(asked: str | None) -> Policy:
    return asked or default_policy()  # type: ignore[return-value]


def _least_of(policy: Policy, config: AttentionConfig) -> float:
    return MIN_KEEP_RATIOS[policy] if config.min_keep_ratio is None else config.min_keep_ratio


def check_request(params: RequestParams, config: AttentionConfig) -> None:
    """Refuse what cannot have an effect or contradicts itself.

    Raises:
        RequestParameterError: naming the key and what is accepted.
    """
    asked = [name for name in ATTENTION if getattr(params, name) not in (None, False)]
    if params.attention_policy in BY_KERNEL and config.enabled and not compiled_kernels_asked_for():
        raise RequestParameterError(
            f"attention_policy = {params.attention_policy!r} needs the compiled kernels of the CPU platform; "
            "accepted: surprisal or streaming"
        )
    if asked and not config.enabled:
        raise RequestParameterError(
            f"{asked[0]} = {getattr(params, asked[0])!r} has no effect here: the server runs without "
            "--entropic-attention on"
        )
    how = [name for name in ATTENTION if name != "attention_pruning" and getattr(params, name) is not None]
    if how and params.attention_pruning is False:
        raise RequestParameterError(
            f"{how[0]} = {getattr(params, how[0])!r} says how to prune, and attention_pruning is false; "
            "accepted: one of the two"
        )
    least, most = params.min_keep_ratio, params.max_keep_ratio
    policy = _policy_of(params.attention_policy or config.policy)
    if most is not None and most < (_least_of(policy, config) if least is None else least):
        said = f" = {least!r}" if least is not None else f", which is the server's {config.min_keep_ratio}"
        if least is None and config.min_keep_ratio is None:
            said = f", which is {_least_of(policy, config)} where {policy} is not told otherwise"
        raise RequestParameterError(
            f"max_keep_ratio = {most!r} is below min_keep_ratio{said}; accepted: at least as much"
        )


def check_config(
    config: AttentionConfig, page_size: int, sliding_window: int | None, *, compiled: bool
) -> None:
    """Refuse a server's own settings that contradict each other or its model.

    Args:
        config: the settings.
        page_size: tokens of a page of the KV pool.
        sliding_window: of the model's attention, if it has one.
        compiled: whether the compiled kernels of the CPU platform run.

    Raises:
        ConfigError: naming the setting and what is accepted.
    """
    policy = _policy_of(config.policy)
    least = _least_of(policy, config)
    if config.max_keep_ratio < least:
        own = f", which {policy} has where it is not told otherwise" if config.min_keep_ratio is None else ""
        raise ConfigError(
            f"attention.max_keep_ratio = {config.max_keep_ratio} is below attention.min_keep_ratio = {least}{own}; "
            "expected at least as much"
        )
    if sliding_window is not None and sliding_window > 0:
        raise ConfigError(
            f"attention.enabled is not available for a model whose attention slides over {sliding_window} tokens; "
            "expected off"
        )
    if not compiled and config.policy in BY_KERNEL:
        raise ConfigError(
            f"attention.policy = {config.policy} needs the compiled kernels of the CPU platform; "
            "expected surprisal or streaming"
        )
    if config.block_tokens % max(page_size, 1):
        raise ConfigError(
            f"attention.block_tokens = {config.block_tokens} is no multiple of --page-size {page_size}; "
            "expected whole pages"
        )
