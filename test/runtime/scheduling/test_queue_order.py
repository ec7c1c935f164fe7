"""What the queue notes of the prefixes that its requests share."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sgl_entropic.runtime import telemetry
from sgl_entropic.runtime.scheduling.notes import Notes, attach, notes_of
from sgl_entropic.runtime.scheduling.queue_order import read_prefixes
from sgl_entropic.runtime.slots import SlotStore

PATHS = {"root": [], "node": [7, 3, 9, 4, 8]}


class Tree:
    """SGLang's prefix cache, as far as slots of a path are asked for."""

    def __init__(self) -> None:
        self.asked = 0

    def path_device_indices(self, node: str) -> torch.Tensor:
        self.asked += 1
        return torch.tensor(PATHS[node], dtype=torch.int32)


@pytest.fixture
def store() -> Iterator[SlotStore]:
    made = SlotStore.allocate(16, 2, "cpu")
    telemetry.install(SimpleNamespace(store=made))  # type: ignore[arg-type]
    yield made
    telemetry.install(None)


def request(node: str, prefix_len: int) -> Any:
    made = SimpleNamespace(rid="a", prefix_len=prefix_len, last_node=node, session=None)
    attach(made, Notes(0, 0, 0, 0))
    return made


def test_the_mean_of_what_is_known_of_the_matched_prefix(store: SlotStore) -> None:
    store.surprisal_nats[torch.tensor([3, 9, 4])] = torch.tensor([1.0, 3.0, 8.0])
    tree, req = Tree(), request("node", 4)
    read_prefixes([req], tree)
    notes = notes_of(req)
    assert notes is not None
    # Slot 7 holds the first token of a prompt, which nothing predicted.
    assert notes.prefix_surprisal_nats == pytest.approx(4.0)
    store.surprisal_nats[torch.tensor([8])] = 0.0
    read_prefixes([req], tree)
    assert tree.asked == 1
    req.prefix_len = 5
    read_prefixes([req], tree)
    assert notes.prefix_surprisal_nats == pytest.approx(3.0)


def test_nothing_is_known_of_no_prefix_and_of_readings_that_are_not_there(store: SlotStore) -> None:
    assert math.isnan(store.surprisal_nats[0].item())
    tree, without, unknown = Tree(), request("root", 0), request("node", 3)
    stranger = SimpleNamespace(prefix_len=3, last_node="node", session=None)
    lent = request("nowhere", 3)
    lent.session = SimpleNamespace(streaming=True)
    read_prefixes([without, unknown, stranger, lent], tree)
    for req in (without, unknown):
        notes = notes_of(req)
        assert notes is not None
        assert notes.prefix_surprisal_nats is None
    telemetry.install(None)
    read_prefixes([unknown], tree)
    assert tree.asked == 1
