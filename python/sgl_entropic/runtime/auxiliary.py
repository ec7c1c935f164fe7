"""Readings on their way from the device to the requests, in the slot that SGLang offers for it (auxiliary output)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from sgl_entropic.signals import TokenReading

if TYPE_CHECKING:
    from sgl_entropic.runtime.recorder import Recorder


@dataclass(frozen=True, slots=True)
class DeviceReadings:
    """Readings of one step on the device.

    Attributes:
        recorder: where they go on the host.
        values: ``[4, B]`` float32: entropy, varentropy, surprisal, sampled entropy; NaN where undefined. ``None`` when
            nothing was sampled (requests that only wanted their prompt).
        prompts: ``[2, n]`` prompt readings by row of the batch.
        gravity: ``[2, B]`` gravity and energy, where they are taken from hidden states.
    """

    recorder: Recorder
    values: torch.Tensor | None
    prompts: dict[int, torch.Tensor] = field(default_factory=dict)
    gravity: torch.Tensor | None = None

    def copy_to_host(self, copy_tensor: Callable[[torch.Tensor], torch.Tensor]) -> HostReadings:
        """Start the copies with SGLang's own asynchronous copy."""
        values = None if self.values is None else copy_tensor(self.values)
        return HostReadings(
            self.recorder,
            values,
            {row: copy_tensor(t) for row, t in self.prompts.items()},
            None if self.gravity is None else copy_tensor(self.gravity),
        )


@dataclass(frozen=True, slots=True)
class HostReadings:
    """The same on the host; SGLang calls :meth:`consume` once the copy is done and the tokens are committed."""

    recorder: Recorder
    values: torch.Tensor | None
    prompts: dict[int, torch.Tensor]
    gravity: torch.Tensor | None = None

    def consume(self, batch: Any, commits: Sequence[Any]) -> None:
        """Hand each reading to its request; ``commits`` is aligned with ``batch.reqs``."""
        for row, prompt in self.prompts.items():
            self.recorder.record_prompt(
                batch.reqs[row], [[_known(v) for v in line] for line in prompt.tolist()]
            )
        if self.values is not None:
            more = [] if self.gravity is None else self.gravity.tolist()
            columns = list(zip(*self.values.tolist(), *more, strict=True))
            self.recorder.record_step(batch, commits, [TokenReading(*map(_known, c)) for c in columns])


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
