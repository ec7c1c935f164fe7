"""Whether SGLang would find a device other than the CPU."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from sgl_entropic.runtime.accelerator import accelerator_present, stock_cpu_engine_requested

BUILT_IN = ("cuda", "xpu")
PLUGGED_IN = ("npu", "musa")


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No device of any kind, whatever this machine has."""
    for name in BUILT_IN:
        monkeypatch.setattr(getattr(torch, name), "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    for name in PLUGGED_IN:
        monkeypatch.delattr(torch, name, raising=False)


def test_a_bare_machine_has_none() -> None:
    assert accelerator_present() is False


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_device_of_pytorch_s_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getattr(torch, name), "is_available", lambda: True)
    assert accelerator_present() is True


def test_apple_s_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert accelerator_present() is True


@pytest.mark.parametrize("name", PLUGGED_IN)
@pytest.mark.parametrize("available", [True, False])
def test_a_device_that_a_package_adds_to_pytorch(
    name: str, *, available: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package may be installed on a machine without the device."""
    monkeypatch.setattr(torch, name, SimpleNamespace(is_available=lambda: available), raising=False)
    assert accelerator_present() is available


@pytest.mark.parametrize(("value", "requested"), [(None, False), ("0", False), ("", False), ("1", True)])
def test_sglang_s_own_cpu_engine(
    value: str | None, *, requested: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is None:
        monkeypatch.delenv("SGLANG_USE_CPU_ENGINE", raising=False)
    else:
        monkeypatch.setenv("SGLANG_USE_CPU_ENGINE", value)
    assert stock_cpu_engine_requested() is requested
