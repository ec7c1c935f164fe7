"""What the coming decode step reads, on its way to FlashInfer's page lists.

Published where the batch is at hand, read by the backend in the same call of the same thread. A plan that no backend ever
asked for is an error: the server would read everything and report what it did not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sgl_entropic.attention.selection import Selection
from sgl_entropic.errors import SeamError
from sgl_entropic.runtime.attention.step_plan import StepPlan


@dataclass(frozen=True, slots=True)
class GpuPlan:
    """The rows of one decode batch in order; rows that SGLang adds for a CUDA graph are padding and read all.

    Attributes:
        selections: what each row reads, one list for all layers; ``None`` reads all. As long as a request's selection
            stays, pass the same object: it is packed once.
        lengths: tokens of each row's context, the newest included: SGLang's ``seq_lens_cpu``.
        block_tokens: tokens of a block.

    Raises:
        ValueError: sizes that contradict each other, or a selection for each layer.
        TypeError: a choice by the query.
    """

    selections: tuple[Selection | None, ...]
    lengths: tuple[int, ...]
    block_tokens: int

    def __post_init__(self) -> None:
        if len(self.selections) != len(self.lengths):
            raise ValueError(f"{len(self.selections)} selections for {len(self.lengths)} rows")
        for row, (selection, length) in enumerate(zip(self.selections, self.lengths, strict=True)):
            if selection is None:
                continue
            if not isinstance(selection, Selection):
                raise TypeError(f"row {row}: only kernels of the CPU platform choose blocks by the query")
            layers, blocks = selection.kept.shape
            if layers != 1:
                raise ValueError(f"row {row}: {layers} layers; FlashInfer has one list for all of them")
            if selection.tail_start != blocks * self.block_tokens:
                raise ValueError(
                    f"row {row}: {blocks} blocks of {self.block_tokens} tokens, but the tail begins at "
                    f"{selection.tail_start}"
                )
            if length <= selection.tail_start:
                raise ValueError(
                    f"row {row}: the newest token, {length - 1}, is read always, so the tail that begins at "
                    f"{selection.tail_start} must hold it"
                )

    @classmethod
    def of(cls, step: StepPlan) -> GpuPlan:
        """What the plan of a step says to FlashInfer."""
        # A choice by the query is not a Selection, which is said above.
        return cls(tuple(step.selections()), tuple(step.lengths), step.block_tokens)  # type: ignore[arg-type]

    @property
    def prunes(self) -> bool:
        """Whether any row leaves something out."""
        return any(selection is not None for selection in self.selections)


@dataclass(slots=True)
class Published:
    """A plan in force.

    Attributes:
        plan: ``None`` reads all.
        asked: whether the backend came for it.
        used: whether it was followed; otherwise the step read all of every context.
    """

    plan: GpuPlan | None
    asked: bool = False
    used: bool = False


_published: Published | None = None


@contextmanager
def published(plan: GpuPlan | None) -> Iterator[Published]:
    """Put ``plan`` in force for the forward pass inside; a plan that leaves nothing out is none.

    Raises:
        SeamError: the forward pass went well, and nobody asked for the plan.
    """
    global _published  # noqa: PLW0603 -- one forward pass at a time in a scheduler process
    before, _published = _published, Published(plan if plan is not None and plan.prunes else None)
    here = _published
    try:
        yield here
    finally:
        _published = before
    if here.plan is not None and not here.asked:
        raise SeamError(
            "a decode step was planned to leave tokens out, and SGLang ran it without asking sgl_entropic's FlashInfer "
            "backend for its page lists; use --entropic-attention off"
        )


def current() -> Published | None:
    """What is in force and leaves something out; ``None`` where all is read: stock lists."""
    return _published if _published is not None and _published.plan is not None else None
