"""Leaving some of the running requests out of one decode step.

A ``ScheduleBatch`` can be split and joined without touching the KV cache: filtering only selects rows of its tensors, and the
next token of a row that sits a step out stays where the following forward pass gathers it from, by request slot. The part
that is held has to be back before SGLang looks at its requests again: aborts, time limits, pauses and the idle check see all
of them.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Collection
from typing import Any


def can_hold(batch: Any) -> bool:
    """Whether a part of ``batch`` may sit out a step: memory for all, and no state that two batches would share."""
    return (
        batch.batch_size() > 1
        and batch.spec_algorithm.is_none()
        and not batch.sampling_info.penalizer_orchestrator.is_required
        and all(req.beam_group is None for req in batch.reqs)
        and bool(batch.check_decode_mem())
    )


def split(batch: Any, held: Collection[int]) -> Any:
    """Take the rows ``held`` out of ``batch``, in place, and return them as a batch of their own."""
    # Not ScheduleBatch.copy(), which keeps only what results are processed with.
    part = copy.copy(batch)
    part.sampling_info = dataclasses.replace(batch.sampling_info)
    # It refers to its batch and keeps state; none of it is in use here, so a new one of the same kinds says the same.
    stock = batch.sampling_info.penalizer_orchestrator
    part.sampling_info.penalizer_orchestrator = type(stock)(
        vocab_size=stock.vocab_size, batch=part, penalizers=set(stock.penalizers)
    )
    if part.sampling_info.custom_params is not None:
        part.sampling_info.custom_params = list(part.sampling_info.custom_params)
    # When all others end in this step, this part is what runs; that there was no room for more is then no longer so.
    part.batch_is_full = False
    part.filter_batch(keep_indices=sorted(held))
    batch.filter_batch(keep_indices=[row for row in range(batch.batch_size()) if row not in held])
    return part
