"""The model as a value: frozen, and the same after the way to another process."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_entropic.config import CpuConfig, EntropicConfig, SamplingConfig, TelemetryConfig, TraceConfig
from sgl_entropic.errors import ConfigError

configs = st.builds(
    EntropicConfig,
    telemetry=st.builds(
        TelemetryConfig,
        enabled=st.booleans(),
        prompt_surprisal=st.booleans(),
        prompt_chunk_rows=st.integers(16, 8192),
    ),
    trace=st.builds(
        TraceConfig,
        path=st.none()
        | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=50),
        publish=st.none() | st.integers(1, 65_535).map("tcp://127.0.0.1:{}".format),
        queue_records=st.integers(16, 1_000_000),
    ),
    sampling=st.builds(
        SamplingConfig,
        target_nats=st.none() | st.just("auto") | st.floats(0, 20),
        mode=st.sampled_from(["exact", "newton", "fixed"]),
        gain=st.floats(0, 10),
        actuator=st.sampled_from(["temperature", "min_p"]),
        min_temperature_scale=st.floats(0.05, 1),
        max_temperature_scale=st.floats(1, 20),
    ),
    cpu=st.builds(
        CpuConfig,
        threads=st.none() | st.integers(1, 1024),
        kv_pool_mib=st.none() | st.integers(64, 1_048_576),
        weights=st.sampled_from(["float32", "int8"]),
        fast_path=st.booleans(),
        fork=st.booleans(),
    ),
)


@given(configs)
def test_round_trip(config: EntropicConfig) -> None:
    """Every configuration reaches the other processes as it is, whatever they see on the disk."""
    assert EntropicConfig.from_json(config.to_json()) == config


def test_nothing_changes_it() -> None:
    with pytest.raises(pydantic.ValidationError):
        EntropicConfig().cpu.threads = 3


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "is not JSON"),
        ("{", "'{' is not JSON"),
        ("[]", "[] is not accepted; expected a mapping"),
        ("null", "None is not accepted; expected a mapping"),
        ('{"x": 1}', "unknown key 'x' = 1"),
        (
            '{"cpu": 1}',
            "cpu = 1 is not accepted; expected a mapping with some of the keys threads, kv_pool_mib",
        ),
        (
            '{"cpu": {"threads": true}}',
            "cpu.threads = True is not accepted; expected an integer from 1 to 1024",
        ),
        (
            '{"cpu": {"threads": 1.0}}',
            "cpu.threads = 1.0 is not accepted; expected an integer from 1 to 1024",
        ),
        (
            '{"cpu": {"threads": NaN}}',
            "cpu.threads = nan is not accepted; expected an integer from 1 to 1024",
        ),
        (
            '{"cpu": {"weights": "int4"}}',
            "cpu.weights = 'int4' is not accepted; expected float32 or int8",
        ),
        ('{"cpu": {"weights": null}}', "cpu.weights = None is not accepted; expected float32 or int8"),
        ('{"cpu": {"fast_path": null}}', "cpu.fast_path = None is not accepted; expected on or off"),
        ('{"cpu": {"threads": "1"}}', "cpu.threads = '1' is not accepted (it is text)"),
        ('{"telemetry": {"enabled": "on"}}', "telemetry.enabled = 'on' is not accepted (it is text)"),
    ],
)
def test_what_is_no_configuration(text: Any, named: str) -> None:
    """The same sentences as for a file."""
    with pytest.raises(ConfigError) as caught:
        EntropicConfig.from_json(text)
    assert named in str(caught.value)
