"""The configuration of this process is the one that its parent exported."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sgl_entropic import activation
from sgl_entropic.config import CpuConfig, EntropicConfig
from sgl_entropic.errors import ConfigError
from sgl_entropic.runtime.active_config import active_config


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing exported, nothing remembered, and neither afterwards."""
    monkeypatch.setenv("SGLANG_ENTROPIC_CONFIG", "")
    monkeypatch.delenv("SGLANG_ENTROPIC_CONFIG")
    active_config.cache_clear()
    yield
    active_config.cache_clear()


def test_nothing_exported_is_the_defaults() -> None:
    assert active_config() == EntropicConfig()


def test_what_was_exported_arrives() -> None:
    config = EntropicConfig(cpu=CpuConfig(threads=7))
    activation.export_config(config.to_json())
    assert active_config() == config


def test_it_is_read_once() -> None:
    """Until the cache is cleared, which the parsing of the flags does."""
    first = active_config()
    activation.export_config(EntropicConfig(cpu=CpuConfig(threads=7)).to_json())
    assert active_config() is first
    active_config.cache_clear()
    assert active_config().cpu.threads == 7


@pytest.mark.parametrize("text", ["{", "[]", '{"telemetri": {}}'])
def test_a_broken_export_is_an_error_and_not_the_defaults(text: str) -> None:
    activation.export_config(text)
    with pytest.raises(ConfigError):
        active_config()
