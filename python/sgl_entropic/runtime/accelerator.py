"""Is there an accelerator that SGLang would use?"""

from __future__ import annotations

import os

import torch


def accelerator_present() -> bool:
    """Whether PyTorch sees a device other than the CPU (CUDA, ROCm, XPU, NPU, MPS, MUSA)."""
    if torch.cuda.is_available() or torch.xpu.is_available():
        return True
    if torch.backends.mps.is_available():
        return True
    return any(hasattr(torch, name) and getattr(torch, name).is_available() for name in ("npu", "musa"))


def stock_cpu_engine_requested() -> bool:
    """Whether the user asked for SGLang's own CPU engine (AVX-512 and AMX kernels)."""
    return os.environ.get("SGLANG_USE_CPU_ENGINE", "0") == "1"
