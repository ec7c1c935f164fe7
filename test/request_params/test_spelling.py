"""Keys that mean us and miss, and the many that do not."""

from __future__ import annotations

import difflib
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

# Fields of the bodies of SGLang 0.5.23 and of OpenAI that come nearest to ours; test/runtime/test_stock_fields.py has all.
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
    "retention_policy",
    "prompt_cache_retention",
    "prompt_cache_key",
    "safety_identifier",
    "service_tier",
    "truncation",
    "reasoning",
    "verbosity",
    "stream_options",
    "parallel_tool_calls",
    "context_management",
    "background",
)
# Keys of other tools, none of which may be taken for a slip of the pen.
FOREIGN = (
    "client",
    "client_ids",
    "client_uid",
    "client_info",
    "conversation_id",
    "sampling_model",
    "sampling_models",
    "sampling_rate",
    "sampling_again",
    "sampling_actuators",
    "attention_mask",
    "attention_policies",
    "attention_prunning",
    "retention_policies",
    "temperature",
    "temperature_scale",
    "temperature_scales",
    "max_temperature",
    "min_keep_ration",
    "keep_ratio",
    "keep_alive",
    "policy",
    "summary",
    "return_summaries",
    "target",
    "anthropic",
    "anthropic_version",
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
    ({"Entropic": {}}, "expected custom_params.entropic"),
    ({"entopic": {}}, "expected custom_params.entropic"),
    ({"SGLang-Entropic": {}}, "expected custom_params.entropic"),
    ({"return_sumary": True}, "expected custom_params.entropic.return_summary, true or false"),
    ({"return_summery": True}, "expected custom_params.entropic.return_summary, true or false"),
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
    ({"minKeepRatio": 0.5}, "expected custom_params.entropic.min_keep_ratio, a number from 0.01 to 1"),
    ({"attention-pruning": False}, "expected custom_params.entropic.attention_pruning, true or false"),
    (
        {"custom_param": {"return_entropy": True}},
        "did you mean 'custom_params'? expected custom_params.entropic",
    ),
    ({"customParams": {"client_id": "a"}}, "did you mean 'custom_params'? expected custom_params.entropic"),
    ({"custom-params": {"samplingMode": "exact"}}, "did you mean 'custom_params'"),
    ({"custom_param": {"custom_params": {"entropic": {}}}}, "did you mean 'custom_params'"),
    ({"customParams": {"customParams": {"client_id": "a"}}}, "did you mean 'custom_params'"),
    ({"custom_params": {"custom_params": {"client_id": "a"}}}, "expected custom_params.entropic"),
    ({"custom_params": {"return_entropies": True}}, "did you mean 'return_entropy'"),
    ({"custom_params": {"my_entropy_nats": 1}}, "expected custom_params.entropic"),
    ({"extraBody": {"customParams": {"entropic": {}}}}, "expected custom_params.entropic"),
    (
        {"extra_body": {"client_id": "a"}},
        "'extra_body' = {'client_id': 'a'}; expected custom_params.entropic",
    ),
    ({"extra_body": {"custom_params": {"entropic": {}}}}, "expected custom_params.entropic"),
    ({"options": {"custom_params": {"entropic": {}}}}, "expected custom_params.entropic"),
    ({"sampling_params": {"client_id": "a"}}, "sampling_params key 'client_id' = 'a' is not accepted there"),
    ({"sampling_params": [{}, {"custom_params": {"entropic": {}}}]}, "is not read on this route"),
    (
        {"sampling_params": {"custom_params": {"return_entropy": True}}},
        "custom_params key 'return_entropy' = True is not accepted there; expected custom_params.entropic.return_entropy",
    ),
    (
        {"sampling_params": [{"custom_params": {"client_id": "a"}}]},
        "expected custom_params.entropic.client_id",
    ),
    (
        {"sampling_params": {"customParams": {"client_id": "a"}}},
        "did you mean 'custom_params'? expected custom_params.entropic",
    ),
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


@pytest.mark.parametrize(
    "name", [*NOT_AT_THE_TOP, "clientId", "return-entropy", "return_entropi", "entropic"]
)
def test_null_asks_for_nothing(name: str) -> None:
    """Wherever it stands: clients write it for what was not given."""
    assert parse_top_level({name: None, "custom_params": {name: None}}) == RequestParams()
    assert (
        parse_top_level({"sampling_params": {name: None, "custom_params": {name: None}}}) == RequestParams()
    )
    assert parse_top_level({"extra_body": {name: None}, "custom_param": {name: None}}) == RequestParams()
    check_sampling_params_keys({name: None}, GENERATE_PLACE)


@pytest.mark.parametrize("field", ["metadata", "custom_labels", "logit_bias", "chat_template_kwargs"])
@pytest.mark.parametrize("name", [*NAMES, "entropy", "target_entropy", "policy"])
def test_fields_whose_keys_are_the_client_s_own_hold_any_word(field: str, name: str) -> None:
    assert parse_top_level({field: {name: "a", "more": {name: {name: 1}}}}) == RequestParams()


@pytest.mark.parametrize("name", ["client_id", "policy", "attention_policy", "target_entropy"])
def test_common_words_below_any_key_pass(name: str) -> None:
    """Of a tool, a schema, or another program's settings."""
    for value in ({name: "a"}, [{name: "a"}], {"properties": {name: {"type": "string"}}}):
        assert parse_top_level({"tools": value, "format": value, "options": value}) == RequestParams()
        assert parse_top_level({"custom_params": {"mine": value if name in value else 1}}) == RequestParams()


FLOODS = [
    {f"return_sum{number}": 1 for number in range(50_000)},
    {"sampling_params": [{"temperature": 0, f"attention_polic{number}": 1} for number in range(20_000)]},
    {"sampling_params": [{"custom_params": {f"return_sum{number}": 1}} for number in range(20_000)]},
    {"custom_param": {f"return_sum{number}": 1 for number in range(50_000)}},
]


@pytest.mark.parametrize("flood", FLOODS, ids=range(len(FLOODS)))
def test_a_flood_of_keys_is_not_compared(flood: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Likeness is costly, and only words a refusal; what a hostile body says of ours still counts."""
    with monkeypatch.context() as patch:
        patch.setattr(difflib, "get_close_matches", None)
        assert parse_top_level(flood) == RequestParams()
        for one in flood.get("sampling_params", [flood]):
            check_sampling_params_keys(one, GENERATE_PLACE)
    with pytest.raises(RequestParameterError, match="return_entropy = 1"):
        parse_top_level({**flood, "return_entropy": 1})


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
