"""Facts of real ``config.json`` files, as transformers reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sgl_entropic.runtime.model_facts import ModelFacts, model_facts

DENSE: dict[str, Any] = {
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "max_position_embeddings": 512,
}
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **DENSE}
FACTS = ModelFacts("LlamaForCausalLM", 3, 2, 8, 512, None, False, False, False)


def facts_of(directory: Path, config: Any) -> ModelFacts | None:
    """The facts of a model directory that holds ``config`` (text as it is, anything else as JSON)."""
    text = config if isinstance(config, str) else json.dumps(config)
    (directory / "config.json").write_text(text, encoding="utf-8")
    return model_facts(str(directory))


def read(directory: Path, config: Any) -> ModelFacts:
    facts = facts_of(directory, config)
    assert facts is not None
    return facts


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LLAMA, FACTS),
        (
            {**LLAMA, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]},
            ModelFacts("Qwen2ForCausalLM", 3, 2, 8, 512, None, False, False, False),
        ),
        (  # the width of its heads is not hidden_size / heads
            {**LLAMA, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 32},
            ModelFacts("Qwen3ForCausalLM", 3, 2, 32, 512, None, False, False, False),
        ),
        (  # GPT-2 has other names for all of it, and no grouped heads
            {
                "model_type": "gpt2",
                "architectures": ["GPT2LMHeadModel"],
                "n_embd": 64,
                "n_head": 4,
                "n_layer": 2,
                "n_positions": 128,
            },
            ModelFacts("GPT2LMHeadModel", 2, 4, 16, 128, None, False, False, False),
        ),
    ],
    ids=["llama", "qwen2", "qwen3", "gpt2"],
)
def test_dense_models(tmp_path: Path, config: dict[str, Any], expected: ModelFacts) -> None:
    assert facts_of(tmp_path, config) == expected


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "mixtral", "num_local_experts": 4},
        {"model_type": "qwen3_moe", "num_experts": 4},
        {"model_type": "deepseek_v3", "n_routed_experts": 4},
    ],
    ids=lambda config: str(config["model_type"]),
)
def test_mixtures_of_experts(tmp_path: Path, config: dict[str, Any]) -> None:
    assert read(tmp_path, {**DENSE, **config}).experts is True


def test_one_expert_is_no_mixture(tmp_path: Path) -> None:
    assert read(tmp_path, {**DENSE, "model_type": "mixtral", "num_local_experts": 1}).experts is False


def test_latent_attention(tmp_path: Path) -> None:
    assert read(tmp_path, {**DENSE, "model_type": "deepseek_v3", "kv_lora_rank": 16}).latent_attention is True


@pytest.mark.parametrize("model_type", ["qwen2_vl", "gemma3", "llava", "qwen2_audio"])
def test_models_of_images_and_sound(tmp_path: Path, model_type: str) -> None:
    assert read(tmp_path, {"model_type": model_type}).multimodal is True


def test_the_text_part_of_a_model_of_images_is_what_is_read(tmp_path: Path) -> None:
    text = {"num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64}
    facts = read(tmp_path, {"model_type": "qwen2_vl", "text_config": text})
    assert (facts.layers, facts.kv_heads, facts.head_dim) == (5, 2, 16)


@pytest.mark.parametrize(
    ("quantization", "method"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False}, "gptq"),
        ({"quant_method": "awq", "bits": 4}, "awq"),
        ({"bits": 4}, "unknown"),
        (None, None),
    ],
)
def test_quantised_weights(tmp_path: Path, quantization: Any, method: str | None) -> None:
    assert read(tmp_path, {**LLAMA, "quantization_config": quantization}).quantization == method


def test_an_unnamed_architecture_is_unknown(tmp_path: Path) -> None:
    assert read(tmp_path, {**LLAMA, "architectures": []}).architecture == "unknown"


@pytest.mark.parametrize(
    "config",
    [
        "",
        "{broken",
        "[1]",
        "null",
        {},
        {"model_type": "model_of_the_future"},
        {**LLAMA, "num_hidden_layers": "three"},
        {**LLAMA, "num_attention_heads": 0},
    ],
    ids=str,
)
def test_what_cannot_be_read_has_no_facts(tmp_path: Path, config: Any) -> None:
    """SGLang reads it again and says why; nothing is raised here."""
    assert facts_of(tmp_path, config) is None


def test_a_missing_model_has_no_facts(tmp_path: Path) -> None:
    assert model_facts(str(tmp_path)) is None
    assert model_facts(str(tmp_path / "gone")) is None


@pytest.mark.parametrize(("element_bytes", "expected"), [(4, 2 * 3 * 2 * 8 * 4), (2, 2 * 3 * 2 * 8 * 2)])
def test_kv_bytes_are_keys_and_values_of_every_layer(element_bytes: int, expected: int) -> None:
    assert FACTS.kv_bytes_per_token(element_bytes) == expected
