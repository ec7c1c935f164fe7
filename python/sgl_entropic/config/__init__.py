"""Settings: one validated model, fed by a YAML file and by flags that are generated from it."""

from sgl_entropic.config.command_line import (
    add_arguments,
    configuration,
    read_command_line,
    refuse_unknown,
)
from sgl_entropic.config.effect import without_effect
from sgl_entropic.config.flags import flag_specs, parse_flag_value
from sgl_entropic.config.gravity import GravityConfig
from sgl_entropic.config.knobs import FlagSpec
from sgl_entropic.config.model import (
    AttentionConfig,
    CpuConfig,
    EntropicConfig,
    SamplingConfig,
    TelemetryConfig,
    TraceConfig,
)
from sgl_entropic.config.sources import from_mapping, load_yaml, resolve

__all__ = [
    "AttentionConfig",
    "CpuConfig",
    "EntropicConfig",
    "FlagSpec",
    "GravityConfig",
    "SamplingConfig",
    "TelemetryConfig",
    "TraceConfig",
    "add_arguments",
    "configuration",
    "flag_specs",
    "from_mapping",
    "load_yaml",
    "parse_flag_value",
    "read_command_line",
    "refuse_unknown",
    "resolve",
    "without_effect",
]
