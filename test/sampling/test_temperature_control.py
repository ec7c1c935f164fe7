"""Temperature as a controlled variable, against float64 entropies and Brent's method."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from sgl_entropic.feedback.stability import largest_gain
from sgl_entropic.sampling import temperature_control as module
from sgl_entropic.sampling.temperature_control import (
    EXACT,
    FIXED,
    FORCED_VARENTROPY,
    NEWTON,
    NEWTON_VARENTROPY_FLOOR,
    SOLVE_TOLERANCE_NATS,
    ControlRows,
    Solution,
    next_log_temperature,
    solve_log_temperature,
)

INF, NAN = math.inf, math.nan
ROUNDING_NATS = 2e-5  # float32 sums over up to 50,000 entries
VOCAB_SIZE = 49_152


def moments(row: np.ndarray, log_temperature: float) -> tuple[float, float]:
    """Entropy and varentropy of a tempered row, float64."""
    finite = np.asarray(row, dtype=np.float64)
    finite = (finite[finite > -INF] - finite.max()) / math.exp(log_temperature)
    log_p = finite - math.log(np.exp(finite).sum())
    p = np.exp(log_p)
    entropy = -float(p[p > 0.0] @ log_p[p > 0.0])
    return entropy, float(p[p > 0.0] @ (log_p[p > 0.0] + entropy) ** 2)


def control(
    targets: list[float],
    mode: int,
    *,
    gain: float = 0.1,
    bounds: tuple[float, float] = (-1.5, 1.5),
    controlled: bool = True,
    dtype: torch.dtype = torch.float32,
) -> ControlRows:
    count = len(targets)
    return ControlRows(
        torch.tensor(targets, dtype=dtype),
        torch.full((count,), gain, dtype=dtype),
        torch.full((count,), mode, dtype=torch.int64),
        torch.full((count,), bounds[0], dtype=dtype),
        torch.full((count,), bounds[1], dtype=dtype),
        torch.full((count,), controlled),
    )


def column(*values: float, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def bits(value: Tensor) -> list[int]:
    return value.view(torch.int32).tolist()


@st.composite
def rows(draw: st.DrawFn) -> np.ndarray:
    """One row of logits [V] float32: bell-shaped, laddered, tied, flat, of huge range; some of it illegal."""
    vocab_size = draw(st.integers(2, 300))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from(["bell", "ladder", "two levels", "power law", "huge", "flat"]))
    rank = np.arange(vocab_size)
    row = {
        "bell": lambda: generator.normal(size=vocab_size) * draw(st.floats(0.01, 30.0)),
        "ladder": lambda: -draw(st.floats(0.1, 20.0)) * np.floor(np.log10(rank + 1.0) * 3.0),
        "two levels": lambda: np.where(rank < draw(st.integers(1, 3)), draw(st.floats(0.0, 40.0)), 0.0),
        "power law": lambda: -draw(st.floats(0.2, 5.0)) * np.log(rank + 1.0),
        "huge": lambda: np.where(rank == 0, 0.0, -(10.0 ** generator.uniform(-3, 30, size=vocab_size))),
        "flat": lambda: np.zeros(vocab_size),
    }[kind]()
    row = np.asarray(row + draw(st.sampled_from([0.0, -300.0])), dtype=np.float32)
    row[generator.random(vocab_size) < draw(st.sampled_from([0.0, 0.0, 0.5]))] = -INF
    row[0] = max(row[0], np.float32(-300.0))
    return row


BOUNDS = st.tuples(st.floats(-4.6, 0.0), st.floats(0.0, 4.6))


def assert_solves(row: np.ndarray, target: float, bounds: tuple[float, float], start: float) -> None:
    """The answer has the target entropy, or is the bound next to it, or the row cannot be steered."""
    control_rows = control([target], EXACT, bounds=bounds)
    low, high = control_rows.min_log_temperature.item(), control_rows.max_log_temperature.item()
    target = control_rows.target_nats.item()
    solution = solve_log_temperature(torch.from_numpy(row)[None], control_rows, column(start))
    answer = solution.log_temperature.item()
    low_nats, high_nats = moments(row, low)[0], moments(row, high)[0]
    reach = high_nats - low_nats
    if reach < SOLVE_TOLERANCE_NATS - ROUNDING_NATS:
        assert answer == column(start).item()
        assert not solution.saturated.item()
    elif reach > SOLVE_TOLERANCE_NATS + ROUNDING_NATS:
        assert low <= answer <= high
        if target < low_nats - ROUNDING_NATS:
            assert (answer, solution.saturated.item()) == (low, True)
        elif target > high_nats + ROUNDING_NATS:
            assert (answer, solution.saturated.item()) == (high, True)
        elif low_nats + ROUNDING_NATS < target < high_nats - ROUNDING_NATS:
            truth = brentq(lambda u: moments(row, u)[0] - target, low, high)
            assert moments(row, answer)[0] == pytest.approx(
                moments(row, truth)[0], abs=SOLVE_TOLERANCE_NATS + ROUNDING_NATS
            )
            assert not solution.saturated.item()
    entropy_nats, varentropy = moments(row, answer)
    assert solution.entropy_nats.item() == pytest.approx(entropy_nats, rel=1e-5, abs=ROUNDING_NATS)
    assert solution.varentropy.item() == pytest.approx(varentropy, rel=1e-4, abs=1e-3)


# ------------------------------------------------------------------------------------------------- exact


@settings(max_examples=300)
@given(rows(), st.floats(0.0, 6.0), BOUNDS, st.floats(-1.0, 1.0))
def test_exact_mode_holds_the_target_or_the_nearest_bound(
    row: np.ndarray, target: float, bounds: tuple[float, float], start: float
) -> None:
    assert_solves(row, target, bounds, start)


@settings(max_examples=300)
@given(rows(), st.floats(0.0, 1.0), BOUNDS)
def test_exact_mode_finds_every_target_within_reach(
    row: np.ndarray, share: float, bounds: tuple[float, float]
) -> None:
    low_nats, high_nats = moments(row, bounds[0])[0], moments(row, bounds[1])[0]
    assert_solves(row, low_nats + share * (high_nats - low_nats), bounds, 0.0)


def whole_vocabulary() -> dict[str, np.ndarray]:
    """Rows of a real size: like a model's, and the steepest there are."""
    generator = np.random.default_rng(0)
    rank = np.arange(VOCAB_SIZE)
    model_like = generator.normal(size=VOCAB_SIZE) * 2.0
    model_like[:10] += np.linspace(22.0, 8.0, 10)
    return {
        "model-like": model_like,
        "steepest": np.where(rank == 0, 13.0, 0.0),
        "two candidates and a far tail": np.where(rank < 2, 0.0, -60.0) - 9.0 * (rank == 1),
        "three plateaus": -6.0 * np.floor(np.log10(rank + 1.0)),
        "one legal token": np.where(rank == 7, 1.0, -INF),
        "flat": np.zeros(VOCAB_SIZE),
    }


@pytest.mark.parametrize("share", [0.001, 0.3, 0.7, 0.999])
@pytest.mark.parametrize("bounds", [(-0.7, 0.7), (-4.6, 4.6)])
@pytest.mark.parametrize("name", whole_vocabulary())
def test_a_whole_vocabulary_is_solved(name: str, bounds: tuple[float, float], share: float) -> None:
    row = whole_vocabulary()[name].astype(np.float32)
    low_nats, high_nats = moments(row, bounds[0])[0], moments(row, bounds[1])[0]
    assert_solves(row, low_nats + share * (high_nats - low_nats), bounds, 0.1)


@pytest.mark.parametrize("half_range", [0.7, 1.5, 4.6])
def test_thousands_of_steep_rows_are_solved(half_range: float) -> None:
    """Plateaus with cliffs between them: what the number of steps was chosen for."""
    generator, count, vocab_size = np.random.default_rng(0), 3000, 100
    rank = np.arange(vocab_size)

    def uniform(low: float, high: float) -> np.ndarray:
        return generator.uniform(low, high, size=(count, 1))

    kinds = [
        -uniform(0.1, 30.0) * np.floor(np.log10(rank + 1.0) * uniform(1.0, 6.0)),
        generator.normal(size=(count, vocab_size)) ** 3 * uniform(0.1, 10.0),
        np.where(rank < uniform(1.0, 4.0), uniform(0.0, 60.0), 0.0)
        + np.where(rank < uniform(1.0, vocab_size), uniform(0.0, 30.0), 0.0),
    ]
    array = np.concatenate(kinds).astype(np.float32)
    ends = [np.array([moments(row, u)[0] for row in array]) for u in (-half_range, half_range)]
    targets = ends[0] + (ends[1] - ends[0]) * generator.uniform(0.001, 1.0, size=len(array)) ** 2
    wanted = control(targets.tolist(), EXACT, bounds=(-half_range, half_range))
    solution = solve_log_temperature(torch.from_numpy(array), wanted, torch.zeros(len(array)))
    answers = zip(array, solution.log_temperature.tolist(), strict=True)
    errors = np.abs([moments(row, u)[0] for row, u in answers] - targets)
    assert errors[ends[1] - ends[0] > 1.1 * SOLVE_TOLERANCE_NATS].max() < SOLVE_TOLERANCE_NATS


def test_the_temperature_is_that_of_brents_method() -> None:
    row = whole_vocabulary()["model-like"].astype(np.float32)
    truth = brentq(lambda u: moments(row, u)[0] - 1.5, -1.5, 1.5)
    solution = solve_log_temperature(torch.from_numpy(row)[None], control([1.5], EXACT), column(0.0))
    assert solution.log_temperature.item() == pytest.approx(truth, abs=1e-4)


def test_too_much_entropy_cools_and_too_little_heats_within_the_step() -> None:
    logits = torch.randn(1, 1000).expand(2, -1)
    nats = moments(logits[0].numpy(), 0.0)[0]
    solution = solve_log_temperature(logits, control([nats - 0.5, nats + 0.2], EXACT), torch.zeros(2))
    cooled, heated = solution.log_temperature.tolist()
    assert cooled < -0.05
    assert heated > 0.05


@given(rows(), st.lists(st.floats(0.0, 6.0), min_size=2, max_size=6), BOUNDS)
def test_a_higher_target_never_means_a_lower_temperature(
    row: np.ndarray, targets: list[float], bounds: tuple[float, float]
) -> None:
    # Closer than what the solution is exact to, two targets may come out in either order.
    targets = sorted({round(target / 0.003) * 0.003 for target in targets})
    logits = torch.from_numpy(row).expand(len(targets), -1)
    solution = solve_log_temperature(
        logits, control(targets, EXACT, bounds=bounds), torch.zeros(len(targets))
    )
    assert solution.log_temperature.diff().ge(0.0).all()


@given(rows(), st.floats(0.0, 6.0), st.floats(-1.0, 1.0), st.floats(-1.0, 1.0))
def test_what_was_solved_carries_no_history(row: np.ndarray, target: float, one: float, other: float) -> None:
    entropy_low, entropy_high = moments(row, -1.5)[0], moments(row, 1.5)[0]
    assume(entropy_high - entropy_low > 2.0 * SOLVE_TOLERANCE_NATS)
    logits = torch.from_numpy(row)[None]
    first, second = (
        solve_log_temperature(logits, control([target], EXACT), column(start)) for start in (one, other)
    )
    assert [bits(first[at]) for at in range(3)] == [bits(second[at]) for at in range(3)]


@pytest.mark.parametrize("mode", [FIXED, NEWTON, EXACT])
def test_rows_that_are_not_solved_keep_their_start_bit_for_bit_and_are_read(mode: int) -> None:
    logits = torch.randn(4, 500) * 3.0
    logits[3, 100:] = -INF
    start = column(0.123456789, -0.3, -INF, INF)
    wanted = control([1.0] * 4, mode, controlled=mode != EXACT)
    solution = solve_log_temperature(logits, wanted, start)
    assert bits(solution.log_temperature) == bits(start)
    assert not solution.saturated.any()
    for at in range(2):
        entropy_nats, varentropy = moments(logits[at].numpy(), start[at].item())
        assert solution.entropy_nats[at].item() == pytest.approx(entropy_nats, abs=ROUNDING_NATS)
        assert solution.varentropy[at].item() == pytest.approx(varentropy, abs=1e-3)
    assert solution.entropy_nats[2].item() == solution.varentropy[2].item() == 0.0  # greedy
    assert solution.entropy_nats[3].item() == pytest.approx(math.log(100.0))


def test_a_target_met_exactly_at_a_bound_is_met() -> None:
    logits = torch.randn(2, 100)
    bounds = column(-0.5, 0.5)
    reached = solve_log_temperature(logits, control([0.0] * 2, FIXED), bounds).entropy_nats
    wanted = control(reached.tolist(), EXACT, bounds=(-0.5, 0.5))
    solution = solve_log_temperature(logits, wanted, torch.zeros(2))
    assert torch.equal(solution.log_temperature, bounds)
    assert not solution.saturated.any()


def test_equal_bounds_leave_the_temperature_of_the_request() -> None:
    start = column(math.log(0.7))
    wanted = control([1.0], EXACT, bounds=(start.item(), start.item()))
    solution = solve_log_temperature(torch.randn(1, 100), wanted, start)
    assert bits(solution.log_temperature) == bits(start)


SPECIAL_ROWS = [
    [NAN, 0.0, 1.0],
    [-INF, -INF, -INF],
    [INF, 0.0, INF],
    [INF, -INF, NAN],
    [3e38, -3e38, 0.0],
    [1e-45, 0.0, -0.0],
    [0.0, -INF, -INF],
    [1e30, 1e30, -1e30],
    [1.0, 0.0, -2.0],
]


@pytest.mark.parametrize("target", [0.0, 0.4, 2.0, NAN, INF, -INF])
@pytest.mark.parametrize("bounds", [(-1.5, 1.5), (-60.0, 60.0)])
def test_nothing_but_numbers_leaves_the_solver(target: float, bounds: tuple[float, float]) -> None:
    logits = torch.tensor(SPECIAL_ROWS)
    before = logits.clone()
    wanted = control([target] * len(logits), EXACT, bounds=bounds)
    solution = solve_log_temperature(logits, wanted, torch.full((len(logits),), 0.25))
    assert torch.stack(solution[:3]).isfinite().all()
    assert solution.log_temperature.clamp(*bounds).equal(solution.log_temperature)
    if not math.isfinite(target):
        assert (solution.log_temperature == 0.25).all()
    for invalid in (0, 1, 3):
        assert solution.log_temperature[invalid] == 0.25
        assert solution.entropy_nats[invalid] == solution.varentropy[invalid] == 0.0
        assert not solution.saturated[invalid]
    assert solution.entropy_nats[2].item() == pytest.approx(math.log(2.0))
    assert torch.equal(logits.nan_to_num(7.0), before.nan_to_num(7.0))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("vocab_size", [33, 1003, VOCAB_SIZE - 1])
def test_a_row_alone_equals_the_row_in_a_batch_bit_for_bit(vocab_size: int, threads: int) -> None:
    logits = torch.randn(7, vocab_size) * torch.linspace(0.5, 6.0, 7).unsqueeze(1)
    wanted = control([1.0] * 7, EXACT)._replace(mode=torch.tensor([EXACT] * 5 + [FIXED, NEWTON]))
    start = torch.linspace(-0.5, 0.5, 7)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        batch = solve_log_temperature(logits, wanted, start)
        alone = [
            solve_log_temperature(logits[at], ControlRows(*(c[at] for c in wanted)), start[at])
            for at in (slice(at, at + 1) for at in range(7))
        ]
    finally:
        torch.set_num_threads(before)
    for one, other in zip(batch, (torch.cat(c) for c in zip(*alone, strict=True)), strict=True):
        assert torch.equal(one, other)


def test_blocks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, wanted = torch.randn(7, 50) * 3.0, control([1.0] * 7, EXACT)
    whole = solve_log_temperature(logits, wanted, torch.zeros(7))
    monkeypatch.setattr(module, "_BLOCK_ENTRIES_CPU", 100)
    blocked = solve_log_temperature(logits, wanted, torch.zeros(7))
    assert all(torch.equal(one, other) for one, other in zip(whole, blocked, strict=True))


def test_nothing_waits_for_the_device() -> None:
    with FakeTensorMode():  # refuses every operation whose outcome depends on the data
        wanted = control([1.0] * 4, EXACT)
        solution = solve_log_temperature(torch.randn(4, 100), wanted, torch.zeros(4))
        after = next_log_temperature(
            solution.log_temperature, wanted, *solution[1:3], torch.zeros(4, dtype=torch.bool)
        )
        assert after.shape == (4,)


def test_an_empty_batch_is_legal() -> None:
    solution = solve_log_temperature(torch.zeros(0, 10), control([], EXACT), torch.zeros(0))
    assert isinstance(solution, Solution)
    assert all(c.shape == (0,) for c in solution)


# ---------------------------------------------------------------------------------------------- feedback

NOT_FROZEN = torch.zeros(1, dtype=torch.bool)


def step(
    u: float, wanted: ControlRows, entropy_nats: float, varentropy: float, own_varentropy: float | None = None
) -> float:
    """One float64 step of one row."""
    own = None if own_varentropy is None else column(own_varentropy, dtype=torch.float64)
    readings = (column(value, dtype=torch.float64) for value in (entropy_nats, varentropy))
    return next_log_temperature(column(u, dtype=torch.float64), wanted, *readings, NOT_FROZEN, own).item()


def test_entropy_above_the_target_cools_and_below_it_heats() -> None:
    u = column(0.0, 0.0, 0.0, 0.0)
    wanted = control([2.0] * 4, FIXED)._replace(mode=torch.tensor([FIXED, FIXED, NEWTON, NEWTON]))
    after = next_log_temperature(
        u, wanted, column(3.0, 1.5, 3.0, 1.5), torch.full((4,), 4.0), NOT_FROZEN.expand(4)
    )
    torch.testing.assert_close(after, column(-0.1, 0.05, -0.025, 0.0125))


def test_newtons_step_divides_by_no_less_than_the_floor() -> None:
    wanted = control([1.0], NEWTON, dtype=torch.float64)
    assert step(0.0, wanted, 1.1, FORCED_VARENTROPY) == pytest.approx(-0.1 * 0.1 / NEWTON_VARENTROPY_FLOOR)


@given(
    st.floats(-1.5, 1.5), st.floats(0.0, 12.0), st.floats(0.0, 30.0), st.floats(0.0, 6.0), st.floats(0.0, 6.0)
)
@pytest.mark.parametrize("mode", [FIXED, NEWTON])
def test_a_higher_target_never_moves_the_temperature_lower(
    mode: int, u: float, entropy: float, varentropy: float, one: float, other: float
) -> None:
    low, high = sorted((one, other))
    assert step(u, control([low], mode, dtype=torch.float64), entropy, varentropy) <= step(
        u, control([high], mode, dtype=torch.float64), entropy, varentropy
    )


ANY = st.sampled_from([NAN, INF, -INF, 0.0, -0.0, 3e38, -3e38, 1e-40]) | st.floats(-50.0, 50.0, width=32)


@given(st.sampled_from([FIXED, NEWTON, EXACT]), st.floats(-1.5, 1.5, width=32), st.tuples(*[ANY] * 5))
def test_no_reading_drives_the_state_out_of_bounds(
    mode: int, u: float, readings: tuple[float, float, float, float, float]
) -> None:
    entropy, varentropy, own, target, gain = readings
    wanted = control([target], mode, gain=gain)
    for own_varentropy in (None, column(own)):
        after = next_log_temperature(
            column(u), wanted, column(entropy), column(varentropy), NOT_FROZEN, own_varentropy
        )
        assert -1.5 <= after.item() <= 1.5


def test_a_state_beyond_the_bounds_comes_back_in_one_step() -> None:
    for u, bound in ((9.0, 1.5), (-9.0, -1.5)):
        assert step(u, control([2.0], FIXED, dtype=torch.float64), 2.0, 1.0) == bound


@pytest.mark.parametrize("mode", [FIXED, NEWTON])
@pytest.mark.parametrize(
    "change",
    [
        {"frozen": True},
        {"controlled": False},
        {"mode": EXACT},
        {"varentropy": 0.9 * FORCED_VARENTROPY},
        {"varentropy": 5.0, "own_varentropy": 0.0},
        {"varentropy": NAN},
        {"entropy": NAN},
        {"entropy": INF},
        {"target": NAN},
        {"gain": NAN},
    ],
    ids=str,
)
def test_a_step_that_says_nothing_leaves_the_state_bit_for_bit(mode: int, change: dict[str, float]) -> None:
    def after(u: Tensor, values: dict[str, float]) -> Tensor:
        wanted = control(
            [values.get("target", 1.0)],
            int(values.get("mode", mode)),
            gain=values.get("gain", 0.1),
            controlled=bool(values.get("controlled", True)),
        )
        own = column(values["own_varentropy"]) if "own_varentropy" in values else None
        readings = column(values.get("entropy", 3.0)), column(values.get("varentropy", 2.0))
        return next_log_temperature(u, wanted, *readings, torch.tensor([bool(values.get("frozen", 0))]), own)

    for value in (0.123456789, -1.5, 9.0, -INF):  # out of bounds too: no step, no clamp
        u = column(value)
        assert bits(after(u, change)) == bits(u)
    assert bits(after(column(0.1), {})) != bits(column(0.1))


def test_no_integral_is_wound_up_while_tokens_are_forced() -> None:
    wanted, u = control([2.0], FIXED, dtype=torch.float64), 0.0
    for _ in range(1000):
        u = step(u, wanted, 1e-4, 1e-3)
    assert u == 0.0
    for _ in range(1000):
        u = step(u, wanted, 0.0, 1.0)
    assert u == 1.5
    assert step(u, wanted, 3.0, 1.0) == pytest.approx(1.4)  # and the first step back shows


def test_a_cold_state_is_not_mistaken_for_forced_tokens() -> None:
    """At T = 0.02 this row has no varentropy left; its own says that it can be steered."""
    row = np.array([2.0, 1.0, 0.5, 0.0])
    u = math.log(0.02)
    entropy, varentropy = moments(row, u)
    assert varentropy < FORCED_VARENTROPY < moments(row, 0.0)[1]
    wanted = control([1.0], FIXED, bounds=(u, 1.0), dtype=torch.float64)
    assert step(u, wanted, entropy, varentropy) == u
    assert step(u, wanted, entropy, varentropy, own_varentropy=moments(row, 0.0)[1]) > u


def slopes(row: np.ndarray, bounds: tuple[float, float]) -> tuple[float, float]:
    """Smallest and largest varentropy within bounds, with 2 % for what lies between the points of the grid."""
    values = [moments(row, u)[1] for u in np.linspace(*bounds, 400)]
    return 0.98 * min(values), 1.02 * max(values)


STEERABLE = st.builds(
    lambda size, seed, scale: np.random.default_rng(seed).normal(size=size) * scale,
    st.integers(3, 200),
    st.integers(0, 2**32),
    st.floats(0.3, 4.0),
)


@settings(max_examples=60)
@given(STEERABLE, st.floats(0.05, 0.95), st.floats(-1.0, 1.0), st.floats(0.02, 0.98))
def test_fixed_gains_below_the_limit_converge_from_any_start(
    row: np.ndarray, share: float, start: float, of_limit: float
) -> None:
    bounds = (-1.0, 1.0)
    low, high = (moments(row, u)[0] for u in bounds)
    target = low + share * (high - low)
    truth = brentq(lambda u: moments(row, u)[0] - target, *bounds, xtol=1e-14)
    gain = of_limit * largest_gain("fixed", len(row))
    smallest, largest = slopes(row, bounds)
    factor = max(abs(1.0 - gain * smallest), abs(1.0 - gain * largest))
    assert factor < 1.0
    wanted, u = control([target], FIXED, gain=gain, bounds=bounds, dtype=torch.float64), start
    for _ in range(30):
        before, u = u, step(u, wanted, *moments(row, u), own_varentropy=1.0)
        assert abs(u - truth) <= factor * abs(before - truth) + 1e-11


@settings(max_examples=60)
@given(STEERABLE, st.floats(0.05, 0.95), st.floats(-1.0, 1.0), st.floats(0.02, 0.98))
def test_newton_converges_from_any_start_below_twice_the_ratio_of_its_slopes(
    row: np.ndarray, share: float, start: float, of_limit: float
) -> None:
    bounds = (-1.0, 1.0)
    low, high = (moments(row, u)[0] for u in bounds)
    target = low + share * (high - low)
    truth = brentq(lambda u: moments(row, u)[0] - target, *bounds, xtol=1e-14)
    smallest, largest = slopes(row, bounds)
    floored = max(smallest, NEWTON_VARENTROPY_FLOOR), max(largest, NEWTON_VARENTROPY_FLOOR)
    gain = of_limit * 2.0 * floored[0] / largest
    factor = max(abs(1.0 - gain * smallest / floored[1]), abs(1.0 - gain * largest / floored[0]))
    wanted, u = control([target], NEWTON, gain=gain, bounds=bounds, dtype=torch.float64), start
    for _ in range(30):
        before, u = u, step(u, wanted, *moments(row, u), own_varentropy=1.0)
        assert abs(u - truth) <= factor * abs(before - truth) + 1e-10


@given(STEERABLE, st.floats(0.05, 1.95))
def test_newtons_error_shrinks_by_one_minus_gain_close_to_the_target(row: np.ndarray, gain: float) -> None:
    target, varentropy = moments(row, 0.0)
    assume(varentropy > 2.0 * NEWTON_VARENTROPY_FLOOR)
    wanted = control([target], NEWTON, gain=gain, dtype=torch.float64)
    after = step(1e-5, wanted, *moments(row, 1e-5))
    assert after / 1e-5 == pytest.approx(1.0 - gain, abs=1e-3)


def test_newton_may_cycle_between_its_bounds_where_a_fixed_gain_converges() -> None:
    """Both ends of a steep row are flat, and the tangent of a flat end points past the other one."""
    row = np.where(np.arange(1000) == 0, 9.0, 0.0)
    bounds = (-1.5, 1.5)
    target = moments(row, 0.0)[0]
    path = {}
    for mode, gain in ((NEWTON, 1.0), (FIXED, 0.1)):
        wanted = control([target], mode, gain=gain, bounds=bounds, dtype=torch.float64)
        u, path[mode] = 1.5, []
        for _ in range(300):
            u = step(u, wanted, *moments(row, u), own_varentropy=1.0)
            path[mode].append(u)
    assert path[NEWTON][-4:] == [-1.5, 1.5, -1.5, 1.5]
    assert path[FIXED][-1] == pytest.approx(0.0, abs=1e-6)
