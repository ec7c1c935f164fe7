"""What a step's hidden states become: rows that begin, chunks, mixed batches, and the time of learning."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from sgl_entropic.config import GravityConfig
from sgl_entropic.errors import ConfigError, UnsupportedError
from sgl_entropic.runtime.gravity.meter import Meter
from sgl_entropic.runtime.step_context import RowFacts, StepContext
from sgl_entropic.trace.counters import Counters

SIZE = 8


def meter_of(**values: Any) -> Meter:
    config = GravityConfig(**{"window": 2, "top_k": 2, "mean_rows": 0, **values})
    return Meter.of(config, torch.zeros(5, 16, dtype=torch.int32), SIZE, Counters(), compiled=False)


def fact(*, final: bool = True) -> RowFacts:
    return RowFacts(
        None,
        fresh=True,
        inherited_slot=None,
        recomputed_tokens=0,
        next_token=None if final else 3,
        prompt_tokens=0,
    )  # type: ignore[arg-type]


def batch(places: list[int], lens: list[int] | None = None) -> Any:
    return SimpleNamespace(
        req_pool_indices=torch.tensor(places), extend_seq_lens=None if lens is None else torch.tensor(lens)
    )


def decode(meter: Meter, hidden: torch.Tensor, places: list[int]) -> list[float]:
    return meter.score(hidden, batch(places), len(places), None)[0].tolist()


def extend(
    meter: Meter, hidden: torch.Tensor, places: list[int], lens: list[int], *final: bool, decoding: int = 0
) -> list[float]:
    context = StepContext(tuple(fact(final=one) for one in final), decoding)
    return meter.score(hidden, batch(places, lens), len(places), context)[0].tolist()


SAME = torch.ones(1, SIZE)


def test_a_prompt_is_one_state_and_a_row_begins_anew_with_it() -> None:
    meter = meter_of()
    assert extend(meter, SAME, [3], [7], True) == [0.0]
    assert [decode(meter, SAME, [3])[0] for _ in range(3)] == pytest.approx([0.0, 1.0, 1.0])
    # An overrun step of the request that has ended, then the next request in its row.
    decode(meter, -SAME, [3])
    assert extend(meter, SAME, [3], [2], True) == [0.0]
    assert [decode(meter, SAME, [3])[0] for _ in range(2)] == pytest.approx([0.0, 1.0])
    assert meter.counters.gravity_rows == 8


def test_states_of_all_new_tokens_are_reduced_to_the_last_ones() -> None:
    """A server that hands out full hidden states (``--return-hidden-states-mode full``) scores the same."""
    full, last = meter_of(window=1, top_k=1), meter_of(window=1, top_k=1)
    states = torch.randn(5, SIZE)
    extend(full, states, [0, 1], [2, 3], True, True)
    extend(last, states[[1, 4]], [0, 1], [2, 3], True, True)
    after = torch.randn(2, SIZE)
    assert decode(full, after, [0, 1]) == decode(last, after, [0, 1])
    assert torch.equal(full.ring.units, last.ring.units)


def test_a_chunk_that_is_not_the_last_leaves_no_state() -> None:
    meter = meter_of(window=1, top_k=1)
    assert extend(meter, -SAME, [2], [4], False) == [0.0]
    assert extend(meter, SAME, [2], [4], True) == [0.0], "the chunk before is no state of the answer"
    assert decode(meter, SAME, [2]) == pytest.approx([1.0])


def test_rows_that_decode_beside_a_prefill_go_on() -> None:
    meter = meter_of(window=1, top_k=1)
    extend(meter, SAME, [1], [3], True)
    assert extend(meter, SAME.repeat(2, 1), [4, 1], [5, 1], True, True, decoding=1) == pytest.approx(
        [0.0, 1.0]
    )


def test_a_retracted_request_fills_its_window_anew() -> None:
    meter = meter_of()
    extend(meter, SAME, [0], [3], True)
    for _ in range(3):
        decode(meter, SAME, [0])
    # Prompt and answer are computed again, in another row.
    assert extend(meter, SAME, [4], [6], True) == [0.0]
    assert [decode(meter, SAME, [4])[0] for _ in range(2)] == pytest.approx([0.0, 1.0])


def test_nothing_is_told_while_the_mean_is_learnt() -> None:
    meter = meter_of(mean_rows=3, window=1, top_k=1)
    scores = [meter.score(SAME, batch([0]), 1, None) for _ in range(5)]
    assert [score[0, 0].item() for score in scores[:4]] == [0.0] * 4
    assert all(score[1, 0].isnan() for score in scores[:4])
    assert meter.mean.values.tolist() == [1.0] * SIZE
    assert meter.state()["mean_rows_learnt"] == 3
    assert meter.counters.gravity_rows == 2


def test_a_mean_of_another_model_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "mean.npy", np.zeros(SIZE + 1, np.float32))
    with pytest.raises(ConfigError, match=r"expected an \.npy file with 8 finite numbers"):
        meter_of(mean_path=str(tmp_path / "mean.npy"))


def test_a_model_without_hidden_states_is_told() -> None:
    with pytest.raises(UnsupportedError, match="--entropic-gravity on"):
        meter_of().score(None, batch([0]), 1, None)
