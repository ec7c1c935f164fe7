"""Where a setting comes from: who wins, who is blamed, and what is looked up on the disk before the server starts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_entropic.config import EntropicConfig, TraceConfig, from_mapping, load_yaml, resolve
from sgl_entropic.errors import ConfigError

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(scalars, inner, max_size=3),
    max_leaves=8,
)
keys = st.sampled_from(
    [
        "telemetry",
        "trace",
        "cpu",
        "enabled",
        "prompt_chunk_rows",
        "path",
        "publish",
        "queue_records",
        "threads",
    ]
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "c.yaml"


def refusal(mapping: dict[Any, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        from_mapping(mapping, "here")
    return str(caught.value)


@given(
    st.dictionaries(
        keys | scalars, st.dictionaries(keys | scalars, anything, max_size=4) | anything, max_size=4
    )
)
def test_any_mapping_is_a_configuration_or_a_refusal(mapping: dict[Any, Any]) -> None:
    """Nothing else is raised; the refusal can be printed; what is accepted survives the way to other processes."""
    message = ""
    try:
        config = from_mapping(mapping, "here")
    except ConfigError as error:
        message = str(error)
        message.encode()
    else:
        assert EntropicConfig.from_json(config.to_json()) == config
    assert message == "" or message.startswith("here: ")


def test_the_file_is_blamed_for_the_file_and_the_flags_for_the_flags(file: Path) -> None:
    """Whoever reads the message knows where to mend it."""
    file.write_text("cpu: {threads: 0}")
    with pytest.raises(ConfigError, match=r"c\.yaml: cpu\.threads = 0 .*1 to 1024"):
        resolve(str(file), {"cpu.threads": 4})
    file.write_text("cpu: {threads: 4}")
    with pytest.raises(ConfigError, match=r"^flags: cpu\.threads = 0 .*1 to 1024.*--entropic-cpu-threads"):
        resolve(str(file), {"cpu.threads": 0})


def test_a_flag_can_take_back_what_the_file_says(file: Path) -> None:
    """Also a path that does not exist any more."""
    file.write_text("trace: {path: /no/such/place/t.jsonl, publish: 'tcp://127.0.0.1:5555'}")
    with pytest.raises(ConfigError, match=r"c\.yaml: trace\.path = '/no/such/place/t\.jsonl'"):
        resolve(str(file), {"trace.publish": None})
    config = resolve(str(file), {"trace.path": None, "trace.publish": None})
    assert config.trace == TraceConfig()


def test_an_override_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'trace\.pth' = 'x'; did you mean 'trace\.path'"):
        resolve(None, {"trace.pth": "x"})
    with pytest.raises(ConfigError, match="'trace' = 'x'"):
        resolve(None, {"trace": "x"})


@pytest.mark.parametrize(
    ("mapping", "given", "meant"),
    [
        ({"telemetri": {}}, "telemetri", "telemetry"),
        ({"trace": {"pth": 1}}, "trace.pth", "trace.path"),
        ({"weights": "int8"}, "weights", "cpu.weights"),
        ({"telemetry": {"threads": 2}}, "telemetry.threads", "cpu.threads"),
    ],
)
def test_an_unknown_key_is_told_with_the_one_that_was_meant(
    mapping: dict[str, Any], given: str, meant: str
) -> None:
    """A key that is misspelt, or that stands in another section."""
    assert f"unknown key '{given}' = " in refusal(mapping)
    assert f"did you mean '{meant}'?" in refusal(mapping)


def test_a_choice_is_taken_in_any_case() -> None:
    """From a file as from a flag, and kept as it is declared."""
    assert from_mapping({"cpu": {"weights": "FLOAT32"}}, "here").cpu.weights == "float32"
    assert resolve(None, {"cpu.weights": "Int8"}).cpu.weights == "int8"


def test_every_mistake_is_listed_up_to_a_limit() -> None:
    """One round of mending for a file with some mistakes, and no flood for a file that is something else."""
    message = refusal({"cpu": {"threads": 0, "kv_pool_mib": 1}, "trace": {"queue_records": 1}})
    assert [line.split()[1] for line in message.splitlines()] == [
        "trace.queue_records",
        "cpu.threads",
        "cpu.kv_pool_mib",
    ]
    flood = refusal({f"k{number}": number for number in range(1000)})
    assert flood.splitlines()[-1] == "here: and 995 more"
    assert len(flood) < 1500


def test_a_value_of_any_size_makes_a_message_that_fits() -> None:
    for value in ("x" * 10**6, [[["x"] * 1000] * 1000], 10**5000, {"k" * 10**5: 1}):
        message = refusal({"cpu": {"threads": value}})
        assert "1 to 1024" in message
        assert len(message) < 400


def test_where_a_trace_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new file, an old one, a device, one relative to the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.jsonl").touch()
    for path in (str(tmp_path / "new.jsonl"), "old.jsonl", "new.jsonl", "/dev/null"):
        assert from_mapping({"trace": {"path": path}}, "here").trace.path == path
    assert not (tmp_path / "new.jsonl").exists()


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        (".", "it is a directory"),
        ("no/t.jsonl", "'no' is not a directory"),
        ("file/t.jsonl", "'file' is not a directory"),
        ("x" * 300, "File name too long"),
        ("x" * 300 + "/t.jsonl", "File name too long"),
        ("a\0b", "it holds a NUL character"),
    ],
)
def test_where_a_trace_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, reason: str
) -> None:
    """Known before the weights load."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    message = refusal({"trace": {"path": path}})
    assert reason in message
    assert message.endswith("(flag --entropic-trace-path)")


def test_places_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked of the system, since root may write where others may not."""
    (tmp_path / "old.jsonl").touch()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "no permission to write it" in refusal({"trace": {"path": str(tmp_path / "old.jsonl")}})
    assert "no permission to create" in refusal({"trace": {"path": str(tmp_path / "new.jsonl")}})
    assert "no permission to create" in refusal({"trace": {"publish": f"ipc://{tmp_path}/s"}})


def test_where_a_socket_can_be() -> None:
    """Its directory has to be there; an abstract name needs none."""
    assert "'/no/such' is not a directory" in refusal({"trace": {"publish": "ipc:///no/such/s"}})
    assert (
        from_mapping({"trace": {"publish": "ipc://@no/such/s"}}, "here").trace.publish == "ipc://@no/such/s"
    )


def test_a_byte_order_mark_is_no_part_of_a_key(file: Path) -> None:
    """Some editors write one."""
    file.write_bytes(b"\xef\xbb\xbfcpu: {threads: 2}")
    assert load_yaml(str(file)).cpu.threads == 2
