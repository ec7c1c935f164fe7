"""SGLang on any CPU: an out-of-tree platform with defaults that fit a machine without an accelerator.

Upstream's own CPU engine needs kernels that are built for AVX-512 and AMX; this platform runs SGLang's native PyTorch
paths instead, on every CPU that PyTorch runs on.
"""

from __future__ import annotations

import logging
import os
from typing import Any

import psutil
import torch
from sglang.srt.platforms.cpu import CpuSRTPlatform
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import PlatformCapabilities

from sgl_entropic.config import CpuConfig
from sgl_entropic.runtime.active_config import active_config
from sgl_entropic.runtime.cpu_refusals import KNOWN_ARCHITECTURES
from sgl_entropic.runtime.kv_pool_size import kv_pool_tokens
from sgl_entropic.runtime.model_facts import model_facts

logger = logging.getLogger(__name__)

ATTENTION_BACKEND = "torch_native"
_STOCK_CPU_BACKEND = "intel_amx"


class PortableCpuPlatform(CpuSRTPlatform):
    """The platform that the launcher asks for when there is no accelerator."""

    _enum = PlatformEnum.OOT
    device_name = "cpu"
    capabilities = PlatformCapabilities()

    def get_default_attention_backend(self) -> str:
        """The backend that needs PyTorch only."""
        return ATTENTION_BACKEND

    def get_dispatch_key_name(self) -> str:
        """Fused ops take their native PyTorch form."""
        return "native"

    def apply_server_args_defaults(self, server_args: Any) -> None:
        """Fill in what the user left open.

        By now SGLang has put its own CPU engine's attention backend where none was given; a user who names that
        backend was refused before, see :mod:`.cpu_refusals`.
        """
        if server_args.device is None:
            server_args.device = "cpu"
        if server_args.attention_backend in (None, _STOCK_CPU_BACKEND):
            server_args.attention_backend = ATTENTION_BACKEND
        if server_args.sampling_backend is None:
            server_args.sampling_backend = "pytorch"
        if server_args.dtype == "auto":
            # 16-bit products are several times slower than float32 without AVX-512, and less exact.
            server_args.dtype = "float32"
        config = active_config().cpu
        if server_args.kv_cache_dtype == "auto" and _rounds(config, server_args.model_path):
            # Who rounds inputs to 8 bits loses nothing that shows by keeping keys and values in 16.
            server_args.kv_cache_dtype = "bfloat16"
        if server_args.max_total_tokens is None:
            sixteen = server_args.kv_cache_dtype in ("bf16", "bfloat16")
            dtype = "bfloat16" if sixteen else server_args.dtype
            tokens = kv_pool_tokens(server_args.model_path, dtype, config.kv_pool_mib)
            logger.info("KV pool: %d tokens; --entropic-cpu-kv-pool-mib sets its memory.", tokens)
            server_args.max_total_tokens = tokens
        if server_args.mem_fraction_static is None:
            server_args.mem_fraction_static = 0.5

    def init_backend(self) -> None:
        """Threads, as far as they are known: SGLang calls this on import, in the first process before it reads flags."""
        self._set_threads()

    def _set_threads(self) -> int:
        threads = active_config().cpu.threads or default_threads()
        torch.set_num_threads(threads)
        return threads

    def get_kv_pool_cls(self, *, kind: Any) -> type | None:
        """Keys and values in memory that is taken as it is used; with the fast path off, SGLang's own pool."""
        if kind != "mha" or not active_config().cpu.fast_path:
            stock: type | None = super().get_kv_pool_cls(kind=kind)
            return stock
        from sgl_entropic.runtime.cpu.kv_pool import LazyKVPool  # noqa: PLC0415 -- imports SGLang's pools

        return LazyKVPool

    def post_load_model(self, model: torch.nn.Module) -> None:
        """Pack the weights, and bring the compiled operations in: in the worker, where the configuration is final."""
        threads = self._set_threads()
        logger.info(
            "CPU platform: %d threads, %.1f GiB of memory free.",
            threads,
            psutil.virtual_memory().available / 2**30,
        )
        config = active_config().cpu
        if config.fast_path:
            from sgl_entropic.runtime.cpu import fast_path  # noqa: PLC0415 -- loads the compiled kernels

            fast_path.install(model, config.weights, threads)


def _rounds(config: CpuConfig, model_path: str) -> bool:
    """Whether the compiled attention will serve this model with rounded arithmetic."""
    facts = model_facts(model_path)
    return (
        config.fast_path
        and config.weights == "int8"
        and facts is not None
        and facts.architecture in KNOWN_ARCHITECTURES
    )


def default_threads() -> int:
    """Threads for tensor work: ``OMP_NUM_THREADS`` where it is set, else the CPUs that this process may use."""
    return torch.get_num_threads() if "OMP_NUM_THREADS" in os.environ else len(os.sched_getaffinity(0))
