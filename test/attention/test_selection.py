"""Which blocks are kept, against an oracle that goes block by block in plain Python."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_entropic.attention.contribution import block_surprisal, contribution
from sgl_entropic.attention.selection import block_budget, choice_by_query, select, whole_blocks
from sgl_entropic.attention.settings import AttentionSettings

LENGTHS = st.integers(1, 700)
RATIOS = st.floats(0.01, 1.0)
SCORES = st.one_of(st.floats(-5, 5, width=32), st.just(float("nan")), st.sampled_from([0.0, 1.0]))


Case = tuple[AttentionSettings, int, float, list[list[float]], int | None]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    ratio = draw(RATIOS)
    settings = AttentionSettings(
        min_keep_ratio=ratio * draw(st.sampled_from([0.1, 0.5, 1.0])),
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
    return settings, length, ratio, rows, draw(st.one_of(st.none(), st.integers(1, 30)))


def expected(
    settings: AttentionSettings, length: int, ratio: float, scores: Sequence[float], left: int | None
) -> set[int]:
    """Positions that are read, by the definition."""
    size = settings.block_tokens
    blocks = max(0, length - settings.recent_tokens) // size
    read = set(range(blocks * size, length))
    tail = len(read)
    must = [b for b in range(blocks) if b * size < settings.sink_tokens]
    # The most blocks with which the share is not exceeded, on the mean of the steps to come; the sinks and the least share at
    # least.
    coming = settings.score_interval_steps if left is None else min(left, settings.score_interval_steps)
    steps = range(coming)
    most = sum(ratio * (length + step) for step in steps)
    count = len(must)
    while count < blocks and sum(tail + step + (count + 1) * size for step in steps) <= most + 1e-6:
        count += 1
    while count < blocks and tail + count * size < settings.min_keep_ratio * length - 1e-6:
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
def test_it_is_the_oracle_s(case: Case) -> None:
    settings, length, ratio, rows, left = case
    chosen = select(np.array(rows, dtype=np.float32).reshape(len(rows), -1), length, ratio, settings, left)
    for layer, scores in enumerate(rows):
        positions = chosen.positions(length, settings.block_tokens, layer)
        assert positions.tolist() == sorted(expected(settings, length, ratio, scores, left))


@given(cases(), st.integers(0, 40))
def test_what_always_holds(case: Case, later: int) -> None:
    """Never empty, ascending, nothing beyond the context, sinks and recent tokens in, the newest token in."""
    settings, length, ratio, rows, left = case
    chosen = select(np.array(rows, dtype=np.float32).reshape(len(rows), -1), length, ratio, settings, left)
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


@st.composite
def long_intervals(draw: st.DrawFn) -> tuple[AttentionSettings, int, float, int | None]:
    """Every interval that the server accepts, shares at and above the least one."""
    least = draw(st.floats(0.01, 1.0))
    settings = AttentionSettings(
        min_keep_ratio=least,
        block_tokens=draw(st.sampled_from([1, 16, 64, 256])),
        recent_tokens=draw(st.integers(1, 600)),
        score_interval_steps=draw(st.integers(1, 4096)),
    )
    left = draw(st.one_of(st.none(), st.integers(1, 5000)))
    return settings, draw(st.integers(1, 6000)), draw(st.floats(least, 1.0)), left


@given(long_intervals(), st.integers(1, 4096))
def test_no_step_reads_less_than_the_least_share(
    case: tuple[AttentionSettings, int, float, int | None], taken: int
) -> None:
    """However long the interval, and wherever in it the answer ends; both ways of choosing."""
    settings, length, ratio, left = case
    bonus = np.zeros(whole_blocks(length, settings), dtype=np.float32)
    by_list = select(bonus[None], length, ratio, settings, left)
    by_query = choice_by_query(bonus, length, ratio, settings, left)
    steps = np.arange(min(taken, settings.score_interval_steps, left or taken))
    for chosen in (by_list, by_query):
        read = np.array([chosen.tokens(length + step, settings.block_tokens) for step in steps.tolist()])
        assert (read >= settings.min_keep_ratio * (length + steps) - 1e-6).all()


@given(long_intervals())
def test_no_more_is_read_than_was_asked_for_where_the_least_share_is_less(
    case: tuple[AttentionSettings, int, float, int | None],
) -> None:
    """On the mean over the steps that are left, by the definition; what has to be read is no choice."""
    settings, length, ratio, left = case
    size, blocks = settings.block_tokens, whole_blocks(length, settings)
    budget, tail = block_budget(length, ratio, settings, left), length - blocks * size
    steps = np.arange(min(settings.score_interval_steps, left or settings.score_interval_steps))
    read = float((budget * size + tail + steps).sum())
    must = max(settings.sink_tokens, settings.min_keep_ratio * length - tail)
    assert read <= ratio * float((length + steps).sum()) + 1e-6 * len(steps) or (budget - 1) * size < must


@pytest.mark.parametrize(("interval", "length"), [(256, 600), (1024, 600), (4096, 2000)])
def test_an_answer_that_ends_early_had_its_share(interval: int, length: int) -> None:
    """40 tokens at a half, of an answer that might have had 4,000."""
    settings = AttentionSettings(min_keep_ratio=0.5, max_keep_ratio=0.5, score_interval_steps=interval)
    chosen = select(
        np.zeros((1, whole_blocks(length, settings)), dtype=np.float32), length, 0.5, settings, 4000
    )
    read = sum(chosen.tokens(length + step, 16) for step in range(40))
    assert 0.5 <= read / sum(length + step for step in range(40)) <= 0.54


def test_growth_that_cannot_come_is_not_charged() -> None:
    """At 0.6 with at least 0.1: 20 tokens more make 610 of 1,000 to 1,020, and 4,096 leave the least share."""
    settings = AttentionSettings(min_keep_ratio=0.1, score_interval_steps=4096)
    tail = 1000 - whole_blocks(1000, settings) * 16
    assert block_budget(1000, 0.6, settings, 20) == math.floor((0.6 * 1009.5 - 9.5 - tail) / 16)
    assert block_budget(1000, 0.6, settings, 1) == math.floor((600 - tail) / 16)
    assert block_budget(1000, 0.6, settings) == math.ceil((100 - tail) / 16)


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
        settings = AttentionSettings(
            policy=policy,  # type: ignore[arg-type]
            recent_share=0.0,
            sink_tokens=1,
            score_interval_steps=1,
        )
        length = 8 * 16 + 64
        found = select(contribution(settings, surprisal, mass), length, (64 + 2 * 16) / length, settings)
        return [np.flatnonzero(row).tolist() for row in found.kept]

    assert kept("surprisal") == [[0, 3]]
    assert kept("streaming") == [[0, 7]]
    assert kept("attention") == [[0, 2], [0, 5]]
