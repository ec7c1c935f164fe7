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

OPEN = {
    "device": None,
    "attention_backend": None,
    "sampling_backend": None,
    "dtype": "auto",
    "max_total_tokens": None,
    "mem_fraction_static": None,
    "model_path": "m",
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
    }
    assert pool == [("m", "float32", 64)]


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


def test_threads_default_to_the_usable_cpus_unless_openmp_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 2, 4, 6, 8})
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert default_threads() == 5
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert default_threads() == 7
