"""Brings the fast path into a loaded model, says in one line what it is, and keeps the evidence that it ran."""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import time
from typing import Any

import torch
from sglang.srt.layers.attention.attention_registry import register_attention_backend

from sgl_entropic.errors import SeamError
from sgl_entropic.runtime.cpu import fused_ops, sampling
from sgl_entropic.runtime.cpu.attention import PagedCpuAttnBackend
from sgl_entropic.runtime.cpu.decoder import FusedDecoder, UnfusableError
from sgl_entropic.runtime.cpu.head_statistics import HeadStatistics
from sgl_entropic.runtime.cpu.seam_rows import verify_cpu
from sgl_entropic.runtime.cpu.weights import Packing, WeightsMode, pack_model
from sgl_entropic.sampling.temperature_control import ControlRows, Solution
from sgl_entropic_kernels.native import library

logger = logging.getLogger(__name__)


class FastPath:
    """The fast path of one model.

    Attributes:
        packing: what became of the weights.
        decoder: the fused decoder, or ``None`` when the model runs module by module.
        reason: why it does, else empty.
        statistics: row statistics of the LM head.
        drawn_rows: rows drawn by :mod:`.sampling` in place of SGLang's sampler.
        seeded_rows: those among them whose random number came from the request's seed.
        pending_seeds: seeds of the step whose forward pass is about to begin.
        seeds: seeds of the step that is being sampled.
    """

    def __init__(self, model: torch.nn.Module, mode: WeightsMode) -> None:
        start = time.perf_counter()
        processor = getattr(model, "logits_processor", None)
        self.statistics = HeadStatistics(
            usable=getattr(processor, "logit_scale", None) is None
            and not getattr(processor, "final_logit_softcapping", None)
        )
        self.packing: Packing = pack_model(model, mode, self.statistics)
        self.decoder: FusedDecoder | None = None
        self.backend: PagedCpuAttnBackend | None = None
        self.reason = ""
        self.drawn_rows = 0
        self.seeded_rows = 0
        self.pending_seeds: tuple[int | None, ...] | None = None
        self.seeds: tuple[int | None, ...] | None = None
        try:
            self.decoder = FusedDecoder(model)
        except UnfusableError as error:
            self.reason = str(error)
        if self.decoder is not None:
            # What is left to PyTorch is short: among threads, it would mostly wait for the last of them to be scheduled.
            torch.set_num_threads(1)
        _give_back_memory()
        formats = ", ".join(f"{name} {size / 1e6:.0f} MB" for name, size in self.packing.bytes_of.items())
        logger.info(
            "CPU fast path: %s (%s), weights %s packed as %s (were %.0f MB) in %.1f s.",
            "the whole decoder in one call" if self.decoder else f"module by module, because {self.reason}",
            library().isa(),
            mode,
            formats or "nothing",
            self.packing.original_bytes / 1e6,
            time.perf_counter() - start,
        )

    def attach(self, backend: PagedCpuAttnBackend, pool: Any) -> None:
        """Connect to SGLang's KV pool, once it exists."""
        self.backend = backend
        if self.decoder is not None:
            try:
                self.decoder.attach(pool)
            except (AttributeError, TypeError, ValueError) as error:
                logger.warning("CPU fast path: module by module, because of the KV pool: %s", error)

    def draws(self, logits: torch.Tensor, sampling_info: Any) -> bool:
        """Whether :meth:`draw` does what this batch asks for."""
        return sampling.drawable(logits, sampling_info)

    def draw(
        self,
        logits: torch.Tensor,
        sampling_info: Any,
        own: torch.Tensor | None,
        *,
        measured: bool,
        positions: torch.Tensor,
        before: torch.Tensor | None = None,
        steering: tuple[torch.Tensor, ...] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """See :func:`.sampling.draw`; with the seeds of the step at hand."""
        self.drawn_rows += logits.shape[0]
        self.statistics.recalled += own is not None
        seeds = self.seeds
        if seeds is not None:
            self.seeded_rows += sum(seed is not None for seed in seeds)
        return sampling.draw(
            logits,
            sampling_info,
            own,
            measured=measured,
            seeds=seeds,
            positions=positions,
            before=before,
            steering=None if steering is None else sampling.Steering(*steering),
        )

    def solve_log_temperature(
        self, logits: torch.Tensor, rows: ControlRows, start_log_temperature: torch.Tensor
    ) -> Solution:
        """See :func:`.sampling.solve_log_temperature`."""
        return sampling.solve_log_temperature(logits, rows, start_log_temperature)

    def state(self) -> dict[str, Any]:
        """For ``/server_info``."""
        decoder, backend = self.decoder, self.backend
        return {
            "isa": library().isa(),
            "threads": library().threads(),
            "weights": self.packing.mode,
            "weight_bytes": self.packing.packed_bytes,
            "weight_bytes_by_format": dict(self.packing.bytes_of),
            "last_backend": decoder.last_backend if decoder else "modules",
            "fused_steps": decoder.fused_steps if decoder else 0,
            "fused_tokens": decoder.fused_tokens if decoder else 0,
            "module_steps": decoder.module_steps if decoder else None,
            "module_reason": self.reason,
            "paged_attention_calls": backend.paged_calls if backend else 0,
            "native_attention_calls": backend.native_calls if backend else 0,
            "drawn_rows": self.drawn_rows,
            "seeded_rows": self.seeded_rows,
            "process_start": multiprocessing.get_start_method(allow_none=True),
            "head_statistics_recalled": self.statistics.recalled,
        }


_installed: FastPath | None = None


def install(model: torch.nn.Module, mode: WeightsMode, threads: int) -> FastPath:
    """Build the fast path of this process's model.

    The registrations come here and not earlier: SGLang asks for attention backends and fused operations only after the
    model is loaded, and a server with the fast path off must find nothing of ours in its registries.
    """
    global _installed  # noqa: PLW0603 -- one model a process; SGLang's platform hooks carry no state of their own
    library().set_threads(threads)
    # SGLang asks for the name "torch_native" where it avoids Triton and graph capture: ours goes by that name.
    register_attention_backend("torch_native")(create_attention_backend)
    fused_ops.register()
    verify_cpu(create_attention_backend, fused_ops.rms_norm, fused_ops.silu_and_mul, fused_ops.PLATFORM_KEY)
    _installed = FastPath(model, mode)
    return _installed


def installed() -> FastPath | None:
    """The process's fast path; ``None`` before the model is loaded, when it is off, and on another platform."""
    return _installed


def create_attention_backend(runner: Any) -> Any:
    """SGLang's factory for the platform's attention backend."""
    backend = PagedCpuAttnBackend(runner)
    if _installed is None:
        raise SeamError(
            "the CPU fast path cannot be installed: SGLang did not call the platform's post_load_model"
        )
    _installed.attach(backend, runner.token_to_kv_pool)
    return backend


def _give_back_memory() -> None:
    """Return what packing freed to the system; the allocator would keep it."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):  # another C library
        return
