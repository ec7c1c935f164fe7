"""A packed model computes the same products, holds each matrix once, and leaves no numbers behind in its parameters."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sglang.srt.layers.linear import LinearBase
from sglang.srt.layers.quantization.unquant import UnquantizedEmbeddingMethod, UnquantizedLinearMethod
from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

from sgl_entropic.runtime.cpu.head_statistics import HeadStatistics
from sgl_entropic.runtime.cpu.weights import PackedEmbeddingMethod, PackedLinearMethod, pack_model

HIDDEN, WIDE, VOCAB, PADDED = 100, 52, 333, 384


def bare(kind: Any, method: Any, matrix: torch.Tensor, **attributes: Any) -> Any:
    """A layer of SGLang's class as its constructor would leave it, without the parallel groups that asks for."""
    module = kind.__new__(kind)
    torch.nn.Module.__init__(module)
    module.quant_method = method
    module.weight = torch.nn.Parameter(matrix, requires_grad=False)
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


def linear(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> Any:
    return bare(LinearBase, UnquantizedLinearMethod(), torch.randn(rows, columns).to(dtype))


def vocabulary(kind: Any = VocabParallelEmbedding) -> Any:
    """333 tokens in 384 rows; the padding is not zero, so that it would be seen."""
    return bare(kind, UnquantizedEmbeddingMethod(), torch.randn(PADDED, HIDDEN), org_vocab_size=VOCAB)


class Model(torch.nn.Module):
    """A vocabulary, two matrices, a norm, and an LM head of its own or the same as the vocabulary."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.embed_tokens = vocabulary()
        self.up = linear(WIDE, HIDDEN)
        self.down = linear(HIDDEN, WIDE)
        self.norm = torch.nn.LayerNorm(HIDDEN)
        self.lm_head = self.embed_tokens if tied else vocabulary(ParallelLMHead)


@pytest.mark.parametrize("tied", [False, True])
def test_products_are_those_of_the_matrices(*, tied: bool) -> None:
    """Linear with and without bias, rows of the vocabulary, and logits of exactly the vocabulary."""
    model = Model(tied=tied)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    statistics = HeadStatistics(usable=True)
    pack_model(model, "float32", statistics)
    x, bias = torch.randn(2, 3, HIDDEN), torch.randn(WIDE)
    for own in (None, bias):
        truth = x.double() @ before["up.weight"].double().T + (0 if own is None else own.double())
        found = model.up.quant_method.apply(model.up, x, own)
        assert found.shape == (2, 3, WIDE)
        np.testing.assert_allclose(found, truth, rtol=1e-5, atol=1e-5)
    ids = torch.tensor([[0, VOCAB - 1], [7, 7]], dtype=torch.int32)
    rows = model.embed_tokens.quant_method.embedding(model.embed_tokens, ids)
    assert torch.equal(rows, before["embed_tokens.weight"][ids.long()])
    head = before["embed_tokens.weight" if tied else "lm_head.weight"][:VOCAB]
    logits = model.lm_head.quant_method.apply(model.lm_head, x[0])
    np.testing.assert_allclose(logits, x[0].double() @ head.double().T, rtol=1e-5, atol=1e-5)
    assert statistics.recall(logits) is not None


@pytest.mark.parametrize("mode", ["float32", "int8"])
@pytest.mark.parametrize("tied", [False, True])
def test_each_matrix_is_held_once(mode: Any, *, tied: bool) -> None:
    """Its parameter keeps name, shape and dtype, and holds no memory; whoever reads it gets an error."""
    model = Model(tied=tied)
    shapes = {name: (p.shape, p.dtype) for name, p in model.named_parameters()}
    packing = pack_model(model, mode, HeadStatistics(usable=True))
    matrices = {"embed_tokens.weight", "up.weight", "down.weight"} | (set() if tied else {"lm_head.weight"})
    parameters = dict(model.named_parameters())
    assert {name: (p.shape, p.dtype) for name, p in parameters.items()} == shapes
    assert {name for name, p in parameters.items() if p.is_meta} == matrices
    with pytest.raises(NotImplementedError):
        parameters["up.weight"].tolist()
    methods = [m.quant_method for m in model.modules() if hasattr(m, "quant_method")]
    assert len(methods) == len(matrices)
    assert packing.packed_bytes == sum(method.packed.bytes for method in methods)
    assert packing.original_bytes == sum(4 * shapes[name][0].numel() for name in matrices)
    numbers = VOCAB * HIDDEN * (1 if tied else 2) + 2 * WIDE * HIDDEN
    # Rows are filled up to 16 and inputs to 32; 8 bits bring a scale of 16 bits for every 32 numbers.
    bytes_a_number = 4 if mode == "float32" else 1 + 2 / 32
    assert numbers * bytes_a_number <= packing.packed_bytes <= 1.45 * numbers * bytes_a_number
    assert set(packing.bytes_of) == {mode}


def test_a_parameter_that_two_modules_share_is_packed_once() -> None:
    """Some models tie by assigning the parameter instead of the module."""
    model = Model(tied=False)
    model.lm_head.weight = model.embed_tokens.weight
    truth = model.embed_tokens.weight[:VOCAB].double()
    packing = pack_model(model, "float32", HeadStatistics(usable=True))
    x = torch.randn(2, HIDDEN)
    logits = model.lm_head.quant_method.apply(model.lm_head, x)
    np.testing.assert_allclose(logits, x.double() @ truth.T, rtol=1e-5, atol=1e-5)
    assert model.lm_head.quant_method.packed is model.embed_tokens.quant_method.packed
    assert packing.original_bytes == 4 * (PADDED * HIDDEN + 2 * WIDE * HIDDEN)


def test_eight_bits_are_close() -> None:
    """Within what rounding to 8 bits costs, weights and inputs, and what fits into 8 bits is kept as it is."""
    model = Model(tied=True)
    truth = torch.randn(4, HIDDEN)
    exact = truth.double() @ model.up.weight.double().T
    pack_model(model, "int8", HeadStatistics(usable=True))
    found = model.up.quant_method.apply(model.up, truth).double()
    error = (found - exact).norm() / exact.norm()
    assert 0 < error < 0.015


@pytest.mark.parametrize("kind", ["bfloat16", "other method", "other class", "three dimensions"])
def test_what_is_not_plain_is_left_alone(kind: str) -> None:
    """Another dtype, another quantisation, a layer that is not SGLang's."""
    module: Any = linear(WIDE, HIDDEN)
    if kind == "bfloat16":
        module = linear(WIDE, HIDDEN, torch.bfloat16)
    elif kind == "other method":
        module.quant_method = SimpleNamespace(apply=None)
    elif kind == "other class":
        module = torch.nn.Linear(HIDDEN, WIDE)
    else:
        module = bare(LinearBase, UnquantizedLinearMethod(), torch.randn(2, WIDE, HIDDEN))
    method = getattr(module, "quant_method", None)
    packing = pack_model(torch.nn.Sequential(module), "int8", HeadStatistics(usable=True))
    assert (packing.packed_bytes, packing.original_bytes, packing.bytes_of) == (0, 0, {})
    assert getattr(module, "quant_method", None) is method
    assert not module.weight.is_meta


def test_packing_twice_changes_nothing() -> None:
    """The second time there is nothing left to pack."""
    model = Model(tied=False)
    pack_model(model, "float32", HeadStatistics(usable=True))
    packed = model.up.quant_method
    assert pack_model(model, "float32", HeadStatistics(usable=True)).packed_bytes == 0
    assert model.up.quant_method is packed
    assert type(packed) is PackedLinearMethod
    assert type(model.lm_head.quant_method) is PackedEmbeddingMethod


def test_no_row_is_no_work() -> None:
    model = Model(tied=True)
    pack_model(model, "float32", HeadStatistics(usable=True))
    assert model.up.quant_method.apply(model.up, torch.empty(0, HIDDEN)).shape == (0, WIDE)
    empty = torch.empty(0, dtype=torch.int64)
    assert model.embed_tokens.quant_method.embedding(model.embed_tokens, empty).shape == (0, HIDDEN)
    assert model.lm_head.quant_method.apply(model.lm_head, torch.empty(0, HIDDEN)).shape == (0, VOCAB)


@pytest.mark.parametrize("token", [-1, VOCAB, 2**40])
def test_a_token_outside_the_vocabulary_is_an_error(token: int) -> None:
    """Not another row's numbers, nor memory beyond the matrix."""
    model = Model(tied=True)
    pack_model(model, "float32", HeadStatistics(usable=True))
    with pytest.raises(ValueError, match="0 to 332"):
        model.embed_tokens.quant_method.embedding(model.embed_tokens, torch.tensor([0, token]))
