"""SGLang's sampling parameters reach the compiled drawing with their meaning; what it does not do is left to SGLang."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sglang.srt.layers.sampler import top_k_top_p_min_p_sampling_from_probs_torch

from sgl_entropic.runtime.cpu.sampling import draw, drawable
from sgl_entropic_kernels import reference
from sgl_entropic_kernels.native import READINGS

ROWS = 4
ALL = 1 << 30


def sampling(**changed: Any) -> Any:
    fields: dict[str, Any] = {
        "is_all_greedy": False,
        "temperatures": torch.tensor([[0.5], [1.0], [1.3], [0.9]]),
        "top_ks": torch.tensor([ALL, 5, ALL, 3], dtype=torch.int32),
        "top_ps": torch.tensor([1.0, 1.0, 0.7, 0.8]),
        "min_ps": torch.tensor([0.0, 0.0, 0.0, 0.2]),
        "sampling_seed": None,
        "sampling_mask_batch_indices": None,
    }
    return SimpleNamespace(**(fields | changed))


def logits(rows: int = ROWS, vocab: int = 64) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(4)) * 2


def test_the_cuts_are_sglang_s() -> None:
    """Over 4,000 draws, each row meets exactly the tokens that SGLang's own sampler leaves, and about as often."""
    z, info, draws = logits(), sampling(), 4000
    torch.manual_seed(3)
    ours = torch.stack([draw(z, info)[0] for _ in range(draws)]).numpy()
    probs = torch.softmax(z / info.temperatures, -1)
    theirs, kept, ids, _ = top_k_top_p_min_p_sampling_from_probs_torch(
        probs,
        info.top_ks,
        info.top_ps,
        info.min_ps,
        True,
        None,
        torch.zeros(ROWS),
        return_filtered_probs=True,
    )
    assert theirs.shape == (ROWS,)
    for row in range(ROWS):
        share = torch.zeros(z.shape[1]).scatter(0, ids[row].long(), kept[row] / kept[row].sum()).numpy()
        counts = np.bincount(ours[:, row], minlength=z.shape[1])
        assert counts[share == 0].sum() == 0
        # Five standard deviations of each count.
        assert (abs(counts - share * draws) <= 5 * np.sqrt(share * draws) + 1).all()


def test_greedy_rows_take_the_first_of_the_largest() -> None:
    z = torch.tensor([[0.0, 3.0, 3.0], [1.0, 0.0, 0.5]])
    info = sampling(
        is_all_greedy=True,
        temperatures=torch.ones(2, 1),
        top_ks=torch.ones(2, dtype=torch.int32),
        top_ps=torch.ones(2),
        min_ps=torch.zeros(2),
    )
    state = torch.get_rng_state()
    tokens, readings = draw(z, info)
    assert tokens.tolist() == z.argmax(-1).tolist() == [1, 0]
    assert tokens.dtype == z.argmax(-1).dtype
    assert readings is not None
    assert readings[3:].tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert torch.equal(torch.get_rng_state(), state), "a greedy batch takes nothing from the generator"


def test_the_readings_and_the_logits() -> None:
    z, info = logits(), sampling()
    before = z.clone()
    tokens, readings = draw(z, info)
    assert torch.equal(z, before)
    assert readings is not None
    for row, temperature in enumerate(info.temperatures.view(-1).tolist()):
        own, sampled = reference.one_row(z[row].tolist()), reference.one_row(z[row].tolist(), temperature)
        expected = (
            own.entropy_nats,
            own.varentropy,
            reference.surprisal(z[row].tolist(), int(tokens[row])),
            sampled.entropy_nats,
            sampled.varentropy,
        )
        assert readings[:, row].tolist() == pytest.approx(expected, rel=1e-4, abs=1e-5), READINGS
    assert draw(z, info, measured=False)[1] is None


@pytest.mark.parametrize(
    ("changed", "rows"),
    [
        ({"sampling_seed": torch.ones(ROWS)}, logits()),
        ({"sampling_mask_batch_indices": torch.ones(1)}, logits()),
        ({}, logits().bfloat16()),
        ({}, logits().double()),
        ({}, logits(vocab=128)[:, ::2]),
        ({}, logits()[:, :0]),
    ],
)
def test_what_is_left_to_sglang(changed: dict[str, Any], rows: torch.Tensor) -> None:
    assert drawable(logits(), sampling())
    assert not drawable(rows, sampling(**changed))
