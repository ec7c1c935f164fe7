"""Compares the compiled drawing with its float64 definition; NumPy only."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np
from kernel_checks import check_close, check_same_bits, generator
from numpy.typing import NDArray

from sgl_entropic_kernels import reference, reference_sampling
from sgl_entropic_kernels.reference_sampling import Cut

Array = NDArray[Any]
NEAR = 1e-5  # of the mass: nearer to a boundary, float32 may fall on either side


def rows_of(kind: str, rows: int, n: int, seed: int) -> NDArray[np.float32]:
    """Logits ``[rows, n]``: like a model's, flat, with ties, masked (half the vocabulary illegal), or of a huge range."""
    rng = generator(seed)
    logits = rng.standard_normal((rows, n)) * 3
    if kind == "flat":
        logits *= 0.0
    elif kind == "ties":
        logits = np.round(logits)
    elif kind == "masked":
        illegal = rng.random((rows, n)) < 0.5
        illegal[np.arange(rows), rng.integers(0, n, rows)] = False
        logits[illegal] = -np.inf
    elif kind == "huge":
        logits *= 1e4
    return logits.astype(np.float32)


KINDS = ("model", "flat", "ties", "masked", "huge")


def draw(
    native: ModuleType,
    logits: Array,
    cuts: list[Cut],
    uniforms: Array,
    own: Array | None = None,
    *steering: Array,
) -> tuple[Array, Array]:
    """Tokens and readings of the compiled function; ``steering``: controls, places, state and room for what is steered."""
    rows = len(cuts)
    tokens, readings = np.full(rows, -1, np.int32), np.full((5, rows), np.nan, np.float32)
    column = {name: [getattr(cut, name) for cut in cuts] for name in Cut._fields}
    native.draw(
        logits,
        np.array(column["temperature"], np.float32),
        np.array(column["top_k"], np.int32),
        np.array(column["top_p"], np.float32),
        np.array(column["min_p"], np.float32),
        np.asarray(uniforms, np.float64),
        tokens,
        readings,
        own,
        *steering,
    )
    return tokens, readings


def check_draw(native: ModuleType, kind: str, cuts: list[Cut], n: int, seed: int) -> None:
    """Tokens are the definition's, but at a boundary; readings are those of the tempered and the plain distribution."""
    logits = rows_of(kind, len(cuts), n, seed)
    uniforms = generator(seed + 1).random(len(cuts))
    tokens, readings = draw(native, logits, cuts, uniforms)
    for row, cut, uniform, token, reading in zip(
        logits, cuts, uniforms, tokens.tolist(), readings.T.tolist(), strict=True
    ):
        _check_token(row, cut, float(uniform), token)
        own = reference.one_row(row)
        sampled = reference.one_row(row, float(np.float32(cut.temperature)))
        check_close(
            np.array(reading[:2]), np.array([own.entropy_nats, own.varentropy]), _size(own.varentropy)
        )
        # A logit's own place among floats is what the surprisal can know.
        place = float(np.spacing(np.abs(row[np.isfinite(row)]).max(initial=1.0)))
        check_close(np.array(reading[2]), np.array(reference.surprisal(row, token)), 1e-5 * 20 + 4 * place)
        truth = (0.0, 0.0) if cut.top_k == 1 else (sampled.entropy_nats, sampled.varentropy)
        check_close(np.array(reading[3:]), np.array(truth), _size(sampled.varentropy))


def _size(varentropy: float) -> float:
    return 3e-5 * (1 + varentropy)


def _check_token(row: Array, cut: Cut, uniform: float, token: int) -> None:
    if cut.top_k == 1:
        assert token == int(np.argmax(row))
        return
    accepted = {
        reference_sampling.draw(row, cut, min(max(uniform + d, 0.0), 1.0)) for d in (-NEAR, 0.0, NEAR)
    }
    # A cut that falls near a token's mass may keep one more or one less.
    for p, m in ((NEAR, -NEAR), (-NEAR, NEAR)):
        other = cut._replace(
            top_p=min(1.0, max(1e-12, cut.top_p + p)) if cut.top_p < 1 else 1.0,
            min_p=min(1.0, max(0.0, cut.min_p + m)) if cut.min_p else 0.0,
        )
        accepted |= {
            reference_sampling.draw(row, other, min(max(uniform + d, 0.0), 1.0)) for d in (-NEAR, 0.0, NEAR)
        }
    # Tokens of one weight may change places where exponentials of other logits round to it.
    weights = reference_sampling.probabilities(row, cut.temperature)
    assert weights[token] > 0
    assert token in accepted or any(
        math.isclose(weights[token], weights[a], rel_tol=1e-5) for a in accepted
    ), (
        cut,
        uniform,
        token,
        accepted,
    )


def check_rows_do_not_matter(native: ModuleType, kind: str, cuts: list[Cut], n: int, seed: int) -> None:
    """A row alone is the row in a batch, bit for bit."""
    logits = rows_of(kind, len(cuts), n, seed)
    uniforms = generator(seed + 1).random(len(cuts))
    tokens, readings = draw(native, logits, cuts, uniforms)
    targets = generator(seed + 2).random(len(cuts)).astype(np.float32) * 5
    solved = solve(native, logits, targets, -1.0, 1.0)
    for r, cut in enumerate(cuts):
        token, reading = draw(native, logits[r : r + 1], [cut], uniforms[r : r + 1])
        check_same_bits(token, tokens[r : r + 1])
        check_same_bits(reading, np.ascontiguousarray(readings[:, r : r + 1]))
        alone = solve(native, logits[r : r + 1], targets[r : r + 1], -1.0, 1.0)
        check_same_bits(alone, np.ascontiguousarray(solved[:, r : r + 1]))


def solve(native: ModuleType, logits: Array, targets: Array, lowest: float, highest: float) -> Array:
    results = np.full((3, len(logits)), np.nan, np.float32)
    ends = np.full(len(logits), lowest, np.float32), np.full(len(logits), highest, np.float32)
    starts = np.zeros(len(logits), np.float32)
    native.solve_temperature(logits, np.asarray(targets, np.float32), starts, *ends, results)
    return results


def check_solve(
    native: ModuleType, kind: str, rows: int, n: int, ends: tuple[float, float], seed: int
) -> None:
    """The entropy is the target's, or the nearest that the ends allow; what is reported is what is there."""
    logits = rows_of(kind, rows, n, seed)
    targets = (generator(seed + 3).random(rows) * (math.log(n) + 0.5)).astype(np.float32)
    found = solve(native, logits, targets, *ends)
    for row, target, (u, entropy, varentropy) in zip(logits, targets.tolist(), found.T.tolist(), strict=True):
        assert np.float32(ends[0]) <= u <= np.float32(ends[1])
        truth = reference.one_row(row, math.exp(u))
        check_close(
            np.array([entropy, varentropy]),
            np.array([truth.entropy_nats, truth.varentropy]),
            _size(truth.varentropy),
        )
        low, high = (reference_sampling.entropy_at(row, float(np.float32(end))) for end in ends)
        wanted = min(max(target, low), high)
        # A float32 ln T moves the entropy by as much as its varentropy says.
        assert abs(truth.entropy_nats - wanted) <= 5e-4 + 1e-6 * truth.varentropy, (
            u,
            truth.entropy_nats,
            wanted,
        )


MODES = {"off": -1, "fixed": 0, "newton": 1, "exact": 2}


def steer(
    native: ModuleType,
    logits: Array,
    cuts: list[Cut],
    uniforms: Array,
    controls: Array,
    places: Array,
    state: Array,
) -> tuple[Array, Array, Array]:
    """Tokens, readings and what was steered; ``state`` is written."""
    steered = np.full((4, len(cuts)), np.nan, np.float32)
    given = controls.astype(np.float32), places.astype(np.int64), state, steered
    return *draw(native, logits, cuts, uniforms, None, *given), steered


def check_steer(native: ModuleType, kind: str, cuts: list[Cut], modes: list[str], n: int, seed: int) -> None:
    """Temperatures are the law's, from float64 entropies; the token is drawn at them; rows not steered keep their bits."""
    rng, rows = generator(seed + 5), len(cuts)
    logits = rows_of(kind, rows, n, seed)
    uniforms = generator(seed + 1).random(rows)
    targets = (rng.random(rows) * (math.log(n) + 0.5)).astype(np.float32)
    gains = (rng.random(rows) * 0.5).astype(np.float32)
    controls = np.stack(
        (targets, gains, [MODES[mode] for mode in modes], np.full(rows, -0.7), np.full(rows, 0.7))
    ).astype(np.float32)
    places = rng.permutation(rows + 3)[:rows]
    own = np.log(np.array([cut.temperature for cut in cuts], np.float32))
    state = np.zeros((2, rows + 3), np.float32)
    state[0, places] = own + (rng.random(rows).astype(np.float32) - 0.5)
    before = state.copy()
    # A target of NaN is the one that lies in the state.
    state[1, places[0]], controls[0, 0] = targets[0], np.nan
    plain_tokens, plain_readings = draw(native, logits, cuts, uniforms)
    tokens, readings, steered = steer(native, logits, cuts, uniforms, controls, places, state)
    for r, (row, cut, mode) in enumerate(zip(logits, cuts, modes, strict=True)):
        used, following, saturated, target = steered[:, r].tolist()
        place = places[r]
        if mode == "off" or cut.top_k == 1:
            check_same_bits(tokens[r : r + 1], plain_tokens[r : r + 1])
            check_same_bits(np.ascontiguousarray(readings[:, r]), np.ascontiguousarray(plain_readings[:, r]))
            assert state[0, place] == before[0, place]
            assert saturated == 0.0
            continue
        assert target == targets[r]
        low, high = float(own[r] - np.float32(0.7)), float(own[r] + np.float32(0.7))
        at = reference.one_row(row, math.exp(used))
        check_close(readings[3:, r], np.array([at.entropy_nats, at.varentropy]), _size(at.varentropy))
        _check_token(row, cut._replace(temperature=math.exp(used)), float(uniforms[r]), int(tokens[r]))
        if mode == "exact":
            wanted = min(
                max(target, reference_sampling.entropy_at(row, low)), reference_sampling.entropy_at(row, high)
            )
            assert abs(at.entropy_nats - wanted) <= 1e-3 + 1e-6 * at.varentropy
            assert low - 1e-6 <= used <= high + 1e-6
            assert following == used == state[0, place]
            continue
        assert used == before[0, place]
        slope = max(at.varentropy, 0.1) if mode == "newton" else 1.0
        expected = min(max(used - float(gains[r]) * (at.entropy_nats - target) / slope, low), high)
        if reference.one_row(row).varentropy < 0.0099:
            expected = used
        elif reference.one_row(row).varentropy < 0.0101:
            continue
        assert abs(following - expected) <= 1e-4 * (1 + at.varentropy)
        assert following == state[0, place]
