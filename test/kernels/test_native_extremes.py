"""What only a careless or hostile caller sends: no crash, no silent wrong number."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import numpy as np
import pytest
import torch


def matrix(native: Any, n: int, k: int) -> Any:
    return native.pack(np.zeros((n, k), np.float32), "float32")


def test_sizes_whose_product_overflows_are_refused(native: Any) -> None:
    table, norm = np.zeros((8, 16), np.float32), np.zeros(32, np.float32)
    with pytest.raises(ValueError, match="2\\^24"):
        native.Decoder(
            matrix(native, 40, 32), norm, 2**28 + 1, 1, 16, 32, 1e-5, 0.0, 0.25, -1, 0.0, table, True
        )


def test_a_tensor_without_memory_is_refused(native: Any) -> None:
    empty = torch.zeros(3, 48)
    empty.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="memory"):
        native.linear(torch.zeros(3, 64), matrix(native, 48, 64), empty)


def test_an_output_that_overlaps_its_input_is_refused(native: Any) -> None:
    both = np.zeros((4, 64), np.float32)
    with pytest.raises(ValueError, match="overlap"):
        native.linear(both, matrix(native, 64, 64), both)
    wide = np.zeros((4, 64), np.float32)
    with pytest.raises(ValueError, match="overlap"):
        native.silu_mul(wide, wide.reshape(-1)[:128].reshape(4, 32))


@pytest.mark.parametrize("name", ["scale", "logit_cap"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused(native: Any, name: str, value: float) -> None:
    cache, q = np.zeros((4, 1, 16), np.float32), np.zeros((1, 1, 16), np.float32)
    index = np.array([0, 1])
    arguments = {"scale": 1.0, "logit_cap": 0.0, name: value}
    with pytest.raises(ValueError, match=name):
        native.paged_attention(
            q, cache, cache, index, np.array([0]), np.array([1]), 1, out=np.empty_like(q), **arguments
        )


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_numbers_that_8_bits_cannot_hold_are_kept_as_they_are(native: Any, value: float) -> None:
    """A broken checkpoint must not look healthy."""
    weights = np.random.default_rng(0).standard_normal((48, 64)).astype(np.float32)
    weights[5, 40] = value
    packed = native.pack(weights, "small", integer=True)
    rows = np.empty_like(weights)
    packed.rows(np.arange(48), rows)
    np.testing.assert_array_equal(rows, weights)
    assert not packed.integer
    out = np.empty((1, 48), np.float32)
    native.linear(np.ones((1, 64), np.float32), packed, out)
    np.testing.assert_array_equal(np.isfinite(out[0]), np.isfinite(weights.sum(1)))


def test_indices_that_change_during_the_call_are_not_followed(native: Any) -> None:
    """What was checked is what is used."""
    packed = native.pack(np.ones((64, 64), np.float32), "float32")
    ids, out, stop = np.zeros(20_000, np.int64), np.zeros((20_000, 64), np.float32), threading.Event()

    def flip() -> None:
        while not stop.is_set():
            ids[-1] = 2**40
            ids[-1] = 0

    other = threading.Thread(target=flip)
    other.start()
    for _ in range(50):
        with contextlib.suppress(ValueError):  # when the copy was taken at the wrong moment
            packed.rows(ids, out)
    stop.set()
    other.join()
    packed.rows(ids, out)
    assert (out == 1).all()


def test_a_decoder_keeps_its_cache_alive(native: Any) -> None:
    table, norm = np.ones((8, 16), np.float32), np.ones(32, np.float32)
    decoder = native.Decoder(
        matrix(native, 40, 32), norm, 1, 1, 16, 32, 1e-5, 0.0, 0.25, -1, 0.0, table, True
    )
    sizes = {"qkv": (48, 32), "o": (32, 16), "gate_up": (64, 32), "down": (32, 32)}
    decoder.add_layer(
        **{name: matrix(native, *size) for name, size in sizes.items()}, input_norm=norm, post_norm=norm
    )
    # As large as the system takes back at once when it is freed.
    decoder.set_cache([np.zeros((400_000, 1, 16), np.float32)], [np.zeros((400_000, 1, 16), np.float32)])
    one, hidden = np.array([0]), np.empty((1, 32), np.float32)
    decoder.forward(
        one, one, np.array([399_999]), np.array([0, 1]), np.array([399_999]), np.array([0, 1]), hidden
    )
    assert np.isfinite(hidden).all()
