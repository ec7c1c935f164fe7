"""YAML without its traps: what looks like a number, a date or another node is what it looks like, or is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_entropic.config.yaml_source import MOST_FILE_BYTES, read_yaml
from sgl_entropic.errors import ConfigError


def read(directory: Path, text: str) -> object:
    (directory / "c.yaml").write_text(text, encoding="utf-8")
    return read_yaml(str(directory / "c.yaml"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-5", -5),
        ("+5", 5),
        ("1_000_000", 1_000_000),
        ("9223372036854775807", 2**63 - 1),
        ("on", True),
        ("No", False),
        ("~", None),
        ("1.5", 1.5),
        ("'5'", "5"),
        # YAML 1.1 reads these as 8, 10, 90, 16, a date.
        ("010", "010"),
        ("0b1010", "0b1010"),
        ("1:30", "1:30"),
        ("0x10", "0x10"),
        ("2026-03-01", "2026-03-01"),
        ("1__0", "1__0"),
        ("10_00", "10_00"),
        ("9" * 5000, "9" * 5000),
        ("=", "="),
    ],
)
def test_scalars(tmp_path: Path, text: str, value: object) -> None:
    content = read(tmp_path, f"key: {text}")
    assert content == {"key": value}
    assert isinstance(content, dict)
    assert type(content["key"]) is type(value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: &x 1", ":1:4: anchors and aliases"),
        ("a: *x", ":1:4: anchors and aliases"),
        ("a: 1\nb: !!int '1'", ":2:4: tags"),
        ("a: !local 1", ":1:4: tags"),
        ("a: ! 1", ":1:4: tags"),
        ("a: {b: 1, 'b': 2}", "key 'b' comes twice, first in line 1"),
        ("a: " + "[" * 200 + "]" * 200, "nested deeper than 16"),
        ("a: 1\n--- \nb: 2", ":2:1: but found another document"),
        ("a: \x07", "not YAML"),
        ("a: '", "found unexpected end of stream"),
        ("null: 1", "is not text"),
        ("1.5: 1", "is not text"),
    ],
)
def test_what_is_refused_is_located(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path}/c.yaml")
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_merge_key_is_a_key_like_any_other(tmp_path: Path) -> None:
    """So the model refuses it, instead of finding its content one level up."""
    assert read(tmp_path, "<<: {a: 1}") == {"<<": {"a": 1}}


def test_a_path_with_a_nul_is_refused() -> None:
    with pytest.raises(ConfigError, match="embedded null byte"):
        read_yaml("a\0b")


def test_the_largest_file_is_read(tmp_path: Path) -> None:
    """And one byte more is not."""
    text = "a: 1 #".ljust(MOST_FILE_BYTES, "x")
    assert read(tmp_path, text) == {"a": 1}
    with pytest.raises(ConfigError, match=f"more than {MOST_FILE_BYTES} bytes"):
        read(tmp_path, text + "x")


@given(text=st.text(max_size=60) | st.text(alphabet="ab01:-&*!<>[]{}'\"#\n \t|?%@.~", max_size=60))
def test_any_text_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """A mapping with text keys, or a ConfigError."""
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    content: object = {}
    try:
        content = read_yaml(str(path))
    except ConfigError as error:
        assert str(path) in str(error)  # noqa: PT017 -- either outcome is right
    assert isinstance(content, dict)
    assert all(isinstance(key, str) for key in content)
