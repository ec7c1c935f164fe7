"""Facts and groups are two names for the same."""

from __future__ import annotations

from itertools import product

import pytest

from sgl_entropic.eviction.groups import FACTS_OF_GROUP, GROUPS, LEVELS, Touch, group_of, turn_of


def test_groups_and_their_levels_agree() -> None:
    tokens = (512, 1536, 7680, 100_000)
    seen = set()
    for cut, new, hits, shared, turn in product(*map(range, LEVELS)):
        group = group_of(Touch(bool(cut), tokens[new], hits, 1 + shared, turn))
        assert FACTS_OF_GROUP[:, group].tolist() == [cut, new, hits, shared, turn]
        seen.add(group)
    assert seen == set(range(GROUPS))


def test_many_hits_are_one_level() -> None:
    assert group_of(Touch(False, 1, 3, 0, 0)) == group_of(Touch(False, 1, 3000, 0, 0))


@pytest.mark.parametrize(
    ("hits", "continuations", "turn"), [(0, 0, 0), (1, 1, 1), (9, 2, 3), (4000, 3000, 0)]
)
def test_a_prefix_of_everybody_is_nobodys_turn(hits, continuations, turn) -> None:
    assert turn_of(hits, continuations) == turn
