"""Completion times against a simulation token by token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_entropic.scheduling.completion import StepCost, completion_ms


def brute_completion_ms(lengths: list[int], at_once: int, fixed_ms: float, row_ms: float) -> list[float]:
    left, clock_ms, ends = list(lengths), 0.0, [0.0] * len(lengths)
    while any(left):
        rows = [index for index, tokens in enumerate(left) if tokens][:at_once]
        clock_ms += fixed_ms + row_ms * len(rows)
        for index in rows:
            left[index] -= 1
            if not left[index]:
                ends[index] = clock_ms
    return ends


@given(st.lists(st.integers(1, 30), min_size=1, max_size=10), st.integers(1, 10), st.integers(0, 10))
def test_the_sum_of_completions_is_that_of_a_simulation(
    lengths: list[int], at_once: int, running: int
) -> None:
    ends = brute_completion_ms(lengths, at_once, 3.0, 1.5)
    expected = sum(ends[:running]) + 2.5 * sum(ends[running:])
    floats = [float(length) for length in lengths]
    assert completion_ms(floats, at_once, StepCost(3.0, 1.5), running=running, weight=2.5) == pytest.approx(
        expected
    )
