"""The same tokens forced upon every variant, step by step, in one batch that shares the context's slots."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from attention_quality_parts.model import Floats, Indices, Model
from attention_quality_parts.variants import Course, Variant, budget
from sgl_entropic.attention.contribution import contribution
from sgl_entropic.attention.pruning import Reading
from sgl_entropic.attention.settings import AttentionSettings
from sgl_entropic.runtime.attention.request import RequestPruning
from sgl_entropic.runtime.attention.step_plan import StepPlan
from sgl_entropic_kernels.native import library

BLOCK_TOKENS = AttentionSettings().block_tokens
MOST_STEPS = AttentionSettings().recent_tokens
"""No block is chosen or left out that holds forced tokens: their surprisals are not needed."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """A computed context, in the first slots of the model.

    Attributes:
        tokens: of it.
        surprisal_nats: ``[tokens]``.
        mass: ``[layers, blocks]`` attention that its blocks received from its last token.
    """

    tokens: int
    surprisal_nats: Floats
    mass: Floats


@dataclass(frozen=True, slots=True)
class Stream:
    """Tokens that are forced upon all variants after the context.

    Attributes:
        name: of it.
        ids: the tokens.
        wanted: steps whose logits are wanted; step ``t`` computes token ``t``.
    """

    name: str
    ids: Indices
    wanted: frozenset[int]

    def __post_init__(self) -> None:
        if not 0 < len(self.ids) <= MOST_STEPS:
            raise ValueError(f"{self.name}: {len(self.ids)} tokens, accepted: 1 to {MOST_STEPS}")


def slots_needed(context: int, variants: int, streams: int) -> int:
    """Slots of the cache for a context and what follows it."""
    return context + (variants + 1) * streams * MOST_STEPS


def prefill(model: Model, context: Indices) -> Prefix:
    """Compute a context; its last token alone, with the attention that it pays measured."""
    tokens = len(context)
    hidden = model.prefill(context[:-1])
    mass = np.zeros((model.layers, 1, -(-tokens // BLOCK_TOKENS)), np.float32)
    model.forward(context[-1:], [tokens], [np.arange(tokens)], [1], block_tokens=BLOCK_TOKENS, mass=mass)
    return Prefix(tokens, model.surprisal_nats(hidden, context), mass[:, 0])


class Forced:
    """All variants of a context, and the one that reads everything, through all streams.

    Attributes:
        courses: by stream, one for each variant.
    """

    def __init__(self, model: Model, prefix: Prefix, variants: list[Variant], streams: list[Stream]) -> None:
        self._model, self._prefix, self._streams = model, prefix, streams
        self.courses: dict[str, list[Course]] = {}
        for stream in streams:
            steps = len(stream.ids)
            self.courses[stream.name] = [
                Course(v.policy, budget(v, prefix.tokens, steps), prefix.tokens) for v in variants
            ]
            for course in self.courses[stream.name]:
                course.measure(prefix.mass.copy())
        self._rows = len(variants) + 1

    def logits(self) -> Iterator[tuple[Stream, int, torch.Tensor]]:
        """Stream, step and ``[1 + variants, vocabulary]`` of every wanted step, the dense row first."""
        for step in range(max(len(stream.ids) for stream in self._streams)):
            going = [(at, stream) for at, stream in enumerate(self._streams) if step < len(stream.ids)]
            hidden = self._step(step, going)
            for place, (_, stream) in enumerate(going):
                if step in stream.wanted:
                    rows = hidden[place * self._rows : (place + 1) * self._rows]
                    yield stream, step, self._model.logits(rows.contiguous())

    def _step(self, step: int, going: list[tuple[int, Stream]]) -> torch.Tensor:
        context, length = self._prefix.tokens, self._prefix.tokens + step + 1
        ids, slots = [], []
        readings: list[Reading | None] = []
        requests: list[RequestPruning | None] = []
        for at, stream in going:
            courses = self.courses[stream.name]
            readings += [None, *(course.step(self._contribution(course)) for course in courses)]
            requests += [None, *(course.request for course in courses)]
            for row in range(self._rows):
                own = context + (at * self._rows + row) * MOST_STEPS
                ids.append(stream.ids[step])
                slots.append(np.concatenate((np.arange(context), np.arange(own, own + step + 1))))
        rows = len(ids)
        plan = StepPlan(BLOCK_TOKENS, [length] * rows, readings, requests)
        hidden = self._model.forward(
            np.array(ids), plan.lengths, slots, [1] * rows, **self._arguments(plan, length)
        )
        plan.deliver()
        return hidden

    def _contribution(self, course: Course) -> Any:
        def contributed(blocks: int) -> Floats:
            surprisal = self._prefix.surprisal_nats[: blocks * BLOCK_TOKENS]
            return contribution(course.settings, surprisal, course.request.mass)

        return contributed

    def _arguments(self, plan: StepPlan, length: int) -> dict[str, Any]:
        """What the decoder takes of a plan, as the CPU platform's page lists make it."""
        arguments: dict[str, Any] = {"block_tokens": plan.block_tokens}
        if plan.prunes:
            arguments["kept"], arguments["tail"] = plan.masks()
            arguments["choices"] = plan.choices(self._keys_of)
        if plan.measures:
            blocks = -(-length // plan.block_tokens)
            plan.mass = np.zeros((self._model.layers, len(plan.lengths), blocks), np.float32)
            arguments["mass"] = plan.mass
        return arguments

    def _keys_of(self, request: RequestPruning) -> Any:
        if request.keys is None:
            bounds = request.policy.settings.policy == "quest"
            request.keys = library().BlockKeys(
                self._model.layers, self._model.kv_heads, self._model.head_dim, bounds
            )
        return request.keys
