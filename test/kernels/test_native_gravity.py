"""The compiled gravity against its definition over whole sequences, and what it refuses."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sgl_entropic_kernels.native import library


def unit(vector: Any) -> Any:
    norm = np.linalg.norm(vector)
    return vector / norm if norm > 0 else vector * 0


class Requests:
    """Requests of the kernel, and all that each of them was told, for the truth in float64."""

    def __init__(self, places: int, window: int, top_k: int, size: int, decay: float, mean: Any) -> None:
        self.ring = np.zeros((places, window, size), np.float32)
        self.centre = np.zeros((places, size), np.float32)
        self.seen = np.zeros(places, np.int64)
        self.window, self.top_k, self.decay, self.mean = window, top_k, decay, mean
        self.past: list[list[Any]] = [[] for _ in range(places)]
        self.centres: list[Any] = [None] * places

    def step(self, hidden: Any, places: Any) -> Any:
        scores = np.full((2, len(places)), 7.0, np.float32)
        library().gravity(
            hidden, self.mean, places, self.ring, self.centre, self.seen, self.top_k, self.decay, scores
        )
        return scores

    def truth(self, hidden: Any, place: int) -> tuple[float, float]:
        shifted = hidden.astype(np.float64) - self.mean
        own = unit(shifted) if np.isfinite(shifted).all() else shifted * 0
        past, centre = self.past[place], self.centres[place]
        gravity = 0.0
        if len(past) >= self.window:
            cosines = sorted((float(own @ other) for other in past[-self.window :]), reverse=True)
            gravity = sum(cosines[: self.top_k]) / self.top_k
        energy = math.nan if centre is None else 1.0 - float(own @ unit(centre))
        self.centres[place] = own if centre is None else self.decay * centre + (1 - self.decay) * own
        past.append(own)
        return gravity, energy


@given(
    st.integers(1, 9),
    st.integers(1, 9),
    st.sampled_from([1, 5, 16, 37, 576]),
    # A centre of hundredths of hundredths is still a float after 14 steps of zero vectors; smaller decays leave nothing of it.
    st.just(0.0) | st.floats(0.01, 0.99),
    st.integers(0, 2**31),
)
@example(window=1, top_k=1, size=1, decay=0.01, seed=172)
def test_it_is_what_the_definition_says(window: int, top_k: int, size: int, decay: float, seed: int) -> None:
    """Many requests, some in each step, some zero vectors; the mean is large against the differences."""
    random = np.random.default_rng(seed)
    mean = (5 * random.normal(size=size)).astype(np.float32)
    requests = Requests(6, window, min(top_k, window), size, decay, mean)
    for _ in range(14):
        places = random.permutation(6)[: random.integers(0, 7)]
        hidden = (random.normal(size=(len(places), size)) + mean).astype(np.float32)
        hidden[random.random(len(places)) < 0.1] = mean
        scores = requests.step(hidden, places)
        for row, place in enumerate(places):
            gravity, energy = requests.truth(hidden[row], place)
            assert scores[0, row] == pytest.approx(gravity, abs=2e-5)
            assert scores[1, row] == pytest.approx(energy, abs=2e-4, nan_ok=True)


def test_a_request_reads_the_same_alone_and_in_a_crowd() -> None:
    """Bit for bit."""
    random = np.random.default_rng(0)
    mean = np.zeros(100, np.float32)
    crowd, alone = (Requests(5, 4, 3, 100, 0.9, mean) for _ in range(2))
    for _ in range(9):
        hidden = random.normal(size=(5, 100)).astype(np.float32)
        together = crowd.step(hidden, np.array([3, 0, 4, 1, 2]))
        single = alone.step(hidden[2:3], np.array([4]))
        np.testing.assert_array_equal(together[:, 2], single[:, 0])


@pytest.mark.parametrize("scale", [1e-30, 1e-15, 1e15, 1e30])
def test_the_scale_of_the_states_does_not_matter(scale: float) -> None:
    """Nor where their squares are no floats."""
    random = np.random.default_rng(1)
    requests = Requests(1, 2, 2, 37, 0.5, np.zeros(37, np.float32))
    for _ in range(5):
        hidden = (scale * random.normal(size=(1, 37))).astype(np.float32)
        scores = requests.step(hidden, np.array([0]))[:, 0]
        assert scores == pytest.approx(requests.truth(hidden[0], 0), abs=2e-5, nan_ok=True)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_state_that_is_not_finite_spoils_no_other(value: float) -> None:
    requests = Requests(1, 2, 2, 4, 0.5, np.zeros(4, np.float32))
    place, good = np.array([0]), np.ones((1, 4), np.float32)
    for _ in range(3):
        requests.step(good, place)
    bad = good.copy()
    bad[0, 1] = value
    assert np.isnan(requests.step(bad, place)).all()
    after = [requests.step(good, place)[:, 0] for _ in range(3)]
    # The bad one counts as a zero vector, whose cosines are 0, for as long as it is in the window.
    assert [gravity for gravity, _ in after] == pytest.approx([0.5, 0.5, 1.0])
    assert all(np.isfinite(energy) for _, energy in after)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mean": np.zeros(3, np.float32)}, r"mean must be \[n\]"),
        ({"places": np.array([0, 1])}, r"places must be \[rows\]"),
        ({"places": np.array([2])}, r"places\[0\] is 2; accepted: 0 to 1"),
        ({"places": np.array([-1])}, "accepted: 0 to 1"),
        ({"ring": np.zeros((2, 3, 5), np.float32)}, r"ring must be \[places, window, n\]"),
        ({"ring": np.zeros((2, 0, 4), np.float32)}, "ring must be"),
        ({"centre": np.zeros((1, 4), np.float32)}, r"centre must be \[places, n\]"),
        ({"seen": np.zeros(3, np.int64)}, r"seen must be \[places\]"),
        ({"seen": np.array([-1, 0])}, "seen must not be negative"),
        ({"top_k": 0}, "top_k must be between 1 and the window"),
        ({"top_k": 4}, "top_k must be between 1 and the window"),
        ({"decay": 1.5}, "decay must be between 0 and 1"),
        ({"decay": math.nan}, "decay must be between 0 and 1"),
        ({"scores": np.zeros((1, 1), np.float32)}, r"scores must be \[2, rows\]"),
        ({"hidden": np.zeros((1, 0), np.float32), "mean": np.zeros(0, np.float32)}, "at least one column"),
    ],
)
def test_it_refuses_what_does_not_fit(native: ModuleType, change: dict[str, Any], message: str) -> None:
    given = {
        "hidden": np.zeros((1, 4), np.float32),
        "mean": np.zeros(4, np.float32),
        "places": np.array([0]),
        "ring": np.zeros((2, 3, 4), np.float32),
        "centre": np.zeros((2, 4), np.float32),
        "seen": np.zeros(2, np.int64),
        "top_k": 2,
        "decay": 0.9,
        "scores": np.zeros((2, 1), np.float32),
    }
    with pytest.raises(ValueError, match=message):
        native.gravity(**(given | change))


def test_what_it_writes_may_not_overlap(native: ModuleType) -> None:
    memory = np.zeros((2, 3, 4), np.float32)
    with pytest.raises(ValueError, match="overlap"):
        native.gravity(
            np.zeros((1, 4), np.float32),
            np.zeros(4, np.float32),
            np.array([0]),
            memory,
            memory.reshape(6, 4)[:2],
            np.zeros(2, np.int64),
            2,
            0.9,
            np.zeros((2, 1), np.float32),
        )
