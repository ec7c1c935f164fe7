"""The catalogue is pinned, and found in any case."""

from __future__ import annotations

import re

import pytest

from sgl_entropic.errors import ModelFetchError
from sgl_entropic.models import catalog


def test_every_entry_is_pinned_to_the_byte() -> None:
    for entry in catalog.CATALOG:
        for sha256 in (entry.wheel_sha256, entry.member_sha256):
            assert re.fullmatch(r"[0-9a-f]{64}", sha256)
        assert entry.wheel_name.startswith(f"{entry.package.replace('-', '_')}-{entry.version}-")
        assert re.fullmatch(r"[a-z0-9.-]+", entry.directory_name)


def test_names_are_unique_in_any_case() -> None:
    names = [entry.name.casefold() for entry in catalog.CATALOG]
    assert len(set(names)) == len(names)


def test_a_name_is_found_in_any_case_and_an_unknown_one_lists_the_known() -> None:
    assert catalog.find("SmolLM2-135M-Instruct") is catalog.default_model()
    assert catalog.find("gpt") is None
    with pytest.raises(ModelFetchError, match=r"'gpt'.*known: smollm2-135m-instruct"):
        catalog.get("gpt")
