"""Keys that mean us and miss, and the many that do not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_entropic.errors import RequestParameterError
from sgl_entropic.request_params import (
    PARAMETERS,
    TOP_LEVEL,
    RequestParams,
    parse_custom_params,
    parse_top_level,
)

# Fields of the bodies of SGLang 0.5.23 and of OpenAI that come nearest to ours.
STOCK = (
    "return_logprob",
    "return_hidden_states",
    "return_routed_experts",
    "return_text_in_logprobs",
    "return_prompt_token_ids",
    "return_meta_info",
    "return_cached_tokens_details",
    "custom_logit_processor",
    "custom_labels",
    "customized_info",
    "prompt",
    "entropy",
)

MISSPELT = [
    ({"return_entropi": True}, "'return_entropi' = True; did you mean 'return_entropy'"),
    ({"return-entropy": True}, "'return-entropy' = True; did you mean 'return_entropy'"),
    ({"returnEntropy": True}, "'returnEntropy' = True; did you mean 'return_entropy'"),
    ({"Return_Entropy": False}, "'Return_Entropy' = False; did you mean 'return_entropy'"),
    ({"return_entropies": 1}, "'return_entropies' = 1; did you mean 'return_entropy'"),
    ({"return_prompt_suprisal": 1}, "did you mean 'return_prompt_surprisal'"),
    ({"return_prompt_surprisals": 1}, "did you mean 'return_prompt_surprisal'"),
    ({"entropic": {"return_entropy": True}}, "expected custom_params.entropic"),
    ({"Entropic": None}, "expected custom_params.entropic"),
    ({"return_summary": True}, "expected custom_params.entropic.return_summary, true or false"),
    ({"custom_param": {"entropic": {}}}, "did you mean 'custom_params'"),
    ({"customParams": {"entropic": {}}}, "did you mean 'custom_params'"),
    (
        {"custom_params": {"return_entropy": True}},
        "expected custom_params.entropic.return_entropy, true or false",
    ),
    (
        {"custom_params": {"Return_Summary": 1}},
        "expected custom_params.entropic.return_summary, true or false",
    ),
    ({"custom_params": {"entropic ": {}}}, "did you mean 'entropic'"),
    ({"custom_params": {"EntropicConfig": {}}}, "did you mean 'entropic'"),
]


@pytest.mark.parametrize(("body", "named"), MISSPELT, ids=range(len(MISSPELT)))
def test_misspelt_and_misplaced(body: dict[str, Any], named: str) -> None:
    """The key, its value, and where the parameter belongs."""
    with pytest.raises(RequestParameterError) as caught:
        parse_top_level(body)
    assert named in str(caught.value)
    assert "expected" in str(caught.value)


@pytest.mark.parametrize("key", STOCK)
def test_fields_of_the_routes_pass(key: str) -> None:
    assert parse_top_level({key: {"a": [1]}, "custom_params": {key: 1}}) == RequestParams()


def test_another_tools_field_passes() -> None:
    """Unless it holds something for us."""
    assert parse_top_level({"custom_param": {"a": 1}, "custom_parameter": 3}) == RequestParams()


@given(st.dictionaries(st.text(max_size=12), st.booleans(), max_size=4))
def test_keys_without_a_likeness_pass(body: dict[str, Any]) -> None:
    """Nobody spells our names by chance: only keys that share most letters with them are refused."""
    far = {
        key: value for key, value in body.items() if len(set(key.casefold()) & set("entropicsum_params")) < 4
    }
    assert parse_top_level(far) == RequestParams()
    assert parse_custom_params(far) == RequestParams()


def test_a_flood_of_keys_is_not_compared() -> None:
    """A hostile body costs no more than reading it; what it says of ours still counts."""
    body: dict[str, Any] = {f"return_entrop{number}": 1 for number in range(200_000)}
    with pytest.raises(RequestParameterError, match="return_entropy = 1"):
        parse_top_level({**body, "return_entropy": 1})
    assert parse_top_level(body) == RequestParams()


def test_a_long_key_is_not_compared() -> None:
    """The comparison is quadratic; a key of a megabyte must not stop the event loop."""
    assert parse_top_level({"x" + "entropic" * 125_000: 1}) == RequestParams()
    with pytest.raises(RequestParameterError, match="at most 256 characters"):
        parse_custom_params({"x" + "entropic" * 125_000: 1})


def test_the_table_is_the_class() -> None:
    """What documentation is made from is what is parsed."""
    assert {parameter.name for parameter in PARAMETERS} == set(RequestParams.__dataclass_fields__)
    assert set(TOP_LEVEL) < {parameter.name for parameter in PARAMETERS}
    for parameter in PARAMETERS:
        value = (
            True
            if parameter.switch
            else "a"
            if parameter.characters
            else (*parameter.words, parameter.low)[0]
        )
        params = parse_custom_params({"entropic": {parameter.name: value}})
        assert getattr(params, parameter.name) == value
