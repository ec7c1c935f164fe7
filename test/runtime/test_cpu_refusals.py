"""What the portable CPU platform cannot run is refused before weights load, with what it can run instead."""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from sglang.srt.server_args import ServerArgs

from sgl_entropic.errors import UnsupportedError
from sgl_entropic.runtime.cpu_refusals import KNOWN_ARCHITECTURES, refuse_on_cpu

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_hidden_layers": 3,
}
REFUSED = [
    ["--device", "cuda"],
    ["--attention-backend", "flashinfer"],
    ["--attention-backend", "intel_amx"],
    ["--prefill-attention-backend", "fa3"],
    ["--decode-attention-backend", "triton"],
    ["--sampling-backend", "flashinfer"],
    ["--quantization", "fp8"],
    ["--kv-cache-dtype", "fp8_e5m2"],
    ["--dtype", "float16"],
    ["--dtype", "half"],
    ["--speculative-algorithm", "EAGLE"],
    ["--enable-lora"],
    ["--tp-size", "2"],
    ["--pp-size", "2"],
    ["--dp-size", "2"],
    ["--enable-torch-compile"],
    ["--enable-hierarchical-cache"],
    ["--enable-hisparse"],
    ["--cpu-offload-gb", "4"],
    ["--page-size", "16"],
]
ACCEPTED = [
    [],
    ["--device", "cpu"],
    ["--attention-backend", "torch_native"],
    ["--sampling-backend", "pytorch"],
    ["--kv-cache-dtype", "bfloat16"],
    ["--dtype", "float32"],
    ["--dtype", "bfloat16"],
    ["--tp-size", "1", "--pp-size", "1", "--dp-size", "1", "--page-size", "1"],
]


@pytest.fixture(scope="module")
def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    ServerArgs.add_cli_args(made)
    return made


def model(directory: Path, **config: Any) -> str:
    (directory / "config.json").write_text(json.dumps({**LLAMA, **config}))
    return str(directory)


@pytest.mark.parametrize("flags", REFUSED, ids=" ".join)
def test_a_flag_that_needs_other_hardware_is_refused(
    parser: argparse.ArgumentParser, tmp_path: Path, flags: list[str]
) -> None:
    arguments = parser.parse_args(["--model-path", model(tmp_path), *flags])
    with pytest.raises(UnsupportedError) as refusal:
        refuse_on_cpu(arguments)
    assert f"{' '.join(flags)} is not available here: " in str(refusal.value)
    assert str(refusal.value).count("is not available here") == 1


@pytest.mark.parametrize("size", ["2", "16", "64"])
def test_pages_of_more_than_one_token_are_refused(
    parser: argparse.ArgumentParser, tmp_path: Path, size: str
) -> None:
    """The page lists that the kernels read name single tokens; the message says so, and which size there is."""
    with pytest.raises(UnsupportedError) as refusal:
        refuse_on_cpu(parser.parse_args(["--model-path", model(tmp_path), "--page-size", size]))
    assert str(refusal.value) == (
        f"--page-size {size} is not available here: the page lists of this platform are of single tokens; accepted: 1"
    )


def assert_accepted(server_args: argparse.Namespace) -> None:
    """Nothing of these flags and this model is refused."""
    try:
        refuse_on_cpu(server_args)
    except UnsupportedError as refusal:
        raise AssertionError(str(refusal)) from refusal


@pytest.mark.parametrize("flags", ACCEPTED, ids=" ".join)
def test_what_fits_is_accepted(parser: argparse.ArgumentParser, tmp_path: Path, flags: list[str]) -> None:
    assert_accepted(parser.parse_args(["--model-path", model(tmp_path), *flags]))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantised (gptq)"),
        ({"model_type": "mixtral", "num_local_experts": 4}, "mixture-of-experts"),
        ({"model_type": "deepseek_v3", "kv_lora_rank": 16, "n_routed_experts": 1}, "latent attention"),
        ({"model_type": "qwen2_vl", "architectures": ["Qwen2VLForConditionalGeneration"]}, "image and audio"),
    ],
)
def test_a_model_that_needs_gpu_kernels_is_refused(
    parser: argparse.ArgumentParser, tmp_path: Path, config: dict[str, Any], reason: str
) -> None:
    """Naming the model, what is in the way, and the architectures that run."""
    path = model(tmp_path, **config)
    with pytest.raises(UnsupportedError) as refusal:
        refuse_on_cpu(parser.parse_args(["--model-path", path]))
    for words in (path, reason, *KNOWN_ARCHITECTURES):
        assert words in str(refusal.value)


def test_everything_in_the_way_is_told_at_once(parser: argparse.ArgumentParser, tmp_path: Path) -> None:
    path = model(tmp_path, model_type="deepseek_v3", kv_lora_rank=16, n_routed_experts=8)
    with pytest.raises(UnsupportedError) as refusal:
        refuse_on_cpu(parser.parse_args(["--model-path", path, "--page-size", "16"]))
    for words in ("--page-size 16", "mixture-of-experts", "latent attention"):
        assert words in str(refusal.value)


def test_a_model_that_cannot_be_read_is_left_to_sglang(
    parser: argparse.ArgumentParser, tmp_path: Path
) -> None:
    assert_accepted(parser.parse_args(["--model-path", str(tmp_path / "gone")]))


@pytest.mark.parametrize(
    ("architecture", "warned"), [("LlamaForCausalLM", False), ("GraniteForCausalLM", True)]
)
def test_a_dense_model_that_nobody_tried_is_warned_about(
    parser: argparse.ArgumentParser,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    architecture: str,
    *,
    warned: bool,
) -> None:
    with caplog.at_level(logging.WARNING, "sgl_entropic"):
        refuse_on_cpu(parser.parse_args(["--model-path", model(tmp_path, architectures=[architecture])]))
    assert any(architecture in message for message in caplog.messages) is warned
