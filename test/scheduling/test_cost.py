"""The cost model against numpy's least squares on clean times, and against the truth on dirty ones."""

import numpy as np
import pytest

from sgl_entropic.scheduling import CostModel

DECODE_MS = (3.0, 1.2, 4e-4)
PREFILL_MS = (8.0, 0.3, 2e-5)


def observed(noise: float, outliers: float, count: int = 512, seed: int = 0) -> CostModel:
    """A model that has seen ``count`` steps of each kind with relative noise and a share of times ten times too long."""
    rng = np.random.default_rng(seed)
    model = CostModel()
    for _ in range(count):
        factor = (1.0 + noise * rng.normal()) * (10.0 if rng.random() < outliers else 1.0)
        batch, context = int(rng.integers(1, 65)), int(rng.integers(50, 2000))
        total = batch * context
        model.observe_decode(
            batch, total, (DECODE_MS[0] + DECODE_MS[1] * batch + DECODE_MS[2] * total) * factor
        )
        uncached, ahead = int(rng.integers(1, 2000)), int(rng.integers(0, 4000))
        ms = PREFILL_MS[0] + PREFILL_MS[1] * uncached + PREFILL_MS[2] * uncached * (uncached + ahead)
        model.observe_prefill(uncached, uncached + ahead, ms * factor)
    return model


def test_clean_times_give_the_coefficients_of_least_squares() -> None:
    rng = np.random.default_rng(1)
    rows = np.column_stack([np.ones(64), rng.integers(1, 65, 64), rng.integers(100, 90_000, 64)]).astype(
        float
    )
    ms = rows @ np.array(DECODE_MS)
    reference = np.linalg.lstsq(rows, ms, rcond=None)[0]
    model = CostModel()
    for (_, batch, total), took in zip(rows, ms, strict=True):
        model.observe_decode(int(batch), int(total), float(took))
    fitted = [model.decode_fixed_ms, model.decode_row_ms, model.decode_context_token_ms]
    assert fitted == pytest.approx(reference.tolist(), rel=1e-3)


def test_clean_prefills_are_predicted() -> None:
    model = observed(noise=0.0, outliers=0.0)
    for uncached, context in ((16, 16), (500, 3000), (2000, 2000)):
        truth = PREFILL_MS[0] + PREFILL_MS[1] * uncached + PREFILL_MS[2] * uncached * context
        assert model.prefill_ms(float(uncached), float(context)) == pytest.approx(truth, rel=1e-3)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("outliers", [0.05, 0.15])
def test_times_ten_times_too_long_move_it_by_a_few_per_cent(outliers: float, seed: int) -> None:
    model = observed(noise=0.05, outliers=outliers, seed=seed)
    for batch in (1.0, 8.0, 32.0, 64.0):
        truth = DECODE_MS[0] + DECODE_MS[1] * batch + DECODE_MS[2] * batch * 700
        assert model.decode_step_ms(batch, batch * 700) == pytest.approx(truth, rel=0.05)
    for uncached in (100.0, 1000.0):
        truth = PREFILL_MS[0] + PREFILL_MS[1] * uncached + PREFILL_MS[2] * uncached**2
        assert model.prefill_ms(uncached, uncached) == pytest.approx(truth, rel=0.05)


def test_coefficients_are_never_negative() -> None:
    model = CostModel()
    for batch in range(1, 65):
        model.observe_decode(batch, 1000 - batch, 50.0 - 0.5 * batch)
    assert min(model.decode_fixed_ms, model.decode_row_ms, model.decode_context_token_ms) >= 0.0


def test_one_load_only_leaves_the_proportions_of_the_prior() -> None:
    model = CostModel(decode=(10.0, 1.0, 0.0))
    for _ in range(200):
        model.observe_decode(10, 0, 40.0)
    assert model.decode_step_ms(10.0, 0.0) == pytest.approx(40.0, rel=1e-3)
    assert model.decode_fixed_ms / model.decode_row_ms == pytest.approx(10.0, rel=1e-2)


def test_a_long_spell_at_one_load_does_not_erase_what_others_have_shown() -> None:
    model = observed(noise=0.02, outliers=0.0)
    for _ in range(2000):
        model.observe_decode(64, 64 * 700, DECODE_MS[0] + DECODE_MS[1] * 64 + DECODE_MS[2] * 64 * 700)
    assert model.decode_row_ms == pytest.approx(DECODE_MS[1], rel=0.1)


def test_measured_prefills_give_decode_its_scale_until_it_is_measured() -> None:
    model = CostModel()
    before = model.decode_step_ms(4.0, 1000.0) / model.prefill_ms(100.0, 100.0)
    model.observe_prefill(100, 100, 1500.0)
    after = model.decode_step_ms(4.0, 1000.0) / model.prefill_ms(100.0, 100.0)
    assert after == pytest.approx(before, rel=0.05)
    assert model.prefill_ms(100.0, 100.0) == pytest.approx(1500.0, rel=0.05)


def test_a_frozen_model_never_learns() -> None:
    model, untouched = CostModel(frozen=True), CostModel()
    for step in range(100):
        model.observe_decode(step + 1, step, 1000.0)
        model.observe_prefill(step + 1, step + 1, 1000.0)
    assert model.decode_step_ms(8.0, 100.0) == untouched.decode_step_ms(8.0, 100.0)
    assert (model.version, model.prefill_ms(8.0, 8.0)) == (0, untouched.prefill_ms(8.0, 8.0))


@pytest.mark.parametrize("ms", [float("nan"), float("inf"), 0.0, -1.0])
def test_times_that_cannot_be_are_ignored(ms: float) -> None:
    model = CostModel()
    model.observe_decode(4, 100, ms)
    assert model.version == 0


def test_arrays_and_numbers_agree() -> None:
    model = observed(noise=0.05, outliers=0.05)
    uncached, context = np.array([1.0, 50.0]), np.array([10.0, 700.0])
    assert model.prefill_ms(uncached, context).tolist() == [
        model.prefill_ms(1.0, 10.0),
        model.prefill_ms(50.0, 700.0),
    ]


def test_a_first_step_of_a_minute_ends_nothing() -> None:
    """Times whose normal equations are singular in float64."""
    cost = CostModel()
    cost.observe_prefill(30, 0, 45_000.0)
    cost.observe_prefill(8192, 38_917, 0.38)
    assert np.isfinite([cost.prefill_ms(100, 10), cost.prefill_fixed_ms]).all()
