"""Tiny random models of several architectures, through SGLang's model runner, equal transformers on the same weights.

The models are made by transformers; every matrix, bias and norm in them is random, so nothing can be left out unseen.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.slow

TOLERANCE_NATS = 1e-4  # float32 on both sides; seen: 4e-5
CUT, STEPS = 4, 8
LENGTHS = (5, 17, 70, 9)
COMMON: dict[str, Any] = {
    "num_hidden_layers": 2,
    # Neither is a multiple of what a kernel takes at once.
    "vocab_size": 333,
    "hidden_size": 100,
    "intermediate_size": 172,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
# Name to transformers' configuration class and what differs from COMMON.
FUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {"head_dim": 32}),
    "llama-tied-biased": (
        "LlamaConfig",
        {"head_dim": 64, "attention_bias": True, "tie_word_embeddings": True},
    ),
    "llama-rope-scaled": ("LlamaConfig", {"head_dim": 32, "rope_scaling": LLAMA3_ROPE}),
    "llama-every-head-its-own": (
        "LlamaConfig",
        {"head_dim": 48, "num_key_value_heads": 4, "vocab_size": 1024},
    ),
    "mistral": ("MistralConfig", {"head_dim": 32, "sliding_window": None}),
    "qwen2": ("Qwen2Config", {"hidden_size": 128, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3Config", {"head_dim": 64}),
}
# And the reason that the log gives.
MODULES: dict[str, tuple[str, dict[str, Any], str]] = {
    "olmo2": ("Olmo2Config", {"hidden_size": 128}, "Olmo2ForCausalLM is not one of"),
    "gpt2": (
        "GPT2Config",
        {"hidden_size": 128, "num_key_value_heads": 4},
        "GPT2LMHeadModel is not one of",
    ),
    "llama-odd-heads": ("LlamaConfig", {"head_dim": 20}, "attention"),
}
FLOAT32 = ["--entropic-weights", "float32"]
# Two precisions of the first model: what they are served with, and what that costs at most.
BFLOAT16 = {
    "kv-bfloat16": ([*FLOAT32, "--kv-cache-dtype", "bfloat16"], 0.2),
    "dtype-bfloat16": ([*FLOAT32, "--dtype", "bfloat16"], 0.5),
}


@dataclass(frozen=True)
class Run:
    """What a model did, and what it was expected to."""

    prompts: list[list[int]]
    tokens: np.ndarray
    logits: np.ndarray
    state: dict[str, Any] | None
    log: str
    model: Any

    def log_probabilities(self) -> tuple[np.ndarray, np.ndarray]:
        """[prompts, steps, vocab] of this run and of transformers that read the same tokens, float64."""
        truth = []
        for prompt, tokens in zip(self.prompts, self.tokens.tolist(), strict=True):
            with torch.inference_mode():
                logits = self.model(torch.tensor([prompt + tokens])).logits[0]
            truth.append(logits[len(prompt) - 1 : -1].double().log_softmax(-1).numpy())
        mine = torch.tensor(self.logits).double().log_softmax(-1).numpy()
        return mine, np.stack(truth)


def saved(directory: Path, kind: str, changes: dict[str, Any]) -> Any:
    """A model with random weights, written to ``directory``."""
    import transformers

    torch.manual_seed(7)
    config = getattr(transformers, kind)(**{**COMMON, **changes})
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", dtype=torch.float32
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                # Vocabularies so wide that the answers are neither flat nor certain.
                wide = "embed" in name or "wte" in name or "lm_head" in name
                parameter.normal_(0.0, 0.3 if wide else parameter.shape[-1] ** -0.5)
            elif "bias" in name:
                parameter.normal_(0.0, 0.5)
            else:
                parameter.normal_(1.0, 0.2)
    model.tie_weights()
    model.save_pretrained(directory)
    return model.eval()


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """Serves all models, one after the other; a model that failed fails its own test."""
    directory = tmp_path_factory.mktemp("models")
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(2, 333, (length,), generator=generator).tolist() for length in LENGTHS]
    kinds = {**FUSED, **{name: value[:2] for name, value in MODULES.items()}}
    models = {name: saved(directory / name, *value) for name, value in kinds.items()}
    flags = {**dict.fromkeys(kinds, FLOAT32), **{name: value[0] for name, value in BFLOAT16.items()}}
    models |= dict.fromkeys(BFLOAT16, models["llama"])
    jobs = [
        {
            "name": name,
            "model_path": str(directory / (name if name in kinds else "llama")),
            "prompts": prompts,
            "cut": CUT,
            "steps": STEPS,
            "flags": own,
        }
        for name, own in flags.items()
    ]
    (directory / "jobs.json").write_text(json.dumps(jobs))
    program = Path(__file__).with_name("model_process.py")
    env = {**os.environ, "SGLANG_ENTROPIC_CONFIG": "{}"}
    result = subprocess.run(
        [sys.executable, str(program), str(directory)], env=env, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr[-4000:]

    def read(name: str) -> Run:
        log = (directory / f"{name}.log").read_text()
        assert (directory / f"{name}.npz").exists(), log[-1500:]
        arrays = np.load(directory / f"{name}.npz")
        state = json.loads((directory / f"{name}.json").read_text())
        return Run(prompts, arrays["tokens"], arrays["logits"], state, log, models[name])

    return read


def assert_equals_transformers(run: Run) -> None:
    """Every probability of every step, and the token chosen."""
    mine, truth = run.log_probabilities()
    assert mine.shape == truth.shape
    np.testing.assert_allclose(mine, truth, atol=TOLERANCE_NATS)
    assert (run.tokens == truth.argmax(-1)).all()
    # No model so flat that any answer would do.
    assert np.exp(truth.max(-1)).mean() > 0.1


@pytest.mark.parametrize("name", FUSED)
def test_the_fused_decoder_equals_transformers(run_of: Callable[[str], Run], name: str) -> None:
    """Prefill, prefill over cached tokens and decoding, four requests of different lengths in one batch."""
    run = run_of(name)
    assert_equals_transformers(run)
    assert run.state is not None
    assert run.state["last_backend"] == "fused"
    assert (run.state["fused_steps"], run.state["module_steps"]) == (STEPS + 1, 0)
    assert run.state["fused_tokens"] == sum(LENGTHS) + len(LENGTHS) * (STEPS - 1)
    assert (run.state["paged_attention_calls"], run.state["native_attention_calls"]) == (0, 0)
    assert run.state["module_reason"] == ""
    assert run.log.count("CPU fast path: the whole decoder in one call") == 1


@pytest.mark.parametrize("name", MODULES)
def test_module_by_module_equals_transformers(run_of: Callable[[str], Run], name: str) -> None:
    """Other models keep their own forward, over packed weights; one line in the log says why."""
    run = run_of(name)
    reason = MODULES[name][2]
    assert_equals_transformers(run)
    assert run.state is not None
    assert run.state["last_backend"] == "modules"
    assert run.state["fused_steps"] == 0
    assert reason in run.state["module_reason"]
    lines = [line for line in run.log.splitlines() if "CPU fast path" in line]
    assert len(lines) == 1
    assert "module by module, because" in lines[0]
    assert reason in lines[0]
    layers = COMMON["num_hidden_layers"]
    calls = (run.state["paged_attention_calls"], run.state["native_attention_calls"])
    # A head of 20 numbers is none that the kernel takes: SGLang's own attention serves it.
    kernel_takes_it = name != "llama-odd-heads"
    assert calls == (((STEPS + 1) * layers, 0) if kernel_takes_it else (0, (STEPS + 1) * layers))


@pytest.mark.parametrize("name", BFLOAT16)
def test_bfloat16(run_of: Callable[[str], Run], name: str) -> None:
    """Close to transformers in float32, as far as bfloat16 is; and by which path."""
    run = run_of(name)
    mine, truth = run.log_probabilities()
    likely = truth > np.log(0.01)
    assert np.abs(mine - truth)[likely].mean() < BFLOAT16[name][1] / 5
    assert np.abs(mine - truth)[likely].max() < BFLOAT16[name][1]
    assert run.state is not None
    if name == "kv-bfloat16":
        assert (run.state["last_backend"], run.state["fused_steps"]) == ("fused", STEPS + 1)
        return
    assert (run.state["last_backend"], run.state["fused_steps"]) == ("modules", 0)
    assert "not packed" in run.state["module_reason"]
    assert run.state["weight_bytes"] == 0
    assert run.state["paged_attention_calls"] == (STEPS + 1) * COMMON["num_hidden_layers"]
