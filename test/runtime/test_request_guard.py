"""Values that end stock SGLang's scheduler are refused in front, and nothing else is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_entropic.errors import RequestParameterError
from sgl_entropic.runtime.request_guard import MAX_CHOICES, around_validate_one_request, check_sampling

VOCABULARY = 100
MANAGER = SimpleNamespace(model_config=SimpleNamespace(vocab_size=VOCABULARY))


def validate(input_ids: Any = (1, 2), *, multimodal: bool = False, **fields: Any) -> list[str]:
    """Run the check around a validation that accepts everything; the calls that reached it."""
    fields.setdefault("sampling_params", {})
    calls: list[str] = []
    obj = SimpleNamespace(contains_mm_input=lambda: multimodal, **fields)
    around_validate_one_request(lambda *args: calls.append("stock"), MANAGER, obj, input_ids)
    return calls


DEADLY: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"input_ids": []}, ("prompt", "1 token")),
    ({"input_ids": [1, 100]}, ("input_ids", "100", "0 to 99")),
    ({"input_ids": [-1]}, ("input_ids", "-1", "0 to 99")),
    ({"sampling_params": {"top_k": 2**31}}, ("top_k", str(2**31), str(2**31 - 1))),
    ({"sampling_params": {"top_k": 1e20}}, ("top_k = 1e+20", "an integer")),
    ({"sampling_params": {"top_k": 2.5}}, ("top_k = 2.5", "an integer")),
    ({"sampling_params": {"temperature": 1e39}}, ("temperature = 1e+39", "0 to 1e+06")),
    ({"sampling_params": {"temperature": 10**400}}, ("temperature", "0 to 1e+06")),
    ({"sampling_params": {"top_p": 1e-46}}, ("top_p = 1e-46", "1e-30 to 1")),
    ({"sampling_params": {"n": 0}}, ("n = 0", f"1 to {MAX_CHOICES}")),
    ({"sampling_params": {"n": 10**7}}, ("n = 10000000", f"1 to {MAX_CHOICES}")),
    (
        {"sampling_params": {"min_new_tokens": 1, "stop_token_ids": [100]}},
        ("stop_token_ids", "100", "0 to 99"),
    ),
    ({"sampling_params": {"min_new_tokens": 1, "stop_token_ids": [-1]}}, ("stop_token_ids", "-1")),
    ({"top_logprobs_num": 101}, ("top_logprobs_num", "101", "0 to 100")),
    ({"token_ids_logprob": [5, 100]}, ("token_ids_logprob", "100")),
    ({"token_indices_to_pool": [2]}, ("token_indices_to_pool", "2", "0 to 1")),
    ({"multi_item_delimiter_indices": [-1]}, ("multi_item_delimiter_indices", "-1")),
    ({"positional_embed_overrides": 1}, ("positional_embed_overrides", "null")),
]


@pytest.mark.parametrize(("fields", "named"), DEADLY, ids=range(len(DEADLY)))
def test_deadly_requests(fields: dict[str, Any], named: tuple[str, ...]) -> None:
    """The message names the field, the value and what is accepted."""
    with pytest.raises(RequestParameterError) as caught:
        validate(**fields)
    for word in named:
        assert word in str(caught.value)


@given(
    ids=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=20),
    top_k=st.integers(-1, 2**31 - 1),
    choices=st.integers(1, MAX_CHOICES),
    temperature=st.floats(0, 1e6) | st.integers(0, 10**6),
    top_p=st.floats(1e-30, 1),
)
def test_what_the_scheduler_can_hold_is_accepted(
    ids: list[int], top_k: int, choices: int, temperature: float, top_p: float
) -> None:
    """And SGLang's own validation has run."""
    params = {
        "top_k": top_k,
        "n": choices,
        "stop_token_ids": [-1],
        "temperature": temperature,
        "top_p": top_p,
    }
    assert validate(ids, sampling_params=params) == ["stock"]


def test_placeholders_of_images_are_no_tokens() -> None:
    """Their ids are hashes, and SGLang replaces them."""
    assert validate([1, 10**12], multimodal=True) == ["stock"]


def test_embedding_requests_are_none_of_ours() -> None:
    """They have no sampling parameters."""
    calls: list[str] = []
    around_validate_one_request(lambda *args: calls.append("stock"), MANAGER, SimpleNamespace(), [])
    assert calls == ["stock"]


@pytest.mark.parametrize("params", [None, "text", [1], {"top_k": "3"}, {"n": None}, {"top_k": True}])
def test_other_types_are_left_to_sglang(params: Any) -> None:
    """It has its own words for them."""
    assert check_sampling(params, VOCABULARY) is None
