"""Where attention cannot be pruned on a GPU, said before weights load, with the flag to pass instead."""

from __future__ import annotations

from typing import Any

from sgl_entropic.runtime.model_facts import model_facts
from sgl_entropic.runtime.refusals import Refusal, explain, unset

BACKEND = "flashinfer"

POLICIES = ("surprisal", "streaming")
"""Policies that work here: FlashInfer's kernels say neither what attention a block received nor what it could."""

_OFF = "--entropic-attention off"
_PASS = f"pass --attention-backend {BACKEND} or --decode-attention-backend {BACKEND}, or use {_OFF}"


def _one(value: Any) -> bool:
    return value in (1, None)


_RULES: tuple[Refusal, ...] = (
    Refusal(
        "device",
        "--device",
        lambda v: v in (None, "cuda"),
        f"attention is pruned in FlashInfer, which needs an NVIDIA GPU; accepted: cuda, or {_OFF}",
    ),
    Refusal(
        "speculative_algorithm",
        "--speculative-algorithm",
        unset,
        f"drafts and verification have page lists of their own, which are not pruned; use {_OFF}",
    ),
    Refusal(
        "dllm_algorithm",
        "--dllm-algorithm",
        unset,
        f"diffusion models have no decode steps to prune; use {_OFF}",
    ),
    Refusal(
        "enable_two_batch_overlap",
        "--enable-two-batch-overlap",
        unset,
        f"it splits a batch, and its halves ask for one plan; leave it out, or use {_OFF}",
    ),
    Refusal(
        "enable_pdmux",
        "--enable-pdmux",
        unset,
        f"it runs several attention backends side by side; leave it out, or use {_OFF}",
    ),
    Refusal(
        "enable_hisparse",
        "--enable-hisparse",
        unset,
        f"it chooses what is read by itself; leave it out, or use {_OFF}",
    ),
    Refusal(
        "enable_dp_attention",
        "--enable-dp-attention",
        unset,
        f"its padded and idle batches have not been tried with pruned lists; leave it out, or use {_OFF}",
    ),
    Refusal(
        "attn_dp_size",
        "--attn-dp-size",
        _one,
        f"its padded and idle batches have not been tried with pruned lists; accepted: 1, or {_OFF}",
    ),
    Refusal(
        "dcp_size",
        "--dcp-size",
        _one,
        f"each rank holds a part of every context; accepted: 1, or {_OFF}",
    ),
    Refusal(
        "attn_cp_size",
        "--attn-cp-size",
        _one,
        f"each rank holds a part of every context; accepted: 1, or {_OFF}",
    ),
    Refusal(
        "pp_size",
        "--pp-size",
        _one,
        f"only the last stage knows the entropies that the choice follows; accepted: 1, or {_OFF}",
    ),
    Refusal(
        "disaggregation_mode",
        "--disaggregation-mode",
        unset,
        f"surprisals do not travel with the KV cache; use {_OFF}",
    ),
    Refusal(
        "kv_cache_dtype",
        "--kv-cache-dtype",
        lambda v: v in (None, "auto", "bf16", "bfloat16", "fp8_e5m2", "fp8_e4m3"),
        "its keys and values are unpacked for every token of a context, read or not; "
        f"accepted: auto, bfloat16, fp8_e5m2, fp8_e4m3, or {_OFF}",
    ),
)


def gpu_problems(server_args: Any) -> list[str]:
    """One sentence for each flag, or the model, with which attention cannot be pruned; empty where it can.

    Args:
        server_args: SGLang's server arguments, or the parsed flags.
    """
    problems = explain(list(_RULES), server_args)
    backend = _backend_problem(server_args)
    if backend is not None:
        problems.append(backend)
    path = getattr(server_args, "model_path", None)
    trust = bool(getattr(server_args, "trust_remote_code", False))
    facts = None if path is None else model_facts(path, trust_remote_code=trust)
    if facts is not None and facts.latent_attention:
        problems.append(
            f"--model-path {path} is not available here: its latent attention (MLA) has page lists of its own, which "
            f"are not pruned; use {_OFF}"
        )
    return problems


def policy_problem(policy: str) -> str | None:
    """Why a policy cannot be had on a GPU; ``None`` where it can."""
    if policy in POLICIES:
        return None
    return (
        f"the attention policy {policy} needs measurements that FlashInfer's kernels do not give; on a GPU accepted: "
        f"{', '.join(POLICIES)}"
    )


def _backend_problem(server_args: Any) -> str | None:
    decode = getattr(server_args, "decode_attention_backend", None)
    general = getattr(server_args, "attention_backend", None)
    chosen = decode or general
    if chosen == BACKEND:
        return None
    if chosen is None:
        # SGLang's choice differs between GPUs: fa3 on Hopper, trtllm_mha on Blackwell. Ours has to be said.
        return f"attention is pruned in FlashInfer only, and no backend was chosen: {_PASS}"
    flag = "--decode-attention-backend" if decode else "--attention-backend"
    return f"{flag} {chosen} is not available here: attention is pruned in FlashInfer only; {_PASS}"
