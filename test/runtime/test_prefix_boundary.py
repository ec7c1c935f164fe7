"""One page of a prefix hit is given back, so that the token after the hit has an exact surprisal."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_entropic.runtime.prefix_boundary import give_back_boundary
from sgl_entropic.runtime.request_state import state_of

page_sizes = pytest.mark.parametrize("page_size", [1, 16])


def request(prefix_len: int, session: Any = None) -> Any:
    """A request that was just matched against the cache."""
    return SimpleNamespace(
        prefix_len=prefix_len,
        session=session,
        kv=SimpleNamespace(cache_protected_len=prefix_len),
        sampling_params=SimpleNamespace(custom_params=None),
    )


def tree(page_size: int, *, swa: bool = False, mamba: bool = False) -> Any:
    return SimpleNamespace(page_size=page_size, supports_swa=lambda: swa, supports_mamba=lambda: mamba)


@page_sizes
@given(pages=st.integers(1, 50))
def test_a_hit_is_shortened_by_exactly_one_page(page_size: int, pages: int) -> None:
    """Matches are whole pages; what is left is whole pages too, and the cache protects no more than that."""
    req = request(pages * page_size)
    give_back_boundary(req, tree(page_size))
    assert req.prefix_len == (pages - 1) * page_size
    assert req.kv.cache_protected_len == req.prefix_len
    assert state_of(req).boundary_given_back is True


@given(st.integers(1, 500))
def test_a_hit_that_ends_inside_a_page_falls_back_to_its_start(prefix_len: int) -> None:
    """At least one token is given back, at most a page, and what is left is whole pages."""
    req = request(prefix_len)
    give_back_boundary(req, tree(16))
    assert req.prefix_len % 16 == 0
    assert 1 <= prefix_len - req.prefix_len <= 16


@page_sizes
def test_no_hit_is_left_alone(page_size: int) -> None:
    req = request(0)
    give_back_boundary(req, tree(page_size))
    assert req.prefix_len == req.kv.cache_protected_len == 0
    assert state_of(req).boundary_given_back is False


@pytest.mark.parametrize(
    ("session", "swa", "mamba"), [(object(), False, False), (None, True, False), (None, False, True)]
)
def test_a_hit_that_cannot_be_shortened_is_left_alone(session: Any, *, swa: bool, mamba: bool) -> None:
    """Sessions and caches with further state keep the whole hit."""
    req = request(32, session)
    give_back_boundary(req, tree(16, swa=swa, mamba=mamba))
    assert req.prefix_len == req.kv.cache_protected_len == 32
    assert state_of(req).boundary_given_back is False


def test_a_new_match_makes_the_request_fresh_again() -> None:
    """After a retraction the request is matched anew, and what was known of the first match is void."""
    req = request(32)
    give_back_boundary(req, tree(16))
    state = state_of(req)
    state.fresh = False
    req.prefix_len = 0
    give_back_boundary(req, tree(16))
    assert state.fresh is True
    assert state.boundary_given_back is False
