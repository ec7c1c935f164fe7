"""A plan says what a decode step reads, is in force for one forward pass, and may not be ignored."""

from __future__ import annotations

import numpy as np
import pytest

from sgl_entropic.attention.pruning import Reading
from sgl_entropic.attention.selection import QueryChoice, Selection
from sgl_entropic.errors import SeamError
from sgl_entropic.runtime.attention.step_plan import StepPlan
from sgl_entropic.runtime.gpu.plan import GpuPlan, current, published

HALF = Selection(np.array([[True, False]]), 32)
PLAN = GpuPlan((HALF, None), (40, 7), 16)


@pytest.mark.parametrize(
    ("selections", "lengths", "said"),
    [
        ((HALF,), (40, 7), "1 selections for 2 rows"),
        ((Selection(np.ones((2, 2), np.bool_), 32),), (40,), "row 0: 2 layers; FlashInfer has one list"),
        ((None, Selection(np.ones((1, 2), np.bool_), 16)), (1, 40), "row 1: 2 blocks of 16 tokens, but"),
        ((HALF,), (32,), "row 0: the newest token, 31, is read always"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(
    selections: tuple[Selection | None, ...], lengths: tuple[int, ...], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        GpuPlan(selections, lengths, 16)


def test_the_plan_of_a_step_says_it_to_flashinfer() -> None:
    readings = [None, Reading(HALF, "kept"), Reading(None, "spike")]
    plan = GpuPlan.of(StepPlan(16, [7, 40, 99], readings, [None] * 3))
    assert plan == GpuPlan((None, HALF, None), (7, 40, 99), 16)
    assert plan.selections[1] is HALF


def test_a_choice_by_the_query_is_refused() -> None:
    choice = QueryChoice(2, 1, 1, 0, np.zeros(2, np.float32))
    with pytest.raises(TypeError, match="row 0: only kernels of the CPU platform choose blocks by the query"):
        GpuPlan.of(StepPlan(16, [40], [Reading(choice, "kept")], [None]))


def test_a_plan_is_in_force_inside_and_nowhere_else() -> None:
    assert current() is None
    with published(PLAN) as step:
        assert current() is step
        assert (step.plan, step.asked, step.used) == (PLAN, False, False)
        with published(None):
            assert current() is None
        assert current() is step
        step.asked = True
    assert current() is None


@pytest.mark.parametrize("plan", [None, GpuPlan((), (), 16), GpuPlan((None, None), (3, 4), 16)])
def test_a_plan_that_leaves_nothing_out_is_none(plan: GpuPlan | None) -> None:
    """The step goes SGLang's way, bit for bit, and nobody has to ask."""
    with published(plan) as step:
        assert current() is None
    assert step.plan is None


def test_a_plan_that_nobody_asked_for_is_an_error() -> None:
    with pytest.raises(SeamError, match=r"without asking.*--entropic-attention off"), published(PLAN):
        pass
    assert current() is None


def test_a_step_that_failed_fails_with_its_own_error() -> None:
    with pytest.raises(KeyError, match="of the forward pass"), published(PLAN):
        raise KeyError("of the forward pass")
    assert current() is None
