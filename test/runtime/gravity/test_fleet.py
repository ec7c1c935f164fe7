"""The share of running requests in strong gravity."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from sgl_entropic.gravity.settings import Tier
from sgl_entropic.runtime import gravity
from sgl_entropic.runtime.gravity import fleet


@pytest.fixture(autouse=True)
def _off_again() -> Iterator[None]:
    yield
    fleet.install(None)


def test_it_is_nothing_where_gravity_is_off() -> None:
    assert gravity.fleet_share() == 0.0


def test_it_follows_the_tiers_of_the_moment() -> None:
    tiers: list[Tier] = []
    fleet.install(lambda: tiers)
    assert gravity.fleet_share() == 0.0
    tiers += ["strong", "weak", "medium", "strong"]
    assert gravity.fleet_share() == 0.5


def request(*, finished: bool = False) -> Any:
    return SimpleNamespace(finished=lambda: finished)


@pytest.mark.parametrize("extend", [True, False])
def test_who_runs(*, extend: bool) -> None:
    """Those that decode, and those whose prompt is just computed; who has finished does not run."""
    old, new, both, done = request(), request(), request(), request(finished=True)
    mode = SimpleNamespace(is_extend=lambda: extend)
    scheduler = SimpleNamespace(
        running_batch=SimpleNamespace(reqs=[old, both, done]),
        last_batch=SimpleNamespace(reqs=[both, new, done], forward_mode=mode),
    )
    assert fleet.running(scheduler) == ([old, both, new] if extend else [old, both])
    scheduler.last_batch = None
    assert fleet.running(scheduler) == [old, both]
