"""GGUF to a float32 directory that transformers and SGLang load. A script: ``convert.py GGUF DIRECTORY``.

It is run by path in a child process, imports nothing of this package, and nothing imports it: torch is loaded only
where it is given back at once. ``convert: `` marks the lines that are meant for the user.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from gguf import GGUFReader
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

_STEPS = 3


def convert(gguf: Path, target: Path) -> None:
    """Write the model of ``gguf`` into ``target``: float32 safetensors, configuration, tokenizer, chat template.

    Raises:
        ValueError: the file's tokenizer is of a kind that is not known here, a weight is missing or not finite, or
            its chat template ends a turn with something that would not stop the generation.
    """
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    _say(1, "reading the tokenizer")
    tokenizer = _tokenizer(gguf)
    _say(2, "turning the weights into float32")
    model = _model(gguf)
    tokenizer.model_max_length = model.config.max_position_embeddings
    _require_stop(tokenizer, model)
    _say(3, "writing")
    model.save_pretrained(target, max_shard_size="1TB")
    tokenizer.save_pretrained(target)
    # safetensors writes its file for the owner alone; a cache may be shared
    shutil.copymode(target / "config.json", target / "model.safetensors")


def _tokenizer(gguf: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    field = GGUFReader(gguf).get_field("tokenizer.ggml.pre")
    kind = field.contents() if field else "none"
    if kind != "smollm":
        raise ValueError(f"the tokenizer of {gguf.name} splits text as {kind!r}; known here: 'smollm'")
    # transformers 5.19 ignores this field and splits as GPT-2 does. SmolLM sets every digit apart first: without
    # that, "a  12" or a numbered list become tokens that the model was not trained on.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return tokenizer


def _model(gguf: Path) -> Any:
    model, info = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
        output_loading_info=True,
    )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        if info.get(kind):
            raise ValueError(f"{gguf.name}: {kind} {sorted(map(str, info[kind]))[:5]}")
    for name, weight in model.named_parameters():
        if weight.dtype != torch.float32 or not bool(torch.isfinite(weight).all()):
            raise ValueError(f"{gguf.name}: {name} is {weight.dtype} or holds a value that is not finite")
    return model


def _require_stop(tokenizer: Any, model: Any) -> None:
    eos = model.generation_config.eos_token_id
    eos_ids = set(eos) if isinstance(eos, list) else {eos}
    turn = tokenizer.apply_chat_template([{"role": "assistant", "content": "Yes."}], tokenize=False)
    last = tokenizer.encode(turn.rstrip(), add_special_tokens=False)[-1]
    if last not in eos_ids:
        raise ValueError(f"a chat turn ends with token {last}, but generation stops at {sorted(eos_ids)}")


def _say(step: int, text: str) -> None:
    sys.stdout.write(f"convert: {step}/{_STEPS} {text}\n")
    sys.stdout.flush()


def main() -> None:
    """Convert what the command line names, then say how long it took and how much memory."""
    parser = argparse.ArgumentParser(description="GGUF to a float32 model directory")
    parser.add_argument("gguf", type=Path)
    parser.add_argument("target", type=Path)
    arguments = parser.parse_args()
    started_s = time.monotonic()
    convert(arguments.gguf, arguments.target)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    sys.stdout.write(f"convert: done in {time.monotonic() - started_s:.0f} s, peak memory {peak_mb:.0f} MB\n")


if __name__ == "__main__":
    main()
