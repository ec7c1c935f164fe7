"""What other extensions may carry: the promise of SGLang's own type, with bounds."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from sgl_entropic.errors import RequestParameterError
from sgl_entropic.request_params import (
    MAX_ITEMS,
    MAX_KEY_CHARACTERS,
    MAX_TEXT_BYTES,
    RequestParams,
    parse_custom_params,
)
from sgl_entropic.request_params.carried import check_carried


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        2**63 - 1,
        -(2**63),
        1e308,
        "",
        "ü" * (MAX_TEXT_BYTES // 2),
        [],
        list(range(MAX_ITEMS)),
        [None, True, 1, 1.5, "x"],
        {},
        {"k" * MAX_KEY_CHARACTERS: 1, "": "x"},
    ],
    ids=lambda value: type(value).__name__,
)
def test_up_to_the_bounds_it_passes_unchanged(value: Any) -> None:
    custom_params = {"mine": value}
    before = copy.deepcopy(custom_params)
    assert parse_custom_params(custom_params) == RequestParams()
    assert custom_params == before


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (2**63, "mine = 9223372036854775808 is not accepted; expected an integer from -9223372036854775808"),
        (-(2**63) - 1, "mine = -9223372036854775809 is not accepted"),
        (10**5000, "mine = int of thousands of digits is not accepted; expected an integer from"),
        ("ü" * (MAX_TEXT_BYTES // 2) + "x", "expected at most 65536 bytes of text, not 65537"),
        ("a\udfffb", r"mine = 'a\udfffb' is not accepted; expected text that UTF-8 can encode"),
        (list(range(MAX_ITEMS + 1)), "mine has 65537 items; expected at most 65536"),
        ({str(number): 0 for number in range(MAX_ITEMS + 1)}, "mine has 65537 items; expected at most 65536"),
        ([1, float("-inf")], "mine[1] = -inf is not accepted; expected a finite number"),
        ([1, [2]], "mine[1] = [2] is not accepted; expected null, true, false, a number or a text"),
        ({"a": {"b": 1}}, "mine.a = {'b': 1} is not accepted"),
        ({"k" * (MAX_KEY_CHARACTERS + 1): 1}, "expected at most 256 characters"),
        ({"\ud800": 1}, "expected text that UTF-8 can encode"),
        ({1: 1}, "a key of mine = 1 is not accepted; expected text"),
        (b"x", "mine = b'x' is not accepted"),
        ({1, 2}, "mine = {1, 2} is not accepted"),
    ],
    ids=range(15),
)
def test_beyond_them_it_is_refused_by_path(value: Any, named: str) -> None:
    with pytest.raises(RequestParameterError) as caught:
        check_carried("mine", value)
    assert named in str(caught.value)
    assert len(str(caught.value)) < 400
    str(caught.value).encode()


def test_a_bottomless_nest_is_refused() -> None:
    """As a JSON parser without a limit may deliver it."""
    nest: Any = []
    for _ in range(100_000):
        nest = [nest]
    with pytest.raises(RequestParameterError, match=r"custom_params\.mine\[0\] = "):
        parse_custom_params({"mine": nest})
