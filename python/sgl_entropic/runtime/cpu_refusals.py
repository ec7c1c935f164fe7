"""What cannot run on the portable CPU platform, said before weights load."""

from __future__ import annotations

import logging
from typing import Any

from sgl_entropic.runtime.model_facts import ModelFacts, model_facts
from sgl_entropic.runtime.refusals import Refusal, explain, raise_if_any, unset

logger = logging.getLogger(__name__)

# Dense decoders whose every op has a native PyTorch form in SGLang, and that the tests or benchmarks ran.
KNOWN_ARCHITECTURES = frozenset(
    {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}
)

_TORCH_NATIVE = (None, "torch_native")
_KERNELS = "its kernels need a GPU; accepted: torch_native"

_RULES: tuple[Refusal, ...] = (
    Refusal("device", "--device", lambda v: v in (None, "cpu"), "no accelerator was found; accepted: cpu"),
    Refusal("attention_backend", "--attention-backend", lambda v: v in _TORCH_NATIVE, _KERNELS),
    Refusal(
        "prefill_attention_backend", "--prefill-attention-backend", lambda v: v in _TORCH_NATIVE, _KERNELS
    ),
    Refusal("decode_attention_backend", "--decode-attention-backend", lambda v: v in _TORCH_NATIVE, _KERNELS),
    Refusal(
        "sampling_backend",
        "--sampling-backend",
        lambda v: v in (None, "pytorch"),
        "its kernels need a GPU; accepted: pytorch",
    ),
    Refusal("quantization", "--quantization", unset, "its kernels need a GPU; serve unquantised weights"),
    Refusal(
        "kv_cache_dtype",
        "--kv-cache-dtype",
        lambda v: v in (None, "auto", "bf16", "bfloat16"),
        "8- and 4-bit KV needs GPU kernels; accepted: auto, bfloat16",
    ),
    Refusal(
        "dtype",
        "--dtype",
        lambda v: v in (None, "auto", "float", "float32", "bfloat16"),
        "accepted: auto (float32), float32, bfloat16",
    ),
    Refusal("speculative_algorithm", "--speculative-algorithm", unset, "its kernels need a GPU"),
    Refusal("enable_lora", "--enable-lora", unset, "its kernels need a GPU"),
    Refusal("lora_paths", "--lora-paths", lambda v: not v, "its kernels need a GPU"),
    Refusal("tp_size", "--tp-size", lambda v: v in (1, None), "accepted: 1"),
    Refusal("pp_size", "--pp-size", lambda v: v in (1, None), "accepted: 1"),
    Refusal("dp_size", "--dp-size", lambda v: v in (1, None), "accepted: 1"),
    Refusal(
        "enable_torch_compile", "--enable-torch-compile", unset, "not supported on the portable CPU platform"
    ),
    Refusal(
        "enable_hierarchical_cache",
        "--enable-hierarchical-cache",
        unset,
        "the KV cache is in host memory already",
    ),
    Refusal("enable_hisparse", "--enable-hisparse", unset, "its kernels need a GPU"),
    Refusal("cpu_offload_gb", "--cpu-offload-gb", unset, "the weights are in host memory already"),
    Refusal(
        "page_size",
        "--page-size",
        lambda v: v in (None, 1),
        "the page lists of this platform are of single tokens; accepted: 1",
    ),
)


def refuse_on_cpu(server_args: Any) -> None:
    """Refuse flags and models that the platform cannot run.

    Raises:
        UnsupportedError: naming each flag and what is accepted.
    """
    problems = explain(list(_RULES), server_args)
    facts = model_facts(
        server_args.model_path, trust_remote_code=bool(getattr(server_args, "trust_remote_code", False))
    )
    if facts is not None:
        problems += _model_problems(server_args.model_path, facts)
    raise_if_any(problems)


def _model_problems(path: str, facts: ModelFacts) -> list[str]:
    accepted = f"accepted: {', '.join(sorted(KNOWN_ARCHITECTURES))} and other dense decoders"
    what = f"--model-path {path} is not available here"
    problems = []
    if facts.quantization is not None:
        problems.append(
            f"{what}: its weights are quantised ({facts.quantization}) and need GPU kernels; {accepted}, unquantised"
        )
    if facts.experts:
        problems.append(f"{what}: mixture-of-experts layers need GPU kernels; {accepted}")
    if facts.latent_attention:
        problems.append(f"{what}: latent attention (MLA) needs GPU kernels; {accepted}")
    if facts.multimodal:
        problems.append(f"{what}: image and audio encoders are not run on this platform; {accepted}")
    if not problems and facts.architecture not in KNOWN_ARCHITECTURES:
        logger.warning("%s has not been tried on the portable CPU platform.", facts.architecture)
    return problems
