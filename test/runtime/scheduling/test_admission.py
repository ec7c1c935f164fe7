"""What running requests keep free."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sgl_entropic.runtime.scheduling.admission import shares


def running(limits: list[int]) -> list[Any]:
    return [
        SimpleNamespace(rid=str(at), output_ids=[], sampling_params=SimpleNamespace(max_new_tokens=limit))
        for at, limit in enumerate(limits)
    ]


@given(st.lists(st.integers(0, 5000), max_size=20), st.integers(0, 100_000))
def test_the_shares_keep_the_peak_free_and_little_more(limits: list[int], peak: int) -> None:
    """Each is what SGLang takes back when it preempts that request, so none may be negative."""
    seat: Any = SimpleNamespace(reserved_tokens=lambda *_: min(peak, sum(limits)))
    found = shares(seat, running(limits))
    assert all(share >= 0 for share in found.values())
    assert min(peak, sum(limits)) <= sum(found.values()) <= min(peak, sum(limits)) + len(limits)
    assert all(found[str(at)] <= limit for at, limit in enumerate(limits))
