"""The search for temperatures as one Triton launch, in place of dozens of tensor operations for each sweep."""

from __future__ import annotations

import torch

from sgl_entropic.errors import SeamError
from sgl_entropic.sampling.temperature_control import (
    EXACT,
    SOLVE_TOLERANCE_NATS,
    ControlRows,
    Solution,
    solve_log_temperature,
)


def solve(logits: torch.Tensor, rows: ControlRows, start_log_temperature: torch.Tensor) -> Solution:
    """As :func:`~sgl_entropic.sampling.temperature_control.solve_log_temperature`, by the kernel."""
    from sgl_entropic_kernels import triton_sampling  # noqa: PLC0415 -- needs Triton, which only GPUs have use for

    found = triton_sampling.step(
        logits,
        start_log_temperature.float().contiguous(),
        rows.target_nats.float().contiguous(),
        rows.gain.float().contiguous(),
        rows.mode.to(torch.int32).contiguous(),
        rows.min_log_temperature.float().contiguous(),
        rows.max_log_temperature.float().contiguous(),
        # The other laws move the state after the draw; here they only keep it.
        (rows.controlled & (rows.mode == EXACT)).contiguous(),
    )
    return Solution(found.used_log_temperature, found.entropy_nats, found.varentropy, found.saturated)


def check(device: torch.device, vocab_size: int) -> None:
    """Compare the kernel with the tensor operations on this device, once at start.

    Raises:
        SeamError: they disagree.
    """
    generator = torch.Generator().manual_seed(1)
    rows = 8
    logits = (3 * torch.randn(rows, vocab_size, generator=generator)).to(device)
    column = torch.linspace(0.5, 4.0, rows, device=device)
    wide = torch.full_like(column, 2.0)
    mode = torch.full((rows,), EXACT, device=device)
    mode[0] = 0
    asked = ControlRows(column, wide, mode, -wide, wide, torch.ones_like(mode, dtype=torch.bool))
    start = torch.zeros_like(column)
    got, expected = solve(logits, asked, start), solve_log_temperature(logits, asked, start)
    apart = (got.entropy_nats - expected.entropy_nats).abs().max().item()
    same = torch.equal(got.saturated, expected.saturated)
    if not same or not apart <= 2 * SOLVE_TOLERANCE_NATS:
        raise SeamError(
            f"the Triton kernel for temperatures differs from the tensor operations by {apart} nats on {device}"
        )
