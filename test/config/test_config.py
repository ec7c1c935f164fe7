"""Configuration: every way to be wrong is one sentence with the key, the value and what is accepted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_entropic.config import EntropicConfig, flag_specs, load_yaml, parse_flag_value, resolve
from sgl_entropic.errors import ConfigError

RANGES = {
    "telemetry.prompt_chunk_rows": (16, 8192),
    "trace.queue_records": (16, 1_000_000),
    "cpu.threads": (1, 1024),
    "cpu.kv_pool_mib": (64, 1_048_576),
}
SPECS = {spec.dotted: spec for spec in flag_specs()}

# Text of a file, and what the message must name.
FILES: list[tuple[str, tuple[str, ...]]] = [
    ("telemetri:\n  enabled: true", ("telemetri", "telemetry")),
    ("telemetry:\n  enabeld: true", ("enabeld", "enabled")),
    ("pruning:\n  enabled: true", ("pruning",)),
    ("telemetry:\n  enabled: 'yes'", ("telemetry.enabled", "'yes'")),
    ("telemetry:\n  enabled: 1", ("telemetry.enabled", "1")),
    ("telemetry:\n  enabled:\n    really: true", ("telemetry.enabled", "really")),
    ("telemetry: 3", ("telemetry", "3", "mapping")),
    ("telemetry: [enabled]", ("telemetry", "enabled")),
    ("telemetry:\n  prompt_chunk_rows: 15", ("telemetry.prompt_chunk_rows", "15", "16 to 8192")),
    ("telemetry:\n  prompt_chunk_rows: 8193", ("telemetry.prompt_chunk_rows", "8193", "16 to 8192")),
    ("telemetry:\n  prompt_chunk_rows: 64.0", ("telemetry.prompt_chunk_rows", "64.0", "16 to 8192")),
    ("telemetry:\n  prompt_chunk_rows: null", ("telemetry.prompt_chunk_rows", "16 to 8192")),
    ("trace:\n  queue_records: many", ("trace.queue_records", "many", "16 to 1000000")),
    ("trace:\n  queue_records: -5", ("trace.queue_records", "-5")),
    ("trace:\n  path: 7", ("trace.path", "7")),
    ("trace:\n  path: ''", ("trace.path", "''")),
    ("trace:\n  path: /no/such/place/t.jsonl", ("trace.path", "/no/such/place")),
    ("trace:\n  path: /tmp", ("trace.path", "/tmp")),
    ("trace:\n  publish: localhost:5555", ("trace.publish", "localhost:5555", "tcp://")),
    ("trace:\n  publish: tcp://localhost", ("trace.publish", "tcp://localhost")),
    ("trace:\n  publish: tcp://127.0.0.1:0x50", ("trace.publish", "0x50")),
    ("trace:\n  publish: tcp://127.0.0.1:70000", ("trace.publish", "70000", "65535")),
    ("cpu:\n  threads: true", ("cpu.threads", "True", "1 to 1024")),
    ("cpu:\n  threads: .nan", ("cpu.threads", "nan", "1 to 1024")),
    ("cpu:\n  threads: .inf", ("cpu.threads", "inf")),
    ("cpu:\n  threads: 1e99", ("cpu.threads", "1e99")),
    ("cpu:\n  kv_pool_mib: 63", ("cpu.kv_pool_mib", "63", "64 to 1048576")),
    ("cpu:\n  kv_pool_mib: '64'", ("cpu.kv_pool_mib", "'64'")),
    (f"cpu:\n  threads: {'9' * 5000}", ("cpu",)),
    ("sampling:\n  target_nats: 21", ("sampling.target_nats", "21", "0 to 20", "auto", "none")),
    ("sampling:\n  target_nats: .nan", ("sampling.target_nats", "nan")),
    ("sampling:\n  target_nats: warm", ("sampling.target_nats", "'warm'", "auto")),
    ("sampling:\n  target_nats: true", ("sampling.target_nats", "True")),
    ("sampling:\n  gain: '0.1'", ("sampling.gain", "'0.1'", "0 to 10")),
    ("sampling:\n  gain: -1", ("sampling.gain", "-1", "0 to 10")),
    ("sampling:\n  mode: pid", ("sampling.mode", "'pid'", "exact or newton or fixed")),
    ("sampling:\n  min_temperature_scale: 1.5", ("sampling.min_temperature_scale", "1.5", "0.05 to 1")),
    ("sampling:\n  max_temperature_scale: 0.5", ("sampling.max_temperature_scale", "0.5", "1 to 20")),
    ("cpu:\n  weights: int4", ("cpu.weights", "'int4'", "float32 or int8")),
    ("cpu:\n  weights: 8", ("cpu.weights", "8", "float32 or int8")),
    ("cpu:\n  weights:", ("cpu.weights", "None", "float32 or int8")),
    ("cpu:\n  weights: ''", ("cpu.weights", "''", "float32 or int8")),
    ("cpu:\n  weights: [int8]", ("cpu.weights", "float32 or int8")),
    ("cpu:\n  weights: true", ("cpu.weights", "True", "float32 or int8")),
    ("cpu:\n  fast_path: 1", ("cpu.fast_path", "1", "on or off")),
    ("cpu:\n  fast_path: 'off'", ("cpu.fast_path", "'off'", "on or off")),
    ("cpu:\n  fast_path:", ("cpu.fast_path", "None", "on or off")),
    ("cpu:\n  fastpath: off", ("fastpath", "did you mean 'cpu.fast_path'")),
    ("sampling:\n  target_entropy_nats: 2", ("did you mean 'sampling.target_nats'",)),
    ("cpu: {threads: 1}\ncpu: {threads: 2}", ("cpu", "twice")),
    ("- telemetry", ("list", "mapping")),
    ("just a text", ("str", "mapping")),
    ("telemetry: {enabled: true", ()),
    ("a: &x [1]\nb: *x", ("alias",)),
    ("x: !!python/object/apply:os.system ['true']", ("tag",)),
    ("? [1, 2]\n: 3", ("key",)),
    ("telemetry:\n\t- tab", ()),
    ("2: x", ("2",)),
    ("true: x", ("true",)),
]


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_yaml(str(path))
    return str(caught.value)


@pytest.mark.parametrize(("text", "named"), FILES, ids=range(len(FILES)))
def test_malformed_files(tmp_path: Path, text: str, named: tuple[str, ...]) -> None:
    """The message names the file and everything that helps to mend it."""
    path = tmp_path / "c.yaml"
    path.write_text(text)
    message = refusal(path)
    assert str(path) in message
    assert "\n" not in message
    for word in named:
        assert word.lower() in message.lower()


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """Missing, a directory, not UTF-8, too large."""
    assert "missing.yaml" in refusal(tmp_path / "missing.yaml")
    assert str(tmp_path) in refusal(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"a: \xff\xfe\xfa")
    assert "UTF-8" in refusal(tmp_path / "latin.yaml")
    (tmp_path / "large.yaml").write_bytes(b"#" * 50_000_000)
    assert "bytes" in refusal(tmp_path / "large.yaml")


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "telemetry:\n", "trace: {}\n"])
def test_empty_is_the_defaults(tmp_path: Path, text: str) -> None:
    """An empty file, and an empty section, leave everything at its default."""
    path = tmp_path / "c.yaml"
    path.write_text(text)
    assert load_yaml(str(path)) == EntropicConfig()


@given(st.sampled_from(sorted(RANGES)), st.integers())
def test_integers_are_accepted_exactly_within_their_range(dotted: str, value: int) -> None:
    """Inside the range the value is taken; outside, the message states key, flag, value and range."""
    low, high = RANGES[dotted]
    section, _, key = dotted.partition(".")
    if low <= value <= high:
        assert getattr(getattr(resolve(None, {dotted: value}), section), key) == value
        return
    with pytest.raises(ConfigError) as caught:
        resolve(None, {dotted: value})
    for word in (dotted, SPECS[dotted].flag, str(value)[:20], f"{low} to {high}"):
        assert word in str(caught.value)


@given(st.sampled_from(sorted(SPECS)), st.text(max_size=30))
def test_any_text_as_a_flag_is_a_value_or_a_refusal(dotted: str, text: str) -> None:
    """No text makes anything but a configuration or a ConfigError that names the flag."""
    spec = SPECS[dotted]
    refusal = ""
    try:
        config = resolve(None, {dotted: parse_flag_value(spec, text)})
    except ConfigError as error:
        refusal = str(error)
    else:
        assert EntropicConfig.from_json(config.to_json()) == config
    assert not refusal or spec.flag in refusal


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    """And the file over the defaults; the rest stays."""
    path = tmp_path / "c.yaml"
    path.write_text("telemetry:\n  enabled: false\n  prompt_chunk_rows: 64\n")
    config = resolve(str(path), {"telemetry.enabled": True})
    assert (config.telemetry.enabled, config.telemetry.prompt_chunk_rows) == (True, 64)
    assert config.trace == EntropicConfig().trace


def test_every_key_has_a_flag_and_every_flag_a_key() -> None:
    """Flags are made from the model."""
    keys = {
        f"{section}.{key}" for section, content in EntropicConfig().model_dump().items() for key in content
    }
    assert set(SPECS) == keys
    assert len({spec.flag for spec in SPECS.values()}) == len(keys)


@pytest.mark.parametrize(("text", "value"), [("on", True), ("off", False), ("true", True), ("false", False)])
def test_booleans_on_the_command_line(text: str, value: Any) -> None:
    """On, off, true, false."""
    assert parse_flag_value(SPECS["telemetry.enabled"], text) is value
