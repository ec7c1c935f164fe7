"""Readings beside the KV slots: unknown until written, inherited by slot, shifted when a prompt is read out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sgl_entropic.runtime.slots import SlotStore


def distinct_store(slots: int, rows: int) -> SlotStore:
    """A store whose every number is different, so that a wrong index shows."""
    numbers = torch.arange(2 * slots + rows, dtype=torch.float32) + 1.0
    return SlotStore(numbers[:slots], numbers[slots : 2 * slots], numbers[2 * slots :])


def test_a_new_store_knows_nothing() -> None:
    store = SlotStore.allocate(5, 3, "cpu")
    for values, size in (
        (store.surprisal_nats, 5),
        (store.entropy_nats, 5),
        (store.pending_surprisal_nats, 3),
    ):
        assert values.shape == (size,)
        assert values.dtype == torch.float32
        assert values.isnan().all()


def test_memory_is_four_bytes_a_number() -> None:
    assert SlotStore.allocate(100, 7, "cpu").nbytes == 4 * (2 * 100 + 7)


@given(st.data())
def test_settle_moves_pending_surprisals_and_nothing_else(data: st.DataObject) -> None:
    """Each row's pending number goes to its own slot; the rest of the store stays as it was."""
    count = data.draw(st.integers(0, 4))
    slots = data.draw(st.lists(st.integers(0, 9), min_size=count, max_size=count, unique=True))
    rows = data.draw(st.lists(st.integers(0, 5), min_size=count, max_size=count, unique=True))
    store, before = distinct_store(10, 6), distinct_store(10, 6)
    store.settle(torch.tensor(slots, dtype=torch.long), torch.tensor(rows, dtype=torch.long))
    expected = before.surprisal_nats.tolist()
    for slot, row in zip(slots, rows, strict=True):
        expected[slot] = float(before.pending_surprisal_nats[row])
    assert store.surprisal_nats.tolist() == expected
    assert torch.equal(store.entropy_nats, before.entropy_nats)
    assert torch.equal(store.pending_surprisal_nats, before.pending_surprisal_nats)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12))
def test_prompt_readings_judge_each_token_by_its_predecessor(slots: list[int]) -> None:
    """Surprisal from a token's own slot, entropy from the slot before it; slots may repeat and lie anywhere."""
    store = distinct_store(10, 1)
    readings = store.prompt_readings(torch.tensor(slots))
    expected_surprisal = [float(store.surprisal_nats[slot]) for slot in slots]
    expected_entropy = [math.nan]
    expected_entropy += [float(store.entropy_nats[slot]) for slot in slots[:-1]]
    assert readings.shape == (2, len(slots))
    np.testing.assert_array_equal(readings.numpy(), np.array([expected_surprisal, expected_entropy]))


def test_no_slots_give_no_readings() -> None:
    assert distinct_store(3, 1).prompt_readings(torch.tensor([], dtype=torch.long)).shape == (2, 0)


def test_readings_are_a_copy() -> None:
    """What is on its way to the host must not change when the slots are recycled."""
    store = distinct_store(4, 1)
    readings = store.prompt_readings(torch.tensor([0, 1, 2]))
    before = readings.clone()
    store.surprisal_nats.fill_(-1.0)
    store.entropy_nats.fill_(-1.0)
    torch.testing.assert_close(readings, before, equal_nan=True)


def test_a_store_is_frozen() -> None:
    """Its tensors are written in place and never exchanged: hooks hold on to them."""
    with pytest.raises(AttributeError):
        distinct_store(1, 1).surprisal_nats = torch.zeros(1)  # type: ignore[misc]
