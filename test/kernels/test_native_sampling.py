"""Tokens are drawn with the probabilities that the row and its cuts say; readings and temperatures are exact."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import sampling_checks as checks
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sgl_entropic_kernels import reference, reference_sampling
from sgl_entropic_kernels.native import library
from sgl_entropic_kernels.reference_sampling import Cut

SIZES = st.sampled_from([1, 2, 15, 16, 17, 1023, 1024, 1025, 3000]) | st.integers(1, 300)
TEMPERATURES = st.sampled_from([0.05, 0.3, 0.8, 1.0, 1.3, 5.0])
CUTS = st.builds(
    Cut,
    TEMPERATURES,
    st.sampled_from([1, 2, 5, 40, 1000, 1 << 30]),
    st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.01, 1e-6]),
    st.sampled_from([0.0, 1e-4, 0.05, 0.3, 1.0]),
)
UNCUT = TEMPERATURES.map(Cut)
SEEDS = st.integers(0, 2**31)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(checks.KINDS), st.lists(CUTS | UNCUT, min_size=1, max_size=4), SIZES, SEEDS)
def test_tokens_and_readings_are_the_definition_s(kind: str, cuts: list[Cut], n: int, seed: int) -> None:
    checks.check_draw(library(), kind, cuts, n, seed)


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(checks.KINDS), st.lists(CUTS | UNCUT, min_size=2, max_size=6), SIZES, SEEDS)
def test_a_row_alone_is_the_row_in_a_batch(kind: str, cuts: list[Cut], n: int, seed: int) -> None:
    checks.check_rows_do_not_matter(library(), kind, cuts, n, seed)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(checks.KINDS),
    st.integers(1, 3),
    SIZES,
    st.sampled_from([(-0.7, 0.7), (0.0, 0.0), (-3.0, 3.0), (0.1, 0.2), (-0.5, -0.1)]),
    SEEDS,
)
def test_the_temperature_of_an_entropy(
    kind: str, rows: int, n: int, ends: tuple[float, float], seed: int
) -> None:
    checks.check_solve(library(), kind, rows, n, ends, seed)


@pytest.mark.parametrize("cut", [Cut(0.9), Cut(0.9, top_k=7), Cut(1.2, top_p=0.8), Cut(1.0, min_p=0.1)])
def test_frequencies_are_the_probabilities(native: ModuleType, cut: Cut) -> None:
    """Chi-square over 60,000 draws from 40 tokens."""
    row = checks.rows_of("model", 1, 40, 3)[0] * np.float32(0.4)
    uniforms = np.random.default_rng(5).random(60_000)
    tokens, _ = checks.draw(native, np.tile(row, (len(uniforms), 1)), [cut] * len(uniforms), uniforms)
    ids, p = reference_sampling.kept(row, cut)
    expected = p / p.sum() * len(uniforms)
    counts = np.bincount(tokens, minlength=40)
    assert counts.sum() == counts[ids].sum()
    likely = expected >= 5
    rest = [counts[ids][~likely].sum()], [expected[~likely].sum()]
    observed = np.concatenate([counts[ids][likely], rest[0] if rest[1][0] else []])
    wanted = np.concatenate([expected[likely], rest[1] if rest[1][0] else []])
    assert stats.chisquare(observed, wanted).pvalue > 1e-4


@given(st.lists(st.sampled_from([-math.inf, -90.0, -20.0, 0.0, 3.0]), min_size=1, max_size=50), SEEDS)
def test_what_has_no_probability_is_never_drawn(row: list[float], seed: int) -> None:
    logits = np.array([[*row, 0.0]] * 20, np.float32)
    tokens, _ = checks.draw(library(), logits, [Cut()] * 20, np.random.default_rng(seed).random(20))
    assert all(logits[0, token] > -math.inf for token in tokens.tolist())


@pytest.mark.parametrize("uniform", [0.0, math.nextafter(1.0, 0.0)])
@pytest.mark.parametrize("cut", [Cut(), Cut(top_p=0.999)])
def test_the_ends_of_the_unit_interval(native: ModuleType, uniform: float, cut: Cut) -> None:
    """The least and the largest number meet the first and the last token that has a probability."""
    logits = np.array([[-math.inf, 1.0, 0.5, -math.inf]], np.float32)
    tokens, _ = checks.draw(native, logits, [cut], np.array([uniform]))
    assert tokens.tolist() == [1 if uniform == 0.0 else 2]


def test_a_rare_token_late_in_the_vocabulary_keeps_its_share(native: ModuleType) -> None:
    """Float32 sums would lose part of it: a hundredth of the mass behind 50,000 equal entries."""
    row = np.zeros(50_001, np.float32)
    row[-1] = math.log(50_000 / 99)
    uniforms = (np.arange(2000) + 0.5) / 2000
    tokens = np.concatenate(
        [checks.draw(native, np.tile(row, (50, 1)), [Cut()] * 50, part)[0] for part in np.split(uniforms, 40)]
    )
    assert int((tokens == 50_000).sum()) == 20


@pytest.mark.parametrize(
    ("row", "tokens", "entropy"),
    [
        ([math.inf, 0.0, math.inf, -1.0], {0, 2}, math.log(2)),
        ([0.0, math.nan, 1.0, 2.0], {0, 2, 3}, None),
        ([-math.inf] * 4, {0}, None),
    ],
)
def test_rows_that_are_not_ordinary(
    native: ModuleType, row: list[float], tokens: set[int], entropy: Any
) -> None:
    """Infinite logits share the mass; what is no distribution reads NaN, and some token of the row comes out."""
    logits = np.array([row] * 40, np.float32)
    drawn, readings = checks.draw(native, logits, [Cut()] * 40, (np.arange(40) + 0.5) / 40)
    assert set(drawn.tolist()) <= tokens
    if entropy is None:
        assert np.isnan(readings).all()
    else:
        assert set(drawn.tolist()) == tokens
        assert readings[[0, 3]] == pytest.approx(entropy, rel=1e-6)
        assert readings[2] == pytest.approx(entropy, rel=1e-6)


@pytest.mark.parametrize("temperature", [1e-45, 1e-38, 1e38, math.inf])
@pytest.mark.parametrize("top_p", [1.0, 0.0, 1e-40])
def test_temperatures_at_the_ends_of_float32(native: ModuleType, temperature: float, top_p: float) -> None:
    """A client can ask for them: the coldest takes the likeliest token, the hottest any, and nothing breaks."""
    logits = np.array([[0.0, 1.0, -1.0, -math.inf]] * 30, np.float32)
    cuts = [Cut(temperature, top_p=top_p)] * 30
    tokens, readings = checks.draw(native, logits, cuts, (np.arange(30) + 0.5) / 30)
    if temperature < 1 or top_p < 0.5:
        assert set(tokens.tolist()) == ({1} if temperature < 1 else {0})
    else:
        assert set(tokens.tolist()) == {0, 1, 2}
    assert np.isfinite(readings).all()


def test_a_cold_row_is_warmed(native: ModuleType) -> None:
    """One token ahead of all others by nine: at its own temperature no other has any weight, further up the target is met."""
    logits = np.zeros((1, 1000), np.float32)
    logits[0, 3] = 9.0
    for own in (0.05, 0.1, 0.3):
        controls = np.array([[1.0], [0.0], [2.0], [-0.7], [math.log(20 / own)]], np.float32)
        state = np.zeros((2, 1), np.float32)
        _, _, steered = checks.steer(
            native, logits, [Cut(own)], np.array([0.5]), controls, np.array([0]), state
        )
        assert reference_sampling.entropy_at(logits[0], float(steered[0, 0])) == pytest.approx(1.0, abs=2e-3)
        assert steered[2, 0] == 0.0


def test_statistics_at_hand_are_used_and_others_computed(native: ModuleType) -> None:
    """A row of statistics that are not finite is computed anew."""
    logits = checks.rows_of("model", 2, 100, 8)
    known = np.array([[9.0, 20.0, 1.5, 0.25], [np.nan] * 4], np.float32)
    tokens, readings = checks.draw(native, logits, [Cut()] * 2, np.array([0.3, 0.6]), known)
    _, computed = checks.draw(native, logits, [Cut()] * 2, np.array([0.3, 0.6]))
    assert readings[:3, 0].tolist() == pytest.approx([1.5, 0.25, 20.0 - logits[0, tokens[0]]])
    assert readings[:, 1].tolist() == computed[:, 1].tolist()
    assert readings[3:].tolist() == computed[3:].tolist()


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(checks.KINDS),
    st.lists(st.tuples(CUTS | UNCUT, st.sampled_from([*checks.MODES])), min_size=1, max_size=5),
    SIZES,
    SEEDS,
)
def test_temperatures_follow_the_law(kind: str, rows: list[tuple[Cut, str]], n: int, seed: int) -> None:
    checks.check_steer(library(), kind, [cut for cut, _ in rows], [mode for _, mode in rows], n, seed)


@pytest.mark.parametrize("spread", [3.0, 0.3])
def test_a_search_begins_at_the_statistics_and_ends_at_the_target(native: ModuleType, spread: float) -> None:
    """Statistics from before a mask give the bits of those at hand; wrong ones cost time, never the target."""
    rng, rows, n = checks.generator(7), 6, 5000
    logits = (spread * rng.standard_normal((rows, n))).astype(np.float32)
    uniforms, targets = rng.random(rows), np.linspace(0.5, 8.0, rows)
    low, high = np.full(rows, -3.0), np.full(rows, 3.0)
    controls = np.stack([targets, np.zeros(rows), np.full(rows, 2.0), low, high]).astype(np.float32)
    at_one = [reference.one_row(row) for row in logits]
    own = np.array(
        [[at.max_logit, at.log_normalizer, at.entropy_nats, at.varentropy] for at in at_one], np.float32
    )
    wrong = own + 2 * rng.standard_normal(own.shape).astype(np.float32)

    def found(own_statistics: Any, before: Any) -> Any:
        steered = np.zeros((4, rows), np.float32)
        more = controls, np.arange(rows), np.zeros((2, rows), np.float32), steered, before
        checks.draw(native, logits, [Cut()] * rows, uniforms, own_statistics, *more)
        return steered

    checks.check_same_bits(found(own, None), found(None, own))
    for steered in (found(own, None), found(wrong, None), found(None, wrong), found(None, None)):
        for row, used, target in zip(logits, steered[0], targets, strict=True):
            least, most = (reference_sampling.entropy_at(row, end) for end in (-3.0, 3.0))
            reached = reference_sampling.entropy_at(row, float(used))
            assert abs(reached - min(max(target, least), most)) <= 1e-3


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("controls", np.zeros((4, 2), np.float32), r"controls must be \[5, rows\]"),
        (
            "controls",
            np.array([[1, 1], [0, 0], [0, 7], [0, 0], [0, 0]], np.float32),
            r"controls\[2\] must be",
        ),
        ("controls", np.array([[1, 1], [0, math.nan], [0, 0], [0, 0], [0, 0]], np.float32), r"controls\[1\]"),
        (
            "controls",
            np.array([[1, 1], [0, 0], [0, 0], [1, 0], [0, 0]], np.float32),
            r"controls\[3\].*in order",
        ),
        ("places", np.array([0, 3]), r"places\[1\] is 3.*0 to 2"),
        ("places", np.array([0, -1]), r"places\[1\] is -1"),
        ("places", np.array([0]), r"places must be \[rows\]"),
        ("state", np.zeros((1, 3), np.float32), r"state must be \[2, places\]"),
        ("steered", np.zeros((4, 3), np.float32), r"steered must be \[4, rows\]"),
        ("steered", None, "come together"),
        ("readings", None, "come together"),
    ],
)
def test_what_steering_refuses(native: ModuleType, name: str, value: Any, said: str) -> None:
    good = {
        **GOOD,
        "controls": np.zeros((5, 2), np.float32),
        "places": np.array([0, 2]),
        "state": np.zeros((2, 3), np.float32),
        "steered": np.zeros((4, 2), np.float32),
    }
    native.draw(**good)
    with pytest.raises(ValueError, match=said):
        native.draw(**{**good, name: value})


GOOD: dict[str, Any] = {
    "logits": np.zeros((2, 5), np.float32),
    "temperatures": np.ones(2, np.float32),
    "top_ks": np.ones(2, np.int32),
    "top_ps": np.ones(2, np.float32),
    "min_ps": np.zeros(2, np.float32),
    "uniforms": np.zeros(2),
    "tokens": np.zeros(2, np.int32),
    "readings": np.zeros((5, 2), np.float32),
    "own": np.zeros((2, 4), np.float32),
}


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("temperatures", np.array([1, 0], np.float32), r"temperatures\[1\] is 0.*above 0"),
        ("temperatures", np.array([1, math.nan], np.float32), r"temperatures\[1\] is .*nan"),
        ("top_ks", np.array([0, 1], np.int32), r"top_ks\[0\] is 0.*at least 1"),
        ("top_ps", np.array([1, 1.5], np.float32), r"top_ps\[1\] is 1.5.*0 to 1"),
        ("top_ps", np.array([1, math.nan], np.float32), r"top_ps\[1\] is nan"),
        ("min_ps", np.array([-1, 0], np.float32), r"min_ps\[0\] is -1.*0 to 1"),
        ("uniforms", np.array([0.0, 1.0]), r"uniforms\[1\] is 1.*below 1"),
        ("temperatures", np.ones(3, np.float32), r"temperatures must be \[rows\]"),
        ("tokens", np.zeros(1, np.int32), r"tokens must be \[rows\]"),
        ("readings", np.zeros((4, 2), np.float32), r"readings must be \[5, rows\]"),
        ("own", np.zeros((2, 3), np.float32), r"own must be \[rows, 4\]"),
        ("before", np.zeros((3, 4), np.float32), r"before must be \[rows, 4\]"),
        ("logits", np.zeros((2, 0), np.float32), "at least one column"),
    ],
)
def test_what_draw_refuses(native: ModuleType, name: str, value: Any, said: str) -> None:
    native.draw(**GOOD)
    with pytest.raises(ValueError, match=said):
        native.draw(**{**GOOD, name: value})


@pytest.mark.parametrize("name", ["logits", "temperatures", "top_ks", "uniforms", "tokens", "readings"])
def test_other_types_are_refused(native: ModuleType, name: str) -> None:
    """float16 stands for all: nothing is converted in silence."""
    with pytest.raises(TypeError):
        native.draw(**{**GOOD, name: GOOD[name].astype(np.float16)})


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("targets", np.array([1, math.nan], np.float32), r"targets\[1\] is nan"),
        ("lowest", np.array([2, 0], np.float32), "lowest must not be above highest"),
        ("results", np.zeros((2, 2), np.float32), r"results must be \[3, rows\]"),
    ],
)
def test_what_solve_refuses(native: ModuleType, name: str, value: Any, said: str) -> None:
    good = {
        "logits": np.zeros((2, 5), np.float32),
        "targets": np.ones(2, np.float32),
        "starts": np.zeros(2, np.float32),
        "lowest": np.zeros(2, np.float32),
        "highest": np.ones(2, np.float32),
        "results": np.zeros((3, 2), np.float32),
    }
    native.solve_temperature(**good)
    with pytest.raises(ValueError, match=said):
        native.solve_temperature(**{**good, name: value})
