"""Prompt scoring of whole batches, against a walk over the tokens one by one in float64."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sgl_entropic.entropy.row_statistics import row_statistics
from sgl_entropic.request_params import RequestParams
from sgl_entropic.runtime.prompt_scoring import ExtendLayout, first_tokens, score
from sgl_entropic.runtime.request_state import RequestState
from sgl_entropic.runtime.slots import SlotStore
from sgl_entropic.runtime.step_context import RowFacts
from sgl_entropic_kernels import reference

VOCAB = 7
SLOTS = 80
ROWS = 8
FLOAT32: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}
# In the vocabulary, or a placeholder of an image: a hash far outside, or negative.
token_ids = st.one_of(st.integers(0, VOCAB - 1), st.sampled_from([-1, VOCAB, 2**40, -(2**33)]))


@dataclasses.dataclass
class Part:
    """One request of a batch: its new tokens and what came before and comes after them."""

    tokens: list[int]
    slots: list[int]
    row: int
    fresh: bool
    inherited_slot: int | None
    next_token: int | None

    def facts(self) -> RowFacts:
        inherited = None if self.inherited_slot is None else torch.tensor(self.inherited_slot)
        return RowFacts(RequestState(RequestParams()), self.fresh, inherited, 0, self.next_token, 0)


@st.composite
def batches(draw: st.DrawFn) -> list[Part]:
    """Fresh and continued chunks, middle and final ones, of one token and of many, in any order."""
    parts = []
    slots = draw(st.permutations(range(SLOTS)))
    rows = draw(st.permutations(range(ROWS)))
    for row in rows[: draw(st.integers(1, 5))]:
        tokens = draw(st.lists(token_ids, min_size=1, max_size=draw(st.sampled_from([1, 2, 12]))))
        own, slots = slots[: len(tokens)], slots[len(tokens) :]
        fresh = draw(st.booleans())
        inherited = draw(st.one_of(st.none(), st.just(slots[-1 - row]))) if fresh else None
        parts.append(Part(tokens, own, row, fresh, inherited, draw(st.one_of(st.none(), token_ids))))
    return parts


@st.composite
def logits_of_batch(draw: st.DrawFn, rows: int) -> torch.Tensor:
    """Logits [rows, VOCAB], some of them with illegal tokens or broken."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    logits = generator.normal(size=(rows, VOCAB)) * generator.choice([0.1, 3.0, 20.0], size=(rows, 1))
    for value in draw(st.lists(st.sampled_from([-math.inf, math.nan]), max_size=2)):
        logits[generator.integers(rows), generator.integers(VOCAB)] = value
    return torch.tensor(logits, dtype=torch.float32)


def filled_store() -> SlotStore:
    """A store full of other requests' numbers, each different."""
    numbers = torch.arange(2 * SLOTS + ROWS, dtype=torch.float32) + 1000.0
    return SlotStore(numbers[:SLOTS], numbers[SLOTS : 2 * SLOTS], numbers[2 * SLOTS :])


def surprisal_of(row: list[float], token: int) -> float:
    """-ln p, unknown for a token that no distribution speaks of."""
    if not 0 <= token < VOCAB or not reference.one_row(row).valid:
        return math.nan
    return reference.surprisal(row, token)


def entropy_of(row: list[float]) -> float:
    statistics = reference.one_row(row)
    return statistics.entropy_nats if statistics.valid else math.nan


def walked(parts: list[Part], logits: list[list[float]]) -> tuple[list[float], list[float], list[float]]:
    """What the store must hold afterwards: surprisals and entropies by slot, pending surprisals by row."""
    store = filled_store()
    surprisals, entropies = store.surprisal_nats.tolist(), store.entropy_nats.tolist()
    pending = store.pending_surprisal_nats.tolist()
    inherited = list(surprisals)
    remaining = iter(logits)
    for part in parts:
        if part.fresh:
            pending[part.row] = math.nan if part.inherited_slot is None else inherited[part.inherited_slot]
        following = [*part.tokens[1:], part.next_token]
        surprisal = pending[part.row]
        for slot, successor in zip(part.slots, following, strict=True):
            row = next(remaining)
            surprisals[slot] = surprisal
            if successor is not None:
                entropies[slot] = entropy_of(row)
                surprisal = surprisal_of(row, successor)
        if part.next_token is not None:
            pending[part.row] = surprisal
    return surprisals, entropies, pending


@given(st.data())
def test_a_batch_is_scored_as_if_its_tokens_were_walked_one_by_one(data: st.DataObject) -> None:
    """Every slot and row of the batch holds the truth, every other one what it held before."""
    parts = data.draw(batches())
    lens = [len(part.tokens) for part in parts]
    logits = data.draw(logits_of_batch(sum(lens)))
    chunk_rows = data.draw(st.sampled_from([1, 2, 3, 1000]))
    facts = tuple(part.facts() for part in parts)
    store, seen = filled_store(), []

    def lm_head(hidden: torch.Tensor) -> torch.Tensor:
        seen.append(len(hidden))
        return hidden

    slots = torch.tensor([slot for part in parts for slot in part.slots])
    rows = torch.tensor([part.row for part in parts])
    first_tokens(store, facts, rows)
    store.settle(slots[torch.tensor([0, *np.cumsum(lens)[:-1].tolist()])], rows)
    layout = ExtendLayout.of(lens, facts)
    score(
        store,
        layout,
        hidden_states=logits,
        input_ids=torch.tensor([token for part in parts for token in part.tokens]),
        slots=slots,
        request_rows=rows,
        logits_of=lm_head,
        chunk_rows=chunk_rows,
    )
    surprisals, entropies, pending = walked(parts, logits.tolist())
    np.testing.assert_allclose(store.surprisal_nats.numpy(), surprisals, **FLOAT32)
    np.testing.assert_allclose(store.entropy_nats.numpy(), entropies, **FLOAT32)
    np.testing.assert_allclose(store.pending_surprisal_nats.numpy(), pending, **FLOAT32)
    assert sum(seen) == sum(lens) - sum(part.next_token is None for part in parts)
    assert all(count <= chunk_rows for count in seen)


@pytest.mark.parametrize(("rows", "calls"), [(1, [1]), (3, [3]), (4, [4]), (5, [4, 1]), (8, [4, 4])])
def test_rows_pass_the_lm_head_in_chunks(rows: int, calls: list[int]) -> None:
    """Around the boundaries of ``chunk_rows`` no row is left out and none passes twice."""
    part = Part([0] * rows, list(range(rows)), 0, False, None, 1)
    store, seen = filled_store(), []

    def lm_head(hidden: torch.Tensor) -> torch.Tensor:
        seen.append(hidden.tolist())
        return hidden

    hidden = torch.randn(rows, VOCAB)
    score(
        store,
        ExtendLayout.of([rows], (part.facts(),)),
        hidden_states=hidden,
        input_ids=torch.tensor(part.tokens),
        slots=torch.tensor(part.slots),
        request_rows=torch.tensor([0]),
        logits_of=lm_head,
        chunk_rows=4,
    )
    assert [len(call) for call in seen] == calls
    assert [row for call in seen for row in call] == hidden.tolist()


def test_a_final_chunk_of_one_token_needs_no_lm_head() -> None:
    """What follows its only token is sampled."""
    part = Part([3], [5], 2, False, None, None)
    store, before = filled_store(), filled_store()

    def lm_head(hidden: torch.Tensor) -> torch.Tensor:
        raise AssertionError("nothing is to be scored")

    layout = ExtendLayout.of([1], (part.facts(),))
    score(
        store,
        layout,
        hidden_states=torch.zeros(1, VOCAB),
        input_ids=torch.tensor([3]),
        slots=torch.tensor([5]),
        request_rows=torch.tensor([2]),
        logits_of=lm_head,
        chunk_rows=16,
    )
    assert layout.rows == []
    assert torch.equal(store.surprisal_nats, before.surprisal_nats)
    assert torch.equal(store.entropy_nats, before.entropy_nats)
    assert torch.equal(store.pending_surprisal_nats, before.pending_surprisal_nats)


def test_layout_of_a_mixed_batch() -> None:
    """A final chunk of three, a middle chunk of two, a decode row, a middle chunk of one."""
    nexts = (None, 6, None, 0)
    facts = tuple(Part([], [], 0, False, None, token).facts() for token in nexts)
    layout = ExtendLayout.of([3, 2, 1, 1], facts)
    assert layout == ExtendLayout(
        rows=[0, 1, 3, 4, 6], carried=[3, 4], carried_requests=[1, 3], carried_targets=[6, 0]
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits(dtype: torch.dtype) -> None:
    """Logits that the LM head gives in half precision are measured in float32."""
    part = Part([0, 4], [1, 2], 0, False, None, None)
    hidden = torch.randn(2, VOCAB).to(dtype)
    store = filled_store()
    score(
        store,
        ExtendLayout.of([2], (part.facts(),)),
        hidden_states=hidden,
        input_ids=torch.tensor(part.tokens),
        slots=torch.tensor(part.slots),
        request_rows=torch.tensor([0]),
        logits_of=lambda rows: rows,
        chunk_rows=16,
    )
    row = hidden[0].double().tolist()
    assert float(store.surprisal_nats[2]) == pytest.approx(reference.surprisal(row, 4), rel=1e-5)
    assert float(store.entropy_nats[1]) == pytest.approx(reference.one_row(row).entropy_nats, rel=1e-5)


@pytest.mark.parametrize("answers", [[True, True, True], [False, False, False], [True, False, True]])
def test_an_lm_head_that_computes_statistics_spares_the_logits(answers: list[bool]) -> None:
    """Chunk by chunk, and the logits tell where it cannot; the readings are the same either way."""
    part = Part([0, 4, 2, 6, 1, 3], [1, 2, 9, 4, 5, 6], 0, False, None, 5)
    hidden = torch.randn(6, VOCAB)
    plain, fused = filled_store(), filled_store()
    asked, given = iter(answers), []

    def lm_head(rows: torch.Tensor) -> torch.Tensor:
        given.append(len(rows))
        return rows

    def statistics_of(rows: torch.Tensor, targets: torch.Tensor) -> Any:
        if not next(asked):
            return None
        return row_statistics(rows), rows.gather(1, targets.unsqueeze(1)).squeeze(1)

    for store, statistics in ((plain, None), (fused, statistics_of)):
        given.clear()
        score(
            store,
            ExtendLayout.of([6], (part.facts(),)),
            hidden_states=hidden,
            input_ids=torch.tensor(part.tokens),
            slots=torch.tensor(part.slots),
            request_rows=torch.tensor([0]),
            logits_of=lm_head,
            chunk_rows=2,
            statistics_of=statistics,
        )
    assert given == [2] * answers.count(False)
    for name in ("surprisal_nats", "entropy_nats", "pending_surprisal_nats"):
        np.testing.assert_allclose(getattr(fused, name), getattr(plain, name), **FLOAT32)
    assert float(fused.pending_surprisal_nats[0]) == pytest.approx(
        reference.surprisal(hidden[5].tolist(), 5), rel=1e-5
    )
