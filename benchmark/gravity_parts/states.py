"""Final hidden states of texts, after the last norm, from the weights in transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sgl_entropic.models import default_model, resolve_model_path


@dataclass(frozen=True, slots=True)
class Answer:
    """Generated tokens; row ``t`` of ``states`` [n, hidden] is what token ``t`` was predicted from."""

    token_ids: list[int]
    states: NDArray[np.float64]
    entropies_nats: NDArray[np.float64]
    surprisals_nats: NDArray[np.float64]


class Model:
    """A model and its tokenizer; the default one where none is named."""

    def __init__(self, path: str | None = None) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415 -- takes seconds

        folder = resolve_model_path(path or default_model().name)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    @property
    def vocab_size(self) -> int:
        """Tokens that the model knows."""
        return int(self._model.config.vocab_size)

    @torch.inference_mode()
    def states(self, token_ids: list[int]) -> NDArray[np.float64]:
        """``[n, hidden]`` states of a text."""
        output = self._model(torch.tensor([token_ids]), output_hidden_states=True)
        states: NDArray[np.float64] = output.hidden_states[-1][0].double().numpy()
        return states

    @torch.inference_mode()
    def answers(self, prompts: Sequence[str], tokens: int, temperature: float) -> list[Answer]:
        """So many tokens after each of ``prompts``, and what they were predicted from, without padding."""
        self.tokenizer.padding_side = "left"
        self.tokenizer.pad_token = self.tokenizer.eos_token
        padded = self.tokenizer(list(prompts), return_tensors="pt", padding=True)
        how: dict[str, Any] = {"do_sample": False}
        if temperature > 0:
            how = {"do_sample": True, "temperature": temperature, "top_k": 0}
        whole = self._model.generate(**padded, max_new_tokens=tokens, min_new_tokens=tokens, **how)
        begin = padded.input_ids.shape[1]
        return [
            self._read(self.tokenizer.encode(prompt), row[begin:].tolist())
            for prompt, row in zip(prompts, whole, strict=True)
        ]

    def _read(self, prompt: list[int], answer: list[int]) -> Answer:
        output = self._model(torch.tensor([prompt + answer]), output_hidden_states=True)
        rows = slice(len(prompt) - 1, -1)
        log_p = torch.log_softmax(output.logits[0, rows].double(), -1)
        return Answer(
            answer,
            output.hidden_states[-1][0, rows].double().numpy(),
            -(log_p.exp() * log_p).sum(-1).numpy(),
            -log_p[torch.arange(len(answer)), answer].numpy(),
        )
