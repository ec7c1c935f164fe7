"""Documents behind a preamble: what is kept of each of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmark"))

import attention_structured
from sampling_parts.client import AnswerError

ROWS = [{"id": name, "schema": {"type": "object", "required": ["a"]}} for name in ("one", "two")]


def answer(text: str, tokens: int, share: float | None = None, finish: str = "stop") -> dict[str, Any]:
    entropic = {} if share is None else {"entropic": {"attention": {"keep_ratio": share}}}
    choice = {"finish_reason": finish, "message": {"content": text}, **entropic}
    return {"choices": [choice], "usage": {"completion_tokens": tokens}}


def test_the_result_keeps_what_became_of_each_document() -> None:
    dense = [answer('{"a": 1}', 6), answer('{"a": [', 512, finish="length")]
    pruned = [answer('{"a": 1}', 6, 0.52), answer('{"b": 2}', 7, 0.51)]
    found = {
        "dense": attention_structured.figures_of(dense, ROWS, pruned=False),
        "mixed 0.5": attention_structured.figures_of(pruned, ROWS, pruned=True),
    }
    assert attention_structured.samples_of(found, ROWS) == [
        {
            "schema": "one",
            "dense": {"outcome": "valid", "tokens": 6, "keep_ratio": 1.0, "as_dense": True},
            "mixed 0.5": {"outcome": "valid", "tokens": 6, "keep_ratio": 0.52, "as_dense": True},
        },
        {
            "schema": "two",
            "dense": {"outcome": "cut", "tokens": 512, "keep_ratio": 1.0, "as_dense": True},
            "mixed 0.5": {"outcome": "unlike_schema", "tokens": 7, "keep_ratio": 0.51, "as_dense": False},
        },
    ]


def test_an_answer_that_does_not_say_what_was_read_is_an_error() -> None:
    with pytest.raises(AnswerError, match="1 of 2"):
        attention_structured.figures_of([answer("{}", 1, 0.5), answer("{}", 1)], ROWS, pruned=True)
