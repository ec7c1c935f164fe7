"""Which blocks are kept, against an oracle that goes block by block in plain Python."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_entropic.attention.contribution import block_surprisal, contribution
from sgl_entropic.attention.selection import select, whole_blocks
from sgl_entropic.attention.settings import AttentionSettings

LENGTHS = st.integers(1, 700)
RATIOS = st.floats(0.01, 1.0)
SCORES = st.one_of(st.floats(-5, 5, width=32), st.just(float("nan")), st.sampled_from([0.0, 1.0]))


@st.composite
def cases(draw: st.DrawFn) -> tuple[AttentionSettings, int, float, list[list[float]]]:
    settings = AttentionSettings(
        block_tokens=draw(st.sampled_from([1, 2, 4, 16, 32])),
        sink_tokens=draw(st.integers(1, 70)),
        recent_tokens=draw(st.integers(1, 130)),
        recent_share=draw(st.floats(0.0, 1.0)),
        score_interval_steps=draw(st.integers(1, 20)),
    )
    length = draw(LENGTHS)
    blocks = whole_blocks(length, settings)
    layers = draw(st.integers(1, 3))
    rows = [draw(st.lists(SCORES, min_size=blocks, max_size=blocks)) for _ in range(layers)]
    return settings, length, draw(RATIOS), rows


def expected(settings: AttentionSettings, length: int, ratio: float, scores: Sequence[float]) -> set[int]:
    """Positions that are read, by the definition."""
    size = settings.block_tokens
    blocks = max(0, length - settings.recent_tokens) // size
    read = set(range(blocks * size, length))
    tail = len(read)
    must = [b for b in range(blocks) if b * size < settings.sink_tokens]
    # The most blocks with which the share is not exceeded, on the mean of the steps to come; the sinks at least.
    steps = range(settings.score_interval_steps)
    most = sum(ratio * (length + step) for step in steps)
    count = len(must)
    while count < blocks and sum(tail + step + (count + 1) * size for step in steps) <= most + 1e-6:
        count += 1
    recent = math.ceil(settings.recent_share * (tail + count * size) / size) - tail // size
    chosen = list(must)
    for block in reversed(range(blocks)):
        if recent <= 0 or len(chosen) == count:
            break
        if block not in chosen:
            chosen.append(block)
            recent -= 1
    rest = sorted(
        (b for b in range(blocks) if b not in chosen),
        key=lambda b: (math.inf if math.isnan(scores[b]) else scores[b], b),
        reverse=True,
    )
    for block in chosen + rest[: count - len(chosen)]:
        read.update(range(block * size, (block + 1) * size))
    return read


@given(cases())
def test_it_is_the_oracle_s(case: tuple[AttentionSettings, int, float, list[list[float]]]) -> None:
    settings, length, ratio, rows = case
    chosen = select(np.array(rows, dtype=np.float32).reshape(len(rows), -1), length, ratio, settings)
    for layer, scores in enumerate(rows):
        positions = chosen.positions(length, settings.block_tokens, layer)
        assert positions.tolist() == sorted(expected(settings, length, ratio, scores))


@given(cases(), st.integers(0, 40))
def test_what_always_holds(case: tuple[AttentionSettings, int, float, list[list[float]]], later: int) -> None:
    """Never empty, ascending, nothing beyond the context, sinks and recent tokens in, the newest token in."""
    settings, length, ratio, rows = case
    chosen = select(np.array(rows, dtype=np.float32).reshape(len(rows), -1), length, ratio, settings)
    for layer in range(len(rows)):
        positions = chosen.positions(length + later, settings.block_tokens, layer)
        assert (np.diff(positions) > 0).all()
        assert positions[0] == 0
        assert positions[-1] == length + later - 1
        kept = set(positions.tolist())
        assert kept >= set(range(min(settings.sink_tokens, length)))
        assert kept >= set(range(max(0, length - settings.recent_tokens), length + later))
    read = chosen.tokens(length, settings.block_tokens)
    assert read == pytest.approx(
        np.mean([len(chosen.positions(length, settings.block_tokens, r)) for r in range(len(rows))])
    )


@given(
    st.lists(st.lists(st.one_of(st.none(), st.floats(0, 20, width=32)), min_size=4, max_size=4), max_size=9)
)
def test_a_block_s_surprisal_is_the_mean_of_what_is_known(table: list[list[float | None]]) -> None:
    flat = np.array([np.nan if v is None else v for block in table for v in block], dtype=np.float32)
    for got, block in zip(block_surprisal(flat, 4), table, strict=True):
        known = [v for v in block if v is not None]
        assert (math.isnan(got) and not known) or got == pytest.approx(
            sum(known) / len(known), rel=1e-5, abs=1e-6
        )


def test_policies_differ_where_they_should() -> None:
    """Surprisal finds the surprising block, streaming the latest, attention what each layer looked at."""
    surprisal = np.zeros(8 * 16, dtype=np.float32)
    surprisal[3 * 16 : 4 * 16] = 5.0
    mass = np.zeros((2, 10), dtype=np.float32)
    mass[0, 2] = mass[1, 5] = 1.0

    def kept(policy: str) -> list[list[int]]:
        settings = AttentionSettings(policy=policy, recent_share=0.0, sink_tokens=1, score_interval_steps=1)  # type: ignore[arg-type]
        length = 8 * 16 + 64
        found = select(contribution(settings, surprisal, mass), length, (64 + 2 * 16) / length, settings)
        return [np.flatnonzero(row).tolist() for row in found.kept]

    assert kept("surprisal") == [[0, 3]]
    assert kept("streaming") == [[0, 7]]
    assert kept("attention") == [[0, 2], [0, 5]]
