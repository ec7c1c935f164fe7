"""The portable CPU platform fills in what the user left open, and nothing that was chosen."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sgl_entropic.config import CpuConfig, EntropicConfig
from sgl_entropic.runtime import cpu_platform as module
from sgl_entropic.runtime.cpu_platform import PortableCpuPlatform, default_threads
from sgl_entropic.runtime.model_facts import ModelFacts

OPEN = {
    "device": None,
    "attention_backend": None,
    "sampling_backend": None,
    "dtype": "auto",
    "max_total_tokens": None,
    "mem_fraction_static": None,
    "model_path": "m",
    "kv_cache_dtype": "auto",
}


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the size of the KV pool was asked for."""
    asked: list[Any] = []

    def tokens(*arguments: Any) -> int:
        asked.append(arguments)
        return 1234

    monkeypatch.setattr(module, "kv_pool_tokens", tokens)
    monkeypatch.setattr(
        module, "active_config", lambda: EntropicConfig(cpu=CpuConfig(kv_pool_mib=64, threads=3))
    )
    monkeypatch.setattr(module, "model_facts", lambda path: None)
    return asked


def filled(**chosen: Any) -> dict[str, Any]:
    arguments = SimpleNamespace(**{**OPEN, **chosen})
    PortableCpuPlatform().apply_server_args_defaults(arguments)
    return vars(arguments)


def test_what_is_open_is_filled_in(pool: list[Any]) -> None:
    assert filled() == {
        "device": "cpu",
        "attention_backend": "torch_native",
        "sampling_backend": "pytorch",
        "dtype": "float32",
        "max_total_tokens": 1234,
        "mem_fraction_static": 0.5,
        "model_path": "m",
        "kv_cache_dtype": "auto",
    }
    assert pool == [("m", "float32", 64)]


@pytest.mark.parametrize(
    ("cpu", "architecture", "chosen", "expected"),
    [
        ({}, "LlamaForCausalLM", "auto", "bfloat16"),
        ({}, "LlamaForCausalLM", "bf16", "bf16"),
        ({"weights": "float32"}, "LlamaForCausalLM", "auto", "auto"),
        ({"weights": "float32"}, "LlamaForCausalLM", "bfloat16", "bfloat16"),
        ({"fast_path": False}, "LlamaForCausalLM", "auto", "auto"),
        ({}, "GemmaForCausalLM", "auto", "auto"),
        ({}, None, "auto", "auto"),
    ],
)
def test_rounded_arithmetic_keeps_keys_and_values_in_sixteen_bits(
    pool: list[Any], monkeypatch: pytest.MonkeyPatch, cpu: Any, architecture: Any, chosen: str, expected: str
) -> None:
    """Where the compiled attention serves the model; and the pool is counted in what it holds."""
    facts = architecture and ModelFacts(architecture, 30, 3, 64, 8192, None, False, False, False)
    monkeypatch.setattr(module, "model_facts", lambda path: facts)
    monkeypatch.setattr(module, "active_config", lambda: EntropicConfig(cpu=CpuConfig(**cpu)))
    assert filled(kv_cache_dtype=chosen)["kv_cache_dtype"] == expected
    assert pool == [("m", "float32" if expected == "auto" else "bfloat16", None)]


@pytest.mark.parametrize(
    "chosen",
    [
        {"device": "cpu"},
        {"attention_backend": "torch_native"},
        {"sampling_backend": "pytorch"},
        {"dtype": "bfloat16"},
        {"max_total_tokens": 77},
        {"mem_fraction_static": 0.25},
    ],
    ids=lambda chosen: next(iter(chosen)),
)
def test_what_was_chosen_stays(pool: list[Any], chosen: dict[str, Any]) -> None:
    made = filled(**chosen)
    assert {key: made[key] for key in chosen} == chosen
    assert bool(pool) is ("max_total_tokens" not in chosen)


def test_sglang_s_own_choice_of_a_backend_is_no_user_s_choice(pool: list[Any]) -> None:
    """It has put the one that needs AMX by then."""
    assert filled(attention_backend="intel_amx")["attention_backend"] == "torch_native"


def test_the_pool_is_sized_for_the_dtype_that_is_served(pool: list[Any]) -> None:
    filled(dtype="bfloat16")
    assert pool == [("m", "bfloat16", 64)]


def test_threads_that_were_configured_are_set(pool: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", counts.append)
    PortableCpuPlatform().init_backend()
    assert counts == [3]


def test_without_the_fast_path_nothing_of_it_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SGLang's registries, its pool and the model stay as they are."""
    from sglang.kernels.fused_op import BaseFusedOp
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS

    monkeypatch.setattr(module, "active_config", lambda: EntropicConfig(cpu=CpuConfig(fast_path=False)))
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    monkeypatch.setattr(BaseFusedOp, "register_oot_forward", lambda *args: pytest.fail("registered"))
    backends = dict(ATTENTION_BACKENDS)
    platform, model = PortableCpuPlatform(), torch.nn.Linear(2, 2)
    platform.init_backend()
    platform.post_load_model(model)
    assert dict(ATTENTION_BACKENDS) == backends
    assert "forward" not in vars(model)
    assert not model.weight.is_meta
    assert platform.get_kv_pool_cls(kind="mha") is None


def test_the_fast_path_registers_its_backend_and_its_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the names that SGLang's dispatch asks for; once the model is there, for by then the configuration is final."""
    from sglang.kernels.fused_op import BaseFusedOp
    from sglang.srt.layers.activation import SiluAndMul
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
    from sglang.srt.layers.layernorm import RMSNorm

    from sgl_entropic.runtime.cpu import fast_path, fused_ops
    from sgl_entropic_kernels.native import library

    forwards: dict[str, dict[type, Any]] = {}
    config = EntropicConfig(cpu=CpuConfig(threads=1))
    monkeypatch.setattr(module, "active_config", lambda: config)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    monkeypatch.setattr(BaseFusedOp, "_oot_forward_registry", forwards)
    monkeypatch.setattr(fast_path, "_installed", None)
    monkeypatch.setitem(ATTENTION_BACKENDS, "torch_native", ATTENTION_BACKENDS["torch_native"])
    platform = PortableCpuPlatform()
    platform.init_backend()
    assert ATTENTION_BACKENDS["torch_native"] is not fast_path.create_attention_backend
    assert forwards == {}
    platform.post_load_model(torch.nn.Linear(2, 2))
    assert ATTENTION_BACKENDS["torch_native"] is fast_path.create_attention_backend
    ours = {RMSNorm: fused_ops.rms_norm, SiluAndMul: fused_ops.silu_and_mul}
    assert forwards == {platform.get_dispatch_key_name(): ours}
    assert library().threads() == 1


def test_threads_default_to_the_usable_cpus_unless_openmp_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 2, 4, 6, 8})
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert default_threads() == 5
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert default_threads() == 7
