"""The configuration that this process was started with."""

from __future__ import annotations

from functools import cache

from sgl_entropic import activation
from sgl_entropic.config import EntropicConfig


@cache
def active_config() -> EntropicConfig:
    """The configuration exported by the launching process; the defaults where there is none yet."""
    exported = activation.exported_config()
    return EntropicConfig() if exported is None else EntropicConfig.from_json(exported)
