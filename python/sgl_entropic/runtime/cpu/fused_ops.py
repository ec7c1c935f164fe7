"""Fused operations for models that run module by module, by SGLang's registry of out-of-tree forwards."""

from __future__ import annotations

from typing import Any

import torch
from sglang.kernels.fused_op import BaseFusedOp
from sglang.srt.layers.activation import SiluAndMul
from sglang.srt.layers.layernorm import RMSNorm

from sgl_entropic_kernels.native import library

PLATFORM_KEY = "native"
"""The platform's dispatch key; SGLang's registry asks for these forwards under it."""


def register() -> None:
    """Put the compiled forms before the native ones. SGLang looks them up when an operation is first called."""
    BaseFusedOp.register_oot_forward(RMSNorm, rms_norm, PLATFORM_KEY)
    BaseFusedOp.register_oot_forward(SiluAndMul, silu_and_mul, PLATFORM_KEY)


def _plain(x: torch.Tensor) -> bool:
    return x.dtype == torch.float32 and x.device.type == "cpu" and x.is_contiguous() and x.numel() > 0


def rms_norm(
    op: Any, x: torch.Tensor, residual: torch.Tensor | None = None, *args: Any, **kwargs: Any
) -> Any:
    """``RMSNorm.forward``: the norm of ``x`` [..., n], after adding it to ``residual`` in place where there is one."""
    plain = (
        not args
        and all(value is None for value in kwargs.values())
        and _plain(x)
        and (residual is None or (_plain(residual) and residual.shape == x.shape))
        and op.variance_size_override is None
        and op.weight.dtype == torch.float32
        and x.shape[-1] == op.hidden_size
    )
    if not plain:
        return op.forward_native(x, residual, *args, **kwargs)
    rows = x.view(-1, x.shape[-1])
    out = torch.empty_like(rows)
    library().rms_norm(
        rows,
        op.weight.detach(),
        op.variance_epsilon,
        out,
        None if residual is None else residual.view(-1, x.shape[-1]),
    )
    return out.view(x.shape) if residual is None else (out.view(x.shape), residual)


def silu_and_mul(op: Any, x: torch.Tensor) -> torch.Tensor:
    """``SiluAndMul.forward``: ``silu(x[..., :n]) * x[..., n:]``."""
    if not _plain(x):
        native: torch.Tensor = op.forward_native(x)
        return native
    rows = x.view(-1, x.shape[-1])
    out = torch.empty(rows.shape[0], rows.shape[1] // 2)
    library().silu_mul(rows, out)
    return out.view(*x.shape[:-1], -1)
