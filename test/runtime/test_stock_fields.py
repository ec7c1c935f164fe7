"""No field of SGLang's own bodies is taken for one of ours: a request that means it would be refused."""

from __future__ import annotations

import dataclasses

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
# Checked themselves, by what they hold.
OURS = {*TOP_LEVEL, "custom_params"}


@pytest.mark.parametrize(
    ("fields", "place"), [(OPENAI, PLACE), (GENERATE, GENERATE_PLACE), (SILENT, GENERATE_PLACE)]
)
def test_fields_of_bodies_pass(fields: set[str], place: str) -> None:
    assert len(fields) > 30
    for field in fields - OURS:
        for value in (1, {"a": 1}, [{"a": 1}]):
            check_top_level_keys({field: value}, place)


def test_fields_of_sampling_parameters_pass() -> None:
    fields = set(SamplingParams.__struct_fields__)
    assert "custom_params" in fields
    for field in fields - OURS:
        check_sampling_params_keys({field: 1}, GENERATE_PLACE)
