"""The compiled decoder of a Llama model in float32, with a KV cache whose slots the caller shares out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM

from sgl_entropic_kernels.native import STATISTICS, library

PREFILL_TOKENS = 512
"""New tokens of one call of the prefill."""
MOST_ERROR = 1e-3
"""Of a logit, beside transformers with the same weights."""

Floats = NDArray[np.float32]
Indices = NDArray[np.int64]


class ModelError(RuntimeError):
    """The model is not one that this builds, or its decoder does not compute what transformers does."""


class Model:
    """One model with one cache.

    Attributes:
        layers: of the decoder.
        kv_heads: likewise.
        head_dim: likewise.
    """

    def __init__(self, path: Path, slots: int, positions: int) -> None:
        """Pack the weights of ``path`` and compare a short prompt's logits.

        Args:
            path: folder of a Llama model.
            slots: of the cache.
            positions: the longest context.

        Raises:
            ModelError: see there.
        """
        plain = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        config = plain.config
        if config.model_type != "llama" or config.attention_bias or config.mlp_bias:
            raise ModelError(f"a {config.model_type} with biases or not of the Llama family")
        self.layers, self.kv_heads = config.num_hidden_layers, config.num_key_value_heads
        self.head_dim = config.head_dim
        self._hidden = config.hidden_size
        embedding = library().pack(plain.model.embed_tokens.weight.detach(), "lossless")
        tied = plain.lm_head.weight is plain.model.embed_tokens.weight
        self._head = embedding if tied else library().pack(plain.lm_head.weight.detach(), "lossless")
        self._decoder = library().Decoder(
            embedding=embedding,
            final_norm=plain.model.norm.weight.detach(),
            q_heads=config.num_attention_heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            intermediate=config.intermediate_size,
            eps=config.rms_norm_eps,
            head_eps=0.0,
            scale=self.head_dim**-0.5,
            window=-1,
            logit_cap=0.0,
            rope_table=_rope_table(plain.model.rotary_emb.inv_freq, positions),
            neox=True,
        )
        for layer in plain.model.layers:
            self._add(layer)
        shape = (slots, self.kv_heads, self.head_dim)
        # Torch's, and not touched: only the slots that are used cost memory.
        self._caches = [[torch.empty(shape) for _ in range(self.layers)] for _ in range(2)]
        self._decoder.set_cache(*self._caches)
        self._check(plain, config.vocab_size)

    def _add(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp

        def packed(*modules: Any) -> Any:
            return library().pack(torch.cat([m.weight.detach() for m in modules]), "lossless")

        self._decoder.add_layer(
            qkv=packed(attention.q_proj, attention.k_proj, attention.v_proj),
            o=packed(attention.o_proj),
            gate_up=packed(mlp.gate_proj, mlp.up_proj),
            down=packed(mlp.down_proj),
            input_norm=layer.input_layernorm.weight.detach(),
            post_norm=layer.post_attention_layernorm.weight.detach(),
        )

    @torch.inference_mode()
    def _check(self, plain: Any, vocabulary: int) -> None:
        ids = torch.from_numpy(np.random.default_rng(1).integers(0, vocabulary, 48))
        error = float((self.logits(self.prefill(ids.numpy())) - plain(ids[None]).logits[0]).abs().max())
        if not error <= MOST_ERROR:
            raise ModelError(
                f"logits are {error:.3g} away from those of transformers, at most {MOST_ERROR} accepted"
            )

    def forward(
        self, ids: Indices, lengths: list[int], slots: list[Indices], new: list[int], **blocks: Any
    ) -> torch.Tensor:
        """Final hidden states of the new tokens ``[tokens, hidden]``.

        Args:
            ids: the new tokens of all requests, one request after the other.
            lengths: of each request's context, the new tokens included.
            slots: of each request's tokens.
            new: how many of each request's tokens are new.
            blocks: what the decoder takes where blocks are left out.
        """
        hidden = torch.empty(len(ids), self._hidden)
        positions = [np.arange(length - count, length) for length, count in zip(lengths, new, strict=True)]
        self._decoder.forward(
            ids,
            np.concatenate(positions),
            np.concatenate([own[at] for own, at in zip(slots, positions, strict=True)]),
            np.cumsum([0, *lengths]),
            np.concatenate([own[:length] for own, length in zip(slots, lengths, strict=True)]),
            np.cumsum([0, *new]),
            hidden,
            **blocks,
        )
        return hidden

    def prefill(self, ids: Indices) -> torch.Tensor:
        """Compute a prompt into the first slots; its final hidden states ``[tokens, hidden]``."""
        slots = np.arange(len(ids))
        return torch.cat(
            [
                self.forward(piece, [begin + len(piece)], [slots], [len(piece)])
                for begin in range(0, len(ids), PREFILL_TOKENS)
                if len(piece := ids[begin : begin + PREFILL_TOKENS])
            ]
        )

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """``[rows, vocabulary]``."""
        logits = torch.empty(hidden.shape[0], self._head.n)
        library().lm_head(hidden, self._head, logits)
        return logits

    def surprisal_nats(self, hidden: torch.Tensor, ids: Indices) -> Floats:
        """Of each of the tokens after the final hidden states of all but the last; NaN for the first."""
        before = hidden[: len(ids) - 1].contiguous()
        statistics = torch.empty(len(before), len(STATISTICS))
        taken = torch.empty(len(before))
        library().lm_head(before, self._head, None, statistics, ids[1:].copy(), taken)
        surprisal = np.full(len(ids), np.nan, np.float32)
        surprisal[1:] = (statistics[:, STATISTICS.index("log_sum_exp")] - taken).numpy()
        return surprisal


def _rope_table(inverse: torch.Tensor, positions: int) -> torch.Tensor:
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), inverse.float())
    return torch.cat((angles.cos(), angles.sin()), -1).contiguous()
