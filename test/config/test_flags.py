"""Flags follow from the model: their names, their help, and what they take."""

from __future__ import annotations

import pytest

from sgl_entropic.config import EntropicConfig, flag_specs, parse_flag_value, resolve
from sgl_entropic.errors import ConfigError

SPECS = {spec.dotted: spec for spec in flag_specs()}


def test_names() -> None:
    """Part of the interface; a leaf named ``enabled`` drops its name."""
    assert {spec.dotted: spec.flag for spec in flag_specs()} == {
        "telemetry.enabled": "--entropic-telemetry",
        "telemetry.prompt_surprisal": "--entropic-telemetry-prompt-surprisal",
        "telemetry.prompt_chunk_rows": "--entropic-telemetry-prompt-chunk-rows",
        "trace.path": "--entropic-trace-path",
        "trace.publish": "--entropic-trace-publish",
        "trace.queue_records": "--entropic-trace-queue-records",
        "sampling.target_nats": "--entropic-sampling-target-nats",
        "sampling.mode": "--entropic-sampling-mode",
        "sampling.gain": "--entropic-sampling-gain",
        "sampling.actuator": "--entropic-sampling-actuator",
        "sampling.min_temperature_scale": "--entropic-sampling-min-temperature-scale",
        "sampling.max_temperature_scale": "--entropic-sampling-max-temperature-scale",
        "scheduling.enabled": "--entropic-scheduling",
        "scheduling.hold": "--entropic-scheduling-hold",
        "scheduling.pace": "--entropic-scheduling-pace",
        "scheduling.retraction": "--entropic-scheduling-retraction",
        "scheduling.admission": "--entropic-scheduling-admission",
        "scheduling.compute_weight": "--entropic-scheduling-compute-weight",
        "scheduling.memory_weight": "--entropic-scheduling-memory-weight",
        "scheduling.latency_weight": "--entropic-scheduling-latency-weight",
        "scheduling.flow_weight": "--entropic-scheduling-flow-weight",
        "scheduling.ageing": "--entropic-scheduling-ageing",
        "scheduling.client_weight": "--entropic-scheduling-client-weight",
        "scheduling.max_wait_tokens": "--entropic-scheduling-max-wait-tokens",
        "scheduling.max_overtaken_tokens": "--entropic-scheduling-max-overtaken-tokens",
        "scheduling.tier_margin": "--entropic-scheduling-tier-margin",
        "scheduling.max_held_steps": "--entropic-scheduling-max-held-steps",
        "attention.enabled": "--entropic-attention",
        "attention.policy": "--entropic-attention-policy",
        "attention.min_keep_ratio": "--entropic-attention-min-keep-ratio",
        "attention.max_keep_ratio": "--entropic-attention-max-keep-ratio",
        "attention.reference_entropy_nats": "--entropic-attention-reference-entropy-nats",
        "attention.floor_entropy_nats": "--entropic-attention-floor-entropy-nats",
        "attention.block_tokens": "--entropic-attention-block-tokens",
        "attention.sink_tokens": "--entropic-attention-sink-tokens",
        "attention.recent_tokens": "--entropic-attention-recent-tokens",
        "attention.recent_share": "--entropic-attention-recent-share",
        "attention.min_context_tokens": "--entropic-attention-min-context-tokens",
        "attention.score_interval_steps": "--entropic-attention-score-interval-steps",
        "attention.spike_entropy_nats": "--entropic-attention-spike-entropy-nats",
        "attention.share_generated_kv": "--entropic-attention-share-generated-kv",
        "gravity.enabled": "--entropic-gravity",
        "gravity.signal": "--entropic-gravity-signal",
        "gravity.window": "--entropic-gravity-window",
        "gravity.top_k": "--entropic-gravity-top-k",
        "gravity.centre_decay": "--entropic-gravity-centre-decay",
        "gravity.mean_path": "--entropic-gravity-mean-path",
        "gravity.mean_rows": "--entropic-gravity-mean-rows",
        "gravity.gravity_threshold": "--entropic-gravity-gravity-threshold",
        "gravity.medium_gravity_threshold": "--entropic-gravity-medium-gravity-threshold",
        "gravity.entropy_threshold_nats": "--entropic-gravity-entropy-threshold-nats",
        "gravity.medium_entropy_threshold_nats": "--entropic-gravity-medium-entropy-threshold-nats",
        "gravity.gravity_margin": "--entropic-gravity-gravity-margin",
        "gravity.entropy_margin_nats": "--entropic-gravity-entropy-margin-nats",
        "gravity.dwell_tokens": "--entropic-gravity-dwell-tokens",
        "gravity.opening_tokens": "--entropic-gravity-opening-tokens",
        "gravity.free_energy_temperature": "--entropic-gravity-free-energy-temperature",
        "eviction.enabled": "--entropic-eviction",
        "eviction.surprisal_weight": "--entropic-eviction-surprisal-weight",
        "eviction.work_weight": "--entropic-eviction-work-weight",
        "eviction.work_per_context": "--entropic-eviction-work-per-context",
        "eviction.lookahead_requests": "--entropic-eviction-lookahead-requests",
        "eviction.ghost_ratio": "--entropic-eviction-ghost-ratio",
        "cpu.threads": "--entropic-cpu-threads",
        "cpu.kv_pool_mib": "--entropic-cpu-kv-pool-mib",
        "cpu.weights": "--entropic-weights",
        "cpu.fast_path": "--entropic-cpu-fast-path",
        "cpu.fork": "--entropic-cpu-fork",
    }


@pytest.mark.parametrize("dotted", sorted(SPECS))
def test_the_help_says_range_and_default(dotted: str) -> None:
    spec = SPECS[dotted]
    section, _, name = dotted.partition(".")
    default = getattr(getattr(EntropicConfig(), section), name)
    written = {"True": "on", "False": "off", "None": "none"}.get(str(default), str(default))
    assert spec.accepted in spec.help
    assert spec.help.endswith(f"Default: {written}.")
    assert "\n" not in spec.help
    # The default, written as the help writes it, is the default.
    assert (
        resolve(
            None, {dotted: parse_flag_value(spec, written)} if default is not None or spec.nullable else {}
        )
        == EntropicConfig()
    )


@pytest.mark.parametrize(
    ("dotted", "text", "value"),
    [
        ("telemetry.enabled", "OFF", False),
        ("telemetry.prompt_chunk_rows", "+16", 16),
        ("telemetry.prompt_chunk_rows", "0016", 16),
        ("trace.path", "none", None),
        ("trace.path", "./none", "./none"),
        ("trace.publish", "None", None),
        ("trace.publish", "tcp://*:5555", "tcp://*:5555"),
        ("cpu.threads", "none", None),
        ("cpu.kv_pool_mib", "1048576", 1_048_576),
        ("cpu.weights", "float32", "float32"),
        ("cpu.weights", "int8", "int8"),
        ("cpu.weights", "INT8", "int8"),
        ("cpu.weights", "Float32", "float32"),
        ("cpu.fast_path", "Off", False),
        ("cpu.fast_path", "true", True),
    ],
)
def test_accepted(dotted: str, text: str, value: object) -> None:
    assert parse_flag_value(SPECS[dotted], text) == value


@pytest.mark.parametrize(
    ("dotted", "text"),
    [
        ("telemetry.enabled", ""),
        ("telemetry.enabled", "1"),
        ("telemetry.enabled", "yes"),
        ("telemetry.enabled", "none"),
        ("telemetry.prompt_chunk_rows", "none"),
        ("telemetry.prompt_chunk_rows", "15"),
        ("telemetry.prompt_chunk_rows", "8193"),
        ("telemetry.prompt_chunk_rows", "1e3"),
        ("telemetry.prompt_chunk_rows", "64.0"),
        ("telemetry.prompt_chunk_rows", " 64"),
        ("telemetry.prompt_chunk_rows", "\uff16\uff14"),
        ("trace.queue_records", "-16"),
        ("trace.queue_records", "1000001"),
        ("cpu.threads", "0"),
        ("cpu.threads", "nan"),
        ("cpu.threads", "9" * 5000),
        ("cpu.kv_pool_mib", "63"),
        ("cpu.kv_pool_mib", "1GiB"),
        ("cpu.weights", ""),
        ("cpu.weights", "none"),
        ("cpu.weights", "int4"),
        ("cpu.weights", "float32 "),
        ("cpu.weights", "\0"),
        ("cpu.fast_path", ""),
        ("cpu.fast_path", "none"),
        ("cpu.fast_path", "0"),
        ("cpu.fast_path", "auto"),
        ("trace.path", ""),
        ("trace.path", "\udcff"),
        ("trace.publish", "5555"),
    ],
)
def test_refused(dotted: str, text: str) -> None:
    """Flag, key, value and what is accepted; one line, printable."""
    with pytest.raises(ConfigError) as caught:
        parse_flag_value(SPECS[dotted], text)
    message = str(caught.value)
    for word in (SPECS[dotted].flag, f"{dotted} = ", repr(text).strip("'")[:20], SPECS[dotted].accepted):
        assert word in message
    assert message.count(SPECS[dotted].flag) == message.count(f"(flag {SPECS[dotted].flag})") == 1
    assert "\n" not in message
    message.encode()
