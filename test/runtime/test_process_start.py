"""Processes are forked only where that is safe and wanted; what forks is SGLang's own way of starting them."""

from __future__ import annotations

import gc
import multiprocessing
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from sgl_entropic.config import CpuConfig, EntropicConfig
from sgl_entropic.runtime import process_start


class PortableCpuPlatform:
    """Stands for the platform, which is known by its class's name."""


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    method = multiprocessing.get_start_method(allow_none=True)
    from sglang.srt import platforms

    monkeypatch.setattr(platforms, "current_platform", PortableCpuPlatform())
    monkeypatch.setattr(process_start, "active_config", EntropicConfig)
    # Threads of the test runner and of libraries are not what is tested.
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.main_thread()])
    yield
    multiprocessing.set_start_method(method, force=True)
    gc.unfreeze()


def start(config: Any) -> str | None:
    """SGLang's function sets ``spawn``; what is set afterwards."""

    def original(passed: Any) -> str:
        assert passed is config
        multiprocessing.set_start_method("spawn", force=True)
        return "what SGLang returns"

    assert process_start.around_set_envs_and_config(original, config) == "what SGLang returns"
    return multiprocessing.get_start_method()


def test_on_the_cpu_platform_processes_are_copies(on_cpu: None) -> None:
    assert start(object()) == "fork"


def test_the_setting_keeps_sglangs_way(on_cpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    off = EntropicConfig(cpu=CpuConfig(fork=False))
    monkeypatch.setattr(process_start, "active_config", lambda: off)
    assert start(object()) == "spawn"


def test_a_second_thread_keeps_sglangs_way(on_cpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that another thread holds would stay held in the copy for ever."""
    other = threading.Thread(name="other")
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.main_thread(), other])
    assert start(object()) == "spawn"


def test_another_platform_keeps_sglangs_way(on_cpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt import platforms

    monkeypatch.setattr(platforms, "current_platform", object())
    assert start(object()) == "spawn"
