"""The look at the bytes of a long body: it lets nothing pass that a check of the whole body would refuse or read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_entropic.errors import RequestParameterError
from sgl_entropic.request_params import (
    GENERATE_PLACE,
    PARAMETERS,
    PARAMETERS_KEY,
    RequestParams,
    check_sampling_params_keys,
    parse_top_level,
)
from sgl_entropic.request_params import may_mention as look

NAMES = tuple(parameter.name for parameter in PARAMETERS)
KEYS = (*NAMES, PARAMETERS_KEY, "custom_params", "sgl_entropic")


def may_mention(body: bytes) -> bool:
    """The look at a body that is long enough for one: with blanks at its end, which JSON allows."""
    return look(body + b" " * (8192 * (body.count(b'"') + 1)))


nested = st.sampled_from(
    [
        "{%s}",
        '{"sampling_params": {%s}}',
        '{"text": "a", "sampling_params": [{}, {"top_k" : 1, %s}]}',
        '{"custom_params":{"entropic":{%s}}}',
    ]
)


@given(st.data(), st.sampled_from(KEYS), nested, st.sampled_from(["", " ", "\n\t "]))
def test_a_key_is_seen_however_it_is_spelt(data: st.DataObject, key: str, form: str, space: str) -> None:
    """Any letter escaped or in capitals, at any depth."""
    escaped = data.draw(st.lists(st.sampled_from(["", "u", "U", "A"]), min_size=len(key), max_size=len(key)))
    spelt = "".join(
        letter
        if how == ""
        else letter.upper()
        if how == "A"
        else ("\\u%04x" if how == "u" else "\\u%04X") % ord(letter)
        for letter, how in zip(key, escaped, strict=True)
    )
    body = form.replace("%s", f'"{spelt}"{space}:{space}1')
    assert list(re.findall(re.escape(key), json.dumps(json.loads(body)), re.IGNORECASE))
    assert may_mention(body.encode())


def slips(name: str) -> Iterator[str]:
    """One letter left out, doubled, swapped with the next or mistaken; other separators; capitals."""
    for at, letter in enumerate(name):
        rest = name[at + 1 :]
        yield name[:at] + rest
        yield name[:at] + letter + letter + rest
        yield name[:at] + rest[:1] + letter + rest[1:]
        yield name[:at] + "z" + rest
    words = name.split("_")
    yield from ("-".join(words), " ".join(words), "".join(words), name.upper(), name.title())
    yield words[0] + "".join(word.title() for word in words[1:])


def refused(body: dict[str, Any]) -> bool:
    try:
        parse_top_level(body)
        check_sampling_params_keys(body, GENERATE_PLACE)
    except RequestParameterError:
        return True
    return False


@pytest.mark.parametrize("name", NAMES)
def test_what_a_check_refuses_is_seen(name: str) -> None:
    """Each single slip in each name; most of them are refused at all."""
    wrong = [key for key in slips(name) if refused({key: 1})]
    assert len(wrong) > 5
    for key in wrong:
        assert may_mention(json.dumps({key: 1}).encode()), key


@given(
    st.dictionaries(
        st.sampled_from([*KEYS, "text", "prompt", "model", "extra_body", "entropy", "sampling_params"])
        | st.text(max_size=8),
        st.recursive(
            st.booleans() | st.sampled_from(KEYS),
            lambda inner: (
                st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=2)
            ),
            max_leaves=4,
        ),
        max_size=3,
    ),
    st.booleans(),
)
def test_a_body_that_is_not_seen_means_nothing_to_us(body: dict[str, Any], ascii_only: bool) -> None:  # noqa: FBT001
    if not may_mention(json.dumps(body, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")):
        assert parse_top_level(body) == RequestParams()
        assert not refused(body)


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_a_key_is_seen_in_every_encoding_of_json(name: str, encoding: str) -> None:
    body = json.dumps({"text": "é", name: 1}, ensure_ascii=False).encode(encoding)
    assert name in json.loads(body)
    assert may_mention(body)


@pytest.mark.parametrize(
    "key", ["/" * 50 + "entropy", "\n" * 50 + "entropy", '"entropy"', "é" * 50 + "entropy"]
)
def test_escapes_hide_no_key(key: str) -> None:
    assert refused({key: 1})
    for ascii_only in (True, False):
        spelt = json.dumps({key: 1}, ensure_ascii=ascii_only).replace("/", "\\/")
        assert key in json.loads(spelt)
        assert may_mention(spelt.encode())


words = st.sampled_from(["model", "sampling", 'a "summary"', "policy", "\n", "é", "target"])


@given(st.lists(words, max_size=12).map(" ".join))
def test_a_stock_body_is_passed_over(text: str) -> None:
    """It is not even parsed."""
    content = [
        {"type": "text", "text": text},
        {"type": "image_url", "image_url": {"url": "iVBORw0KGgo" * 30}},
    ]
    for body in (
        {"model": "m", "messages": [{"role": "user", "content": content}], "stream_options": {}, "top_p": 1},
        {"text": text, "sampling_params": {"temperature": 0}, "return_logprob": True},
    ):
        assert not may_mention(json.dumps(body, ensure_ascii=False).encode())


def test_numbers_and_images_are_passed_over() -> None:
    body = {"input_ids": list(range(10_000)), "image_data": "iVBORw0KGgo" * 100_000, "max_tokens": 3}
    assert not look(json.dumps(body).encode())


def test_a_body_full_of_quotes_is_left_to_the_parser() -> None:
    """Which is as fast; the look gives up early."""
    assert look(json.dumps({"stop": ["a"] * 100_000}).encode())
