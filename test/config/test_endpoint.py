"""ZeroMQ endpoints: the two forms that a consumer can find again, and nothing that ZeroMQ would bend."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_entropic.config import from_mapping
from sgl_entropic.config.endpoint import checked_endpoint
from sgl_entropic.errors import ConfigError


@pytest.mark.parametrize(
    "endpoint",
    [
        "tcp://127.0.0.1:5555",
        "tcp://*:1",
        "tcp://localhost:65535",
        "tcp://my-host_2.example:80",
        "tcp://[::1]:5555",
        "tcp://[fe80::1%eth0]:5555",
        "ipc://stream",
        "ipc:///run/entropic.sock",
        "ipc://@abstract",
        "ipc://" + "x" * 107,
    ],
)
def test_accepted(endpoint: str) -> None:
    assert checked_endpoint(endpoint) == endpoint


@pytest.mark.parametrize(
    ("endpoint", "reason"),
    [
        ("", "neither"),
        ("tcp://", "neither"),
        ("tcp://:5555", "neither"),
        ("tcp://host", "neither"),
        ("tcp://host:", "neither"),
        ("tcp://host:*", "neither"),
        ("tcp://host:\uff15\uff15", "neither"),
        ("tcp://ho st:5555", "neither"),
        ("tcp://127.0.0.1:5555\n", "neither"),
        ("tcp://eth0;host:5555", "neither"),
        ("TCP://host:5555", "neither"),
        ("udp://host:5555", "neither"),
        ("inproc://x", "neither"),
        ("tcp://host:0", "port 0 is not from 1 to 65535"),
        # ZeroMQ takes this one and listens on 34463.
        ("tcp://host:99999", "port 99999 is not from 1 to 65535"),
        ("tcp://[host]:5555", "[host] is not an IPv6 address"),
        ("tcp://[1::2::3]:5555", "[1::2::3] is not an IPv6 address"),
        ("ipc://", "no path"),
        ("ipc://*", "no path"),
        ("ipc://a\0b", "no path"),
        ("ipc://" + "x" * 108, "at most 107"),
        ("ipc://" + "ü" * 54, "at most 107"),
    ],
)
def test_refused_with_its_reason(endpoint: str, reason: str) -> None:
    """Through the configuration, too, where key, value and form are named."""
    with pytest.raises(ValueError, match=r".+") as caught:
        checked_endpoint(endpoint)
    assert reason in str(caught.value)
    with pytest.raises(
        ConfigError, match=r"trace\.publish = .*expected tcp://host:port with a port from 1 to 65535"
    ):
        from_mapping({"trace": {"publish": endpoint}}, "test")


@given(st.text() | st.text().map("tcp://{}".format) | st.from_regex(r"tcp://[^ ]*:[0-9]*", fullmatch=True))
def test_any_text_is_returned_or_refused(text: str) -> None:
    """Nothing but the text itself, or a ValueError."""
    try:
        result = checked_endpoint(text)
    except ValueError:
        result = text
    assert result == text
