"""What attention cannot be pruned with on a GPU is refused before weights load, with the flag to pass instead."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
from sglang.srt.server_args import ServerArgs

from sgl_entropic.runtime.gpu.refusals import POLICIES, gpu_problems, policy_problem

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_hidden_layers": 3,
}
FLASHINFER = ["--attention-backend", "flashinfer"]
PASS = "pass --attention-backend flashinfer or --decode-attention-backend flashinfer"
REFUSED = [
    ["--device", "xpu"],
    ["--speculative-algorithm", "EAGLE"],
    ["--dllm-algorithm", "LowConfidence"],
    ["--enable-two-batch-overlap"],
    ["--enable-pdmux"],
    ["--enable-hisparse"],
    ["--enable-dp-attention"],
    ["--attn-dp-size", "2"],
    ["--dcp-size", "2"],
    ["--attn-cp-size", "2"],
    ["--pp-size", "2"],
    ["--disaggregation-mode", "decode"],
    ["--kv-cache-dtype", "nvfp4"],
    ["--kv-cache-dtype", "mxfp8"],
]
ACCEPTED = [
    [],
    ["--device", "cuda"],
    ["--tp-size", "2", "--dp-size", "2"],
    ["--kv-cache-dtype", "bfloat16"],
    ["--kv-cache-dtype", "fp8_e4m3"],
    ["--page-size", "16"],
    ["--prefill-attention-backend", "fa3"],
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
def test_a_flag_in_the_way_is_refused_with_what_to_do(
    parser: argparse.ArgumentParser, tmp_path: Path, flags: list[str]
) -> None:
    problems = gpu_problems(parser.parse_args(["--model-path", model(tmp_path), *FLASHINFER, *flags]))
    assert len(problems) == 1
    assert problems[0].startswith(f"{' '.join(flags)} is not available here: ")
    assert problems[0].endswith("--entropic-attention off")


@pytest.mark.parametrize("flags", ACCEPTED, ids=" ".join)
def test_what_fits_is_accepted(parser: argparse.ArgumentParser, tmp_path: Path, flags: list[str]) -> None:
    assert gpu_problems(parser.parse_args(["--model-path", model(tmp_path), *FLASHINFER, *flags])) == []


@pytest.mark.parametrize("backend", ["fa3", "fa4", "triton", "trtllm_mha", "flashmla", "torch_native"])
@pytest.mark.parametrize("flag", ["--attention-backend", "--decode-attention-backend"])
def test_another_backend_is_refused_naming_the_flag_to_pass(
    parser: argparse.ArgumentParser, tmp_path: Path, flag: str, backend: str
) -> None:
    problems = gpu_problems(parser.parse_args(["--model-path", model(tmp_path), flag, backend]))
    assert len(problems) == 1
    assert problems[0].startswith(f"{flag} {backend} is not available here: ")
    assert PASS in problems[0]


def test_no_backend_is_refused_because_the_default_depends_on_the_gpu(
    parser: argparse.ArgumentParser, tmp_path: Path
) -> None:
    problems = gpu_problems(parser.parse_args(["--model-path", model(tmp_path)]))
    assert len(problems) == 1
    assert PASS in problems[0]


@pytest.mark.parametrize(
    ("flags", "accepted"),
    [
        (["--attention-backend", "fa3", "--decode-attention-backend", "flashinfer"], True),
        (["--decode-attention-backend", "flashinfer"], True),
        (["--attention-backend", "flashinfer", "--decode-attention-backend", "fa3"], False),
        (["--prefill-attention-backend", "flashinfer"], False),
    ],
)
def test_the_backend_of_decode_steps_is_the_one_that_counts(
    parser: argparse.ArgumentParser, tmp_path: Path, flags: list[str], *, accepted: bool
) -> None:
    assert (gpu_problems(parser.parse_args(["--model-path", model(tmp_path), *flags])) == []) is accepted


def test_latent_attention_is_refused_by_the_model(parser: argparse.ArgumentParser, tmp_path: Path) -> None:
    path = model(tmp_path, model_type="deepseek_v3", kv_lora_rank=16, n_routed_experts=1)
    problems = gpu_problems(parser.parse_args(["--model-path", path, *FLASHINFER]))
    assert len(problems) == 1
    assert problems[0].startswith(f"--model-path {path} is not available here: its latent attention (MLA)")


def test_everything_in_the_way_is_told_at_once(parser: argparse.ArgumentParser, tmp_path: Path) -> None:
    flags = [
        "--model-path",
        model(tmp_path),
        "--attention-backend",
        "fa3",
        "--pp-size",
        "2",
        "--enable-pdmux",
    ]
    assert len(gpu_problems(parser.parse_args(flags))) == 3


@pytest.mark.parametrize("policy", ["surprisal", "streaming", "attention", "quest", "mixed"])
def test_policies_that_measure_attention_are_refused(policy: str) -> None:
    """Naming those that can be had."""
    problem = policy_problem(policy)
    assert (problem is None) is (policy in POLICIES)
    if problem is not None:
        assert policy in problem
        assert "surprisal, streaming" in problem
