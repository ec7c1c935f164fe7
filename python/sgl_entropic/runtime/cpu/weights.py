"""Weights packed once for the compiled kernels, behind SGLang's own quantisation methods.

A packed layer keeps its module and its parameter's name, shape and dtype; the numbers live in the packed form only, and
the parameter is left on the ``meta`` device. So nothing holds two copies, and whoever would read or write the parameter
itself gets an error instead of stale numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from sglang.srt.layers.linear import LinearBase
from sglang.srt.layers.quantization.base_config import QuantizeMethodBase
from sglang.srt.layers.quantization.unquant import UnquantizedEmbeddingMethod, UnquantizedLinearMethod
from sglang.srt.layers.vocab_parallel_embedding import VocabParallelEmbedding

from sgl_entropic.entropy.row_statistics import RowStatistics
from sgl_entropic.runtime.cpu.head_statistics import HeadStatistics
from sgl_entropic_kernels.native import library

WeightsMode = Literal["float32", "int8"]


@dataclass(slots=True)
class Packing:
    """What became of a model's weights.

    Attributes:
        mode: ``float32`` or ``int8``.
        bytes_of: bytes by packed format.
        original_bytes: what the same matrices took before.
    """

    mode: WeightsMode
    bytes_of: dict[str, int] = field(default_factory=dict)
    original_bytes: int = 0

    @property
    def packed_bytes(self) -> int:
        """Bytes of all packed matrices: what one token reads of the weights."""
        return sum(self.bytes_of.values())


class PackedLinearMethod(QuantizeMethodBase):
    """Products with a packed matrix, in place of ``UnquantizedLinearMethod``."""

    def __init__(self, weight: Any) -> None:
        self.packed = weight

    def create_weights(self, layer: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        """Never called: the layer exists already."""
        raise NotImplementedError

    def apply(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """``x`` [..., k] times the weight, plus ``bias`` [n]."""
        rows = x.reshape(-1, x.shape[-1]).float().contiguous()
        out = torch.empty(rows.shape[0], self.packed.n, dtype=torch.float32)
        library().linear(rows, self.packed, out, None if bias is None else bias.detach().float())
        return out.to(x.dtype).view(*x.shape[:-1], self.packed.n)


class PackedEmbeddingMethod(PackedLinearMethod):
    """A packed vocabulary: rows for the embedding, products with row statistics for the LM head."""

    def __init__(self, weight: Any, statistics: HeadStatistics) -> None:
        super().__init__(weight)
        self.statistics = statistics

    def apply(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Logits [rows, vocab]; their statistics are remembered for whoever asks about these logits next."""
        if bias is not None or x.ndim != 2:
            return super().apply(layer, x, bias)
        rows = x.float().contiguous()
        return self.statistics.logits(rows, self.packed).to(x.dtype)

    def target_statistics(
        self, hidden: torch.Tensor, targets: torch.Tensor
    ) -> tuple[RowStatistics, torch.Tensor] | None:
        """Statistics of the rows ``hidden`` [n, k] and the logits of ``targets`` [n], without keeping the logits."""
        return self.statistics.of_targets(hidden, self.packed, targets)

    def embedding(self, layer: torch.nn.Module, input_: torch.Tensor) -> torch.Tensor:
        """Rows ``input_`` [...] of the vocabulary, [..., k]."""
        out = torch.empty(input_.numel(), self.packed.k, dtype=torch.float32)
        self.packed.rows(input_.reshape(-1).long().contiguous(), out)
        return out.view(*input_.shape, self.packed.k)


def pack_model(model: torch.nn.Module, mode: WeightsMode, statistics: HeadStatistics) -> Packing:
    """Replace every plain matrix of ``model`` by its packed form, one at a time.

    Args:
        model: a float32 model.
        mode: ``float32`` keeps every number; ``int8`` computes with 8-bit integers.
        statistics: where the LM head leaves the statistics of its rows.
    """
    packing = Packing(mode)
    modules = list(_packable(model))
    uses = Counter(id(module.weight) for module in modules)
    shared: dict[int, Any] = {}
    for module in modules:
        parameter = module.weight
        packed = shared.get(id(parameter))
        vocabulary = isinstance(module, VocabParallelEmbedding)
        if packed is None:
            # Rows beyond the vocabulary are padding, which must not take part in a sum over it.
            matrix = parameter.detach()[: module.org_vocab_size] if vocabulary else parameter.detach()
            packed = _pack(matrix, mode)
            packing.original_bytes += parameter.nbytes
            packing.bytes_of[packed.format] = packing.bytes_of.get(packed.format, 0) + packed.bytes
            if uses[id(parameter)] > 1:
                shared[id(parameter)] = (
                    packed  # alive until its last module has been here, so the id stays its own
                )
        module.quant_method = (
            PackedEmbeddingMethod(packed, statistics) if vocabulary else PackedLinearMethod(packed)
        )
        module.weight = torch.nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=False)
    return packing


def _packable(model: torch.nn.Module) -> Iterator[Any]:
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        plain = (isinstance(module, LinearBase) and type(method) is UnquantizedLinearMethod) or (
            isinstance(module, VocabParallelEmbedding) and type(method) is UnquantizedEmbeddingMethod
        )
        if plain and module.weight.ndim == 2 and module.weight.dtype == torch.float32:
            yield module


def _pack(matrix: torch.Tensor, mode: WeightsMode) -> Any:
    """``small`` keeps the numbers of a matrix that fits into 8 bits as it is, and rounds only the others."""
    if mode == "int8":
        return library().pack(matrix.contiguous(), "small", integer=True)
    return library().pack(matrix.contiguous(), "lossless")
