"""The compiled norm and activation equal float64, and leave what they do not compute to SGLang's own forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from sgl_entropic.runtime.cpu.fused_ops import rms_norm, silu_and_mul

EXACT = {"rtol": 1e-5, "atol": 1e-6}
SHAPES = [(1, 100), (3, 576), (2, 5, 64), (4, 7)]


class Norm:
    """Stands for ``RMSNorm``; its own forward says that it was asked."""

    def __init__(self, size: int) -> None:
        self.weight = torch.nn.Parameter(torch.randn(size))
        self.variance_epsilon = 1e-5
        self.variance_size_override: int | None = None
        self.hidden_size = size
        self.asked: list[Any] = []

    def forward_native(self, *args: Any, **kwargs: Any) -> str:
        self.asked.append((args, kwargs))
        return "native"


class Activation:
    """Stands for ``SiluAndMul``."""

    def forward_native(self, x: torch.Tensor) -> str:
        return "native"


def normed(x: torch.Tensor, norm: Norm) -> torch.Tensor:
    wide = x.double()
    scale = (wide.square().mean(-1, keepdim=True) + norm.variance_epsilon).rsqrt()
    return wide * scale * norm.weight.detach().double()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_norm(shape: tuple[int, ...]) -> None:
    """Its input is left as it is."""
    norm, x = Norm(shape[-1]), torch.randn(shape)
    before = x.clone()
    found = rms_norm(norm, x)
    assert found.shape == shape
    np.testing.assert_allclose(found, normed(before, norm), **EXACT)
    assert torch.equal(x, before)
    assert norm.asked == []


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_norm_after_adding_to_the_residual(shape: tuple[int, ...]) -> None:
    """The residual is the sum afterwards, in its own memory, as SGLang's form leaves it."""
    norm, x, residual = Norm(shape[-1]), torch.randn(shape), torch.randn(shape)
    total = x + residual
    found, carried = rms_norm(norm, x, residual)
    np.testing.assert_allclose(found, normed(total, norm), **EXACT)
    torch.testing.assert_close(carried, total)
    assert carried is residual
    assert norm.asked == []


@pytest.mark.parametrize(
    "change",
    [
        lambda norm, x: x.bfloat16(),
        lambda norm, x: x.T.contiguous().T,
        lambda norm, x: x[:, ::2],
        lambda norm, x: x[:0],
        lambda norm, x: x.to("meta"),
        lambda norm, x: (setattr(norm, "variance_size_override", 8), x)[1],
        lambda norm, x: (setattr(norm, "weight", norm.weight.bfloat16()), x)[1],
        lambda norm, x: (setattr(norm, "hidden_size", 8), x)[1],
    ],
    ids=["dtype", "layout", "stride", "empty", "device", "partial", "weight", "width"],
)
def test_other_inputs_of_the_norm_are_sglang_s(
    change: Callable[[Norm, torch.Tensor], torch.Tensor],
) -> None:
    norm = Norm(16)
    x = change(norm, torch.randn(4, 16))
    result: Any = rms_norm(norm, x)
    assert result == "native"
    ((given, residual),), kwargs = [norm.asked[0][0]], norm.asked[0][1]
    assert given is x
    assert residual is None
    assert kwargs == {}


@pytest.mark.parametrize(
    "residual", [torch.randn(4, 16).bfloat16(), torch.randn(1, 16), torch.randn(16, 4).T]
)
def test_other_residuals_are_sglang_s(residual: torch.Tensor) -> None:
    result: Any = rms_norm(Norm(16), torch.randn(4, 16), residual)
    assert result == "native"


def test_arguments_that_this_form_does_not_know_are_sglang_s() -> None:
    norm, x = Norm(16), torch.randn(4, 16)
    first: Any = rms_norm(norm, x, None, torch.ones(4, 16))
    second: Any = rms_norm(norm, x, post_residual_addition=torch.ones(4, 16))
    assert (first, second) == ("native", "native")
    assert isinstance(rms_norm(norm, x, None, post_residual_addition=None), torch.Tensor)


@pytest.mark.parametrize("shape", [(1, 2), (3, 200), (2, 5, 64), (4, 34)], ids=str)
def test_the_activation(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape) * 4
    gate, up = x.double().chunk(2, -1)
    found = silu_and_mul(Activation(), x)
    np.testing.assert_allclose(found, gate * torch.sigmoid(gate) * up, **EXACT)


@pytest.mark.parametrize("value", [-200.0, -88.0, 88.0, 200.0])
def test_the_activation_of_large_inputs(value: float) -> None:
    """Neither infinite nor NaN where the result is not."""
    found = silu_and_mul(Activation(), torch.tensor([[value] * 16 + [1.0] * 16]))
    np.testing.assert_allclose(found, [[max(value, 0.0)] * 16], atol=1e-6)


@pytest.mark.parametrize(
    "change",
    [torch.Tensor.bfloat16, lambda x: x.T.contiguous().T, lambda x: x[:0]],
    ids=["dtype", "layout", "empty"],
)
def test_other_inputs_of_the_activation_are_sglang_s(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    result: Any = silu_and_mul(Activation(), change(torch.randn(4, 16)))
    assert result == "native"
