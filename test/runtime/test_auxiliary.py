"""Readings travel from the device to their requests: unknown is null, rows keep their order."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sgl_entropic.runtime.auxiliary import DeviceReadings, HostReadings
from sgl_entropic.signals import TokenReading

numbers = st.one_of(st.floats(width=32), st.sampled_from([math.nan, math.inf, -math.inf]))


class Log:
    """A recorder that remembers what it was given."""

    def __init__(self) -> None:
        self.prompts: list[tuple[Any, list[list[float | None]]]] = []
        self.steps: list[tuple[Any, Any, list[TokenReading]]] = []

    def record_prompt(self, req: Any, prompt: list[list[float | None]]) -> None:
        self.prompts.append((req, prompt))

    def record_step(self, batch: Any, commits: Any, readings: list[TokenReading]) -> None:
        self.steps.append((batch, commits, readings))


def known(value: float) -> float | None:
    return value if math.isfinite(value) else None


@given(st.lists(st.tuples(numbers, numbers, numbers, numbers), max_size=5))
def test_each_column_becomes_the_reading_of_its_row(columns: list[tuple[float, ...]]) -> None:
    """NaN and infinities, which are no numbers to a client, become ``None``."""
    log, batch, commits = Log(), SimpleNamespace(reqs=["a"] * len(columns)), [object()] * len(columns)
    values = torch.tensor(columns, dtype=torch.float32).reshape(len(columns), 4).T
    HostReadings(log, values, {}).consume(batch, commits)  # type: ignore[arg-type]
    ((seen_batch, seen_commits, readings),) = log.steps
    assert seen_batch is batch
    assert seen_commits is commits
    assert readings == [TokenReading(*(known(value) for value in column)) for column in columns]


def test_prompt_readings_reach_the_request_of_their_row() -> None:
    log, batch = Log(), SimpleNamespace(reqs=["first", "second", "third"])
    prompts = {2: torch.tensor([[math.nan, 1.5], [math.nan, 0.5]]), 0: torch.tensor([[math.inf], [2.0]])}
    HostReadings(log, None, prompts).consume(batch, [None, None, None])  # type: ignore[arg-type]
    assert log.prompts == [("third", [[None, 1.5], [None, 0.5]]), ("first", [[None], [2.0]])]
    assert log.steps == []


@pytest.mark.parametrize("sampled", [True, False])
def test_every_tensor_is_copied_once(*, sampled: bool) -> None:
    """With the copy that SGLang hands in, which is asynchronous on a device."""
    copied: list[torch.Tensor] = []

    def copy(tensor: torch.Tensor) -> torch.Tensor:
        copied.append(tensor)
        return tensor.clone()

    values = torch.rand(4, 2) if sampled else None
    prompts = {1: torch.rand(2, 3)}
    log = Log()
    host = DeviceReadings(log, values, prompts).copy_to_host(copy)  # type: ignore[arg-type]
    originals = [tensor for tensor in (values, prompts[1]) if tensor is not None]
    assert [id(tensor) for tensor in copied] == [id(tensor) for tensor in originals]
    assert host.recorder is log  # type: ignore[comparison-overlap]
    assert torch.equal(host.prompts[1], prompts[1])
    assert host.prompts[1] is not prompts[1]
    assert (host.values is None) is (values is None)
