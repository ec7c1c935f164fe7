"""What little evidence says, and what much says."""

from __future__ import annotations

import numpy as np
import pytest

from sgl_entropic.eviction.groups import FACTS_OF_GROUP, GROUPS
from sgl_entropic.eviction.hazards import hazards
from sgl_entropic.eviction.returns import AGES


def test_nothing_learnt_is_the_prior_everywhere() -> None:
    found = hazards(np.zeros((GROUPS, AGES)), np.zeros((GROUPS, AGES)), 50.0, 10.0)
    assert found[:, 0] == pytest.approx(0.2)
    assert found[:, 1:] == pytest.approx(0.1)


def test_much_evidence_overrules_the_prior() -> None:
    exposed, returned = np.zeros((GROUPS, AGES)), np.zeros((GROUPS, AGES))
    exposed[3], returned[3] = 1e7, 4e6
    exposed[4], returned[4] = 1e7, 1e5
    found = hazards(exposed, returned, 50.0, 10.0)
    assert found[3] == pytest.approx(0.4, rel=0.01)
    assert found[4] == pytest.approx(0.01, rel=0.01)


def test_a_group_without_evidence_inherits_from_those_that_share_its_facts() -> None:
    """Many new tokens seldom return in every group seen, so neither in the one not seen."""
    new = FACTS_OF_GROUP[1]
    exposed = np.full((GROUPS, AGES), 1000.0)
    returned = np.where(new == 3, 20.0, 200.0)[:, None] * np.ones((1, AGES))
    unseen = int(np.flatnonzero(new == 3)[0])
    exposed[unseen] = returned[unseen] = 0.0
    assert hazards(exposed, returned, 50.0, 10.0)[unseen] == pytest.approx(0.02, rel=0.3)
