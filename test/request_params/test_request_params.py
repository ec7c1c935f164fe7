"""Per-request parameters: accepted, or refused by a sentence; nothing in between, whatever JSON comes in."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_entropic.errors import RequestParameterError
from sgl_entropic.request_params import (
    MAX_KEYS,
    MAX_TEXT_BYTES,
    PARAMETERS,
    RequestParams,
    parse_custom_params,
    parse_top_level,
)

NAMES = ("return_entropy", "return_prompt_surprisal", "return_summary")
OURS = {parameter.name for parameter in PARAMETERS}
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)
carried_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
)
foreign_keys = st.text(max_size=20).filter(
    lambda key: "entr" not in key.lower() and "return" not in key.lower() and key.casefold() not in OURS
)

MALFORMED: list[tuple[Any, tuple[str, ...]]] = [
    ("entropic", ("custom_params", "entropic", "object")),
    ([], ("custom_params", "[]", "object")),
    (0, ("custom_params", "0", "object")),
    (False, ("custom_params", "False", "object")),
    ({"entropic": 1}, ("entropic", "1", "object")),
    ({"entropic": []}, ("entropic", "[]", "object")),
    ({"entropic": "on"}, ("entropic", "on", "object")),
    ({"entropic": {"return_entropy": None}}, ("return_entropy", "None", "true or false")),
    ({"entropic": {"return_entropy": 0}}, ("return_entropy", "0", "true or false")),
    ({"entropic": {"return_entropy": "false"}}, ("return_entropy", "false", "true or false")),
    ({"entropic": {"return_entropy": [True]}}, ("return_entropy", "True", "true or false")),
    ({"entropic": {"return_summary": math.nan}}, ("return_summary", "nan", "true or false")),
    ({"entropic": {"retrun_entropy": True}}, ("retrun_entropy", "return_entropy")),
    ({"entropic": {"entropy": True}}, ("entropy",)),
    ({"entropic": {"RETURN_ENTROPY": True}}, ("RETURN_ENTROPY", "return_entropy")),
    ({"entropic_return_entropy": True}, ("entropic_return_entropy", "entropic")),
    ({"ENTROPIC": {}}, ("ENTROPIC", "entropic")),
    ({"entropik": {}}, ("entropik", "entropic")),
    ({"entorpic": {}}, ("entorpic", "entropic")),
    ({"mine": math.inf}, ("mine", "inf")),
    ({"mine": math.nan}, ("mine", "nan")),
    ({"mine": 10**30}, ("mine",)),
    ({"mine": [[]]}, ("mine",)),
    ({"mine": {"a": {}}}, ("mine", "a")),
    ({"mine": {"a": [1]}}, ("mine", "a")),
    ({"mine": "\ud800"}, ("mine",)),
    ({"mine": "x" * (MAX_TEXT_BYTES + 1)}, ("mine",)),
    ({f"k{n}": n for n in range(MAX_KEYS + 1)}, ("custom_params",)),
]


@pytest.mark.parametrize(("value", "named"), MALFORMED, ids=range(len(MALFORMED)))
def test_malformed(value: Any, named: tuple[str, ...]) -> None:
    """The message names the key, shows the value and says what is accepted."""
    with pytest.raises(RequestParameterError) as caught:
        parse_custom_params(value)
    for word in named:
        assert word in str(caught.value)
    assert len(str(caught.value)) < 1000
    str(caught.value).encode()


@given(anything)
def test_any_json_is_parsed_or_refused(value: Any) -> None:
    """No other exception, and the refusal can always be sent as UTF-8."""
    refusal = "accepted"
    try:
        parse_custom_params(value)
    except RequestParameterError as error:
        refusal = str(error)
    assert refusal.encode()


@given(
    st.dictionaries(
        st.sampled_from(["return_entropy", "custom_params", "text", "entropic", "x"]), anything, max_size=5
    )
)
def test_any_body_is_parsed_or_refused(body: dict[str, Any]) -> None:
    """The same for whole bodies."""
    refusal = "accepted"
    try:
        parse_top_level(body)
    except RequestParameterError as error:
        refusal = str(error)
    assert refusal.encode()


@given(
    st.dictionaries(
        foreign_keys,
        carried_scalars
        | st.lists(carried_scalars, max_size=4)
        | st.dictionaries(foreign_keys, carried_scalars, max_size=4),
        max_size=5,
    )
)
def test_foreign_keys_pass(value: dict[str, Any]) -> None:
    """Whatever SGLang can carry is none of our business, and means nothing to us."""
    assert parse_custom_params(value) == RequestParams()


@given(st.dictionaries(st.sampled_from(NAMES), st.booleans()))
def test_ours_are_read_and_written_back(values: dict[str, bool]) -> None:
    """What goes to the scheduler is what the client asked."""
    params = parse_custom_params({"entropic": values})
    assert all(getattr(params, name) is value for name, value in values.items())
    assert parse_custom_params({"entropic": params.to_custom_params()}) == params


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        (
            "target_entropy_nats",
            [0, 2, 1.5, 20.0, "auto", "off"],
            [-0.1, 20.1, math.nan, math.inf, "2", "on", True, None],
        ),
        ("sampling_mode", ["exact", "newton", "fixed"], ["Exact", "pid", 1, False, None, []]),
        ("sampling_gain", [0, 0.5, 10], [-1, 11, math.nan, "0.5", True]),
        ("sampling_actuator", ["temperature", "min_p"], ["top_p", 0]),
        ("min_temperature_scale", [0.05, 1], [0, 0.04, 1.01, "1", True]),
        ("max_temperature_scale", [1, 20.0], [0.99, 21, math.inf, True]),
        ("client_id", ["a", "team 7", "\u00fc" * 128], ["", "a" * 129, "a\nb", 7, True]),
    ],
)
def test_values_of_each_parameter(name: str, good: list[Any], bad: list[Any]) -> None:
    """Numbers in their range, words among theirs; the refusal says which."""
    for value in good:
        params = parse_custom_params({"entropic": {name: value}})
        assert getattr(params, name) == value
        assert params.to_custom_params()[name] == value
        assert RequestParams(return_entropy=True).merged(params) == parse_custom_params(
            {"entropic": {name: value, "return_entropy": True}}
        )
    for value in bad:
        with pytest.raises(RequestParameterError, match=rf"custom_params\.entropic\.{name} = .*expected"):
            parse_custom_params({"entropic": {name: value}})


@pytest.mark.parametrize("name", ["return_entropy", "return_prompt_surprisal"])
@pytest.mark.parametrize("value", [0, 1, "true", [], {}, 0.0, math.nan])
def test_top_level_takes_booleans_only(name: str, value: Any) -> None:
    """True or false; null is as if it were absent."""
    with pytest.raises(RequestParameterError, match=name):
        parse_top_level({name: value})
    assert parse_top_level({name: None}) == RequestParams()
    assert getattr(parse_top_level({name: True}), name) is True


@pytest.mark.parametrize(("outer", "inner"), [(True, False), (False, True)])
def test_a_contradiction_names_both_places(outer: bool, inner: bool) -> None:  # noqa: FBT001 -- a table of booleans
    """The client has to decide."""
    body = {"return_entropy": outer, "custom_params": {"entropic": {"return_entropy": inner}}}
    with pytest.raises(RequestParameterError, match=r"custom_params\.entropic\.return_entropy"):
        parse_top_level(body)


@given(st.booleans(), st.booleans())
def test_merging_gives_what_either_asks(first: bool, second: bool) -> None:  # noqa: FBT001
    """Asking is never lost on the way from the two places to the scheduler."""
    merged = RequestParams(return_entropy=first).merged(RequestParams(return_entropy=second))
    assert merged.return_entropy == (first or second)
