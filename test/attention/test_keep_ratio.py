"""The share of the context that is kept: the formula, its bounds and its direction."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_entropic.attention.keep_ratio import keep_ratio
from sgl_entropic.attention.settings import AttentionSettings

SHARES = st.floats(0.01, 1.0)
NATS = st.floats(0.0, 20.0)


@st.composite
def all_settings(draw: st.DrawFn) -> AttentionSettings:
    least = draw(SHARES)
    return AttentionSettings(
        min_keep_ratio=least,
        max_keep_ratio=draw(st.floats(least, 1.0)),
        reference_entropy_nats=draw(st.floats(0.1, 20.0)),
        floor_entropy_nats=draw(NATS),
    )


@given(NATS, all_settings())
def test_it_is_the_formula(entropy: float, settings: AttentionSettings) -> None:
    """In rational arithmetic."""
    least, most = Fraction(settings.min_keep_ratio), Fraction(settings.max_keep_ratio)
    counted = max(Fraction(entropy), Fraction(settings.floor_entropy_nats))
    raised = least + (1 - least) * counted / Fraction(settings.reference_entropy_nats)
    assert keep_ratio(entropy, settings) == pytest.approx(float(min(max(raised, least), most)), abs=1e-12)


@given(NATS, NATS, all_settings())
def test_more_entropy_never_keeps_less(one: float, other: float, settings: AttentionSettings) -> None:
    low, high = sorted((one, other))
    assert (
        settings.min_keep_ratio
        <= keep_ratio(low, settings)
        <= keep_ratio(high, settings)
        <= settings.max_keep_ratio
    )


@given(NATS, all_settings())
def test_equal_bounds_fix_the_share(entropy: float, settings: AttentionSettings) -> None:
    fixed = replace(settings, max_keep_ratio=settings.min_keep_ratio)
    assert keep_ratio(entropy, fixed) == settings.min_keep_ratio


def test_the_floor_guards_against_certainty() -> None:
    settings = AttentionSettings(min_keep_ratio=0.2, reference_entropy_nats=10.0, floor_entropy_nats=2.0)
    assert keep_ratio(0.0, settings) == keep_ratio(2.0, settings) == pytest.approx(0.36)
    assert keep_ratio(10.0, settings) == 1.0
