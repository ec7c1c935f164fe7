"""No field of SGLang's own bodies, or of the OpenAI API, is taken for one of ours: a request that means it would be refused."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import openai.types
import pytest
from sglang.srt.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from sglang.srt.entrypoints.ollama.protocol import OllamaChatRequest, OllamaGenerateRequest
from sglang.srt.entrypoints.openai.protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    ResponsesRequest,
)
from sglang.srt.managers.io_struct import GenerateReqInput
from sglang.srt.sampling.sampling_params import SamplingParams

from sgl_entropic.request_params import (
    GENERATE_PLACE,
    PLACE,
    TOP_LEVEL,
    check_sampling_params_keys,
    check_top_level_keys,
)

OPENAI = {*CompletionRequest.model_fields, *ChatCompletionRequest.model_fields}
GENERATE = {field.name for field in dataclasses.fields(GenerateReqInput)}
SILENT = {
    field
    for model in (ResponsesRequest, AnthropicMessagesRequest, OllamaChatRequest, OllamaGenerateRequest)
    for field in model.model_fields
}
# All that the official client names in any body or answer, at any depth.
OPENAI_API = {
    field
    for source in Path(openai.types.__path__[0]).rglob("*.py")
    for field in re.findall(r"^    (\w+): ", source.read_text(encoding="utf-8"), re.MULTILINE)
}
# Checked themselves, by what they hold.
OURS = {*TOP_LEVEL, "custom_params"}


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        (OPENAI, PLACE),
        (OPENAI_API, PLACE),
        (OPENAI_API, GENERATE_PLACE),
        (GENERATE, GENERATE_PLACE),
        (SILENT, GENERATE_PLACE),
    ],
)
def test_fields_of_bodies_pass(fields: set[str], place: str) -> None:
    assert len(fields) > 30
    for field in fields - OURS:
        for value in (1, {"a": 1}, [{"a": 1}], None):
            check_top_level_keys({field: value, field.title().replace("_", ""): value}, place)


def test_the_fields_of_the_api_are_found() -> None:
    assert len(OPENAI_API) > 500
    assert {"prompt_cache_retention", "service_tier", "safety_identifier", "verbosity"} <= OPENAI_API
    assert {"truncation", "reasoning", "prompt_cache_key", "stream_options", "metadata"} <= OPENAI_API


@pytest.mark.parametrize("name", ["client_id", "policy", "attention_policy", "target_entropy"])
def test_common_words_below_fields_pass(name: str) -> None:
    """Tools, schemas and metadata name things as they like."""
    for field in (OPENAI | GENERATE | SILENT | OPENAI_API) - {*OURS, "sampling_params"}:
        for value in ({name: "a"}, [{name: {name: 1}}], {"properties": {name: {"type": "string"}}}):
            for place in (PLACE, GENERATE_PLACE):
                check_top_level_keys({field: value}, place)


def test_fields_of_sampling_parameters_pass() -> None:
    fields = set(SamplingParams.__struct_fields__)
    assert "custom_params" in fields
    for field in fields - OURS:
        check_sampling_params_keys({field: 1}, GENERATE_PLACE)
