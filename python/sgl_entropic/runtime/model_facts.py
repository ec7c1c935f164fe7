"""The few facts of a model's configuration that decisions before loading need."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Read from a model's ``config.json``.

    Attributes:
        architecture: class name of the model.
        layers: decoder layers.
        kv_heads: key-value heads.
        head_dim: width of a head.
        context_len: longest sequence in tokens.
        quantization: method of the stored weights, ``None`` when they are not quantised.
        experts: whether layers are mixtures of experts.
        latent_attention: whether keys and values are stored as a latent vector (MLA).
        multimodal: whether the model takes images or sound.
    """

    architecture: str
    layers: int
    kv_heads: int
    head_dim: int
    context_len: int
    quantization: str | None
    experts: bool
    latent_attention: bool
    multimodal: bool

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        """Bytes of keys and values of one token, over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * element_bytes


def model_facts(model_path: str, *, trust_remote_code: bool = False) -> ModelFacts | None:
    """Facts of a local directory or hub id; ``None`` when they cannot be read (SGLang will say why it cannot load it)."""
    from transformers import AutoConfig  # noqa: PLC0415 -- slow to import, and only needed here

    try:
        config = AutoConfig.from_pretrained(model_path, trust_remote_code=trust_remote_code)
    except Exception as error:  # noqa: BLE001 -- transformers raises many kinds; SGLang reads it again and reports
        logger.info("Could not read the configuration of %s: %s", model_path, error)
        return None
    return _facts(config)


def _facts(config: Any) -> ModelFacts:
    text = config.get_text_config()
    heads = int(getattr(text, "num_attention_heads", 1) or 1)
    quantization = getattr(config, "quantization_config", None) or getattr(config, "compression_config", None)
    method = quantization.get("quant_method", "unknown") if isinstance(quantization, dict) else quantization
    experts = any(
        int(getattr(text, name, 0) or 0) > 1
        for name in ("num_experts", "num_local_experts", "n_routed_experts")
    )
    return ModelFacts(
        architecture=(getattr(config, "architectures", None) or ["unknown"])[0],
        layers=int(getattr(text, "num_hidden_layers", 1)),
        kv_heads=int(getattr(text, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(text, "head_dim", None) or getattr(text, "hidden_size", heads) // heads),
        context_len=int(getattr(text, "max_position_embeddings", None) or 2048),
        quantization=None if method is None else str(method),
        experts=experts,
        latent_attention=getattr(text, "kv_lora_rank", None) is not None,
        multimodal=any(getattr(config, name, None) is not None for name in ("vision_config", "audio_config")),
    )
