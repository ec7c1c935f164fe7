"""Keys that mean us and miss, and the many that do not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_entropic.errors import RequestParameterError
from sgl_entropic.request_params import (
    GENERATE_PLACE,
    PARAMETERS,
    PLACE,
    TOP_LEVEL,
    RequestParams,
    check_sampling_params_keys,
    check_top_level_keys,
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
)
# Keys of other tools, none of which may be taken for a slip of the pen.
FOREIGN = (
    "client",
    "client_ids",
    "client_uid",
    "conversation_id",
    "sampling_model",
    "sampling_rate",
    "attention_mask",
    "temperature",
    "max_temperature",
    "keep_alive",
    "policy",
    "summary",
    "target",
)
NAMES = tuple(parameter.name for parameter in PARAMETERS)
NOT_AT_THE_TOP = tuple(name for name in NAMES if name not in TOP_LEVEL)

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
    ({"entropy": True}, "'entropy' = True; did you mean 'return_entropy'"),
    ({"target_entropy": 2}, "'target_entropy' = 2; did you mean 'target_entropy_nats'"),
    ({"surprisals": True}, "'surprisals' = True; expected custom_params.entropic"),
    ({"clientId": "a"}, "expected custom_params.entropic.client_id, a name of 1 to 128"),
    ({"Client-ID": "a"}, "expected custom_params.entropic.client_id"),
    ({"samplingMode": "exact"}, "expected custom_params.entropic.sampling_mode, fixed or"),
    ({"min_keep_ration": 0.5}, "expected custom_params.entropic.min_keep_ratio, a number from 0.01 to 1"),
    ({"attention_prunning": False}, "expected custom_params.entropic.attention_pruning, true or false"),
    (
        {"extra_body": {"client_id": "a"}},
        "'extra_body' = {'client_id': 'a'}; expected custom_params.entropic",
    ),
    ({"extra_body": {"custom_params": {"entropic": {}}}}, "expected custom_params.entropic"),
    ({"options": {"custom_params": {"entropic": {}}}}, "expected custom_params.entropic"),
    ({"sampling_params": {"client_id": "a"}}, "sampling_params key 'client_id' = 'a' is not accepted there"),
    ({"sampling_params": [{}, {"custom_params": {"entropic": {}}}]}, "is not read on this route"),
]


@pytest.mark.parametrize(("body", "named"), MISSPELT, ids=range(len(MISSPELT)))
def test_misspelt_and_misplaced(body: dict[str, Any], named: str) -> None:
    """The key, its value, and where the parameter belongs."""
    with pytest.raises(RequestParameterError) as caught:
        parse_top_level(body)
    assert named in str(caught.value)
    assert "expected" in str(caught.value)


@pytest.mark.parametrize("name", NOT_AT_THE_TOP)
@pytest.mark.parametrize("place", [PLACE, GENERATE_PLACE])
@pytest.mark.parametrize("flood", [0, 300])
def test_every_parameter_at_the_top_is_told_where_it_belongs(name: str, place: str, flood: int) -> None:
    """With the place of the route, whatever else the body holds."""
    (accepted,) = (parameter.accepted for parameter in PARAMETERS if parameter.name == name)
    body = {**{f"x{number}": 1 for number in range(flood)}, name: 1}
    with pytest.raises(RequestParameterError) as caught:
        check_top_level_keys(body, place)
    assert str(caught.value) == (
        f"top-level key {name!r} = 1 is not accepted there; expected {place}.{name}, {accepted}"
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_among_the_sampling_parameters_is_told_where_it_belongs(name: str) -> None:
    """One level above its place, where SGLang only has a list of its own fields to offer."""
    with pytest.raises(RequestParameterError) as caught:
        check_sampling_params_keys({"temperature": 0, name: 1}, GENERATE_PLACE)
    assert str(caught.value).startswith(
        f"sampling_params key {name!r} = 1 is not accepted there; expected {GENERATE_PLACE}.{name}, "
    )


@pytest.mark.parametrize("key", ["entropic", "sgl_entropic", "entropy", "customParams"])
def test_other_slips_among_the_sampling_parameters(key: str) -> None:
    with pytest.raises(RequestParameterError, match=r"expected sampling_params\.custom_params\.entropic"):
        check_sampling_params_keys({key: {"entropic": {}}}, GENERATE_PLACE)


@pytest.mark.parametrize("place", [PLACE, GENERATE_PLACE])
def test_every_refusal_names_the_place_of_the_route(place: str) -> None:
    refused: tuple[dict[str, Any], ...] = (
        {"entropic": 1},
        {"entropic": {"return_entropy": 1}},
        {"entropic": {"return_entropi": 1}},
        {"entropik": {}},
        {"client_id": "a"},
        {"mine": {"return_entropy": True}},
    )
    for custom_params in refused:
        with pytest.raises(RequestParameterError) as caught:
            parse_custom_params(custom_params, place)
        assert place in str(caught.value)
        assert place == GENERATE_PLACE or GENERATE_PLACE not in str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_names_of_ours_below_foreign_keys_pass(name: str) -> None:
    """Schemas, messages and the objects of other tools may hold any word."""
    schema = {"type": "object", "properties": {name: {"type": "string"}}}
    body = {
        "messages": [{"role": "user", "content": name, "metadata": {name: 1}}],
        "tools": [{"type": "function", "function": {"name": name, "parameters": schema}}],
        "response_format": {"type": "json_schema", "json_schema": {"name": name, "schema": schema}},
    }
    assert parse_top_level(body) == RequestParams()
    assert parse_top_level({"metadata": {"client_id": 1}, "user": name}) == RequestParams()


@pytest.mark.parametrize("key", FOREIGN)
def test_foreign_words_pass(key: str) -> None:
    for value in (1, "a", {"a": 1}):
        assert parse_top_level({key: value, "custom_params": {key: value}}) == RequestParams()
        check_sampling_params_keys({key: value}, GENERATE_PLACE)


def test_the_word_entropy_is_free_in_custom_params() -> None:
    """Where other extensions have theirs."""
    assert parse_custom_params({"entropy": 1}) == RequestParams()


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
