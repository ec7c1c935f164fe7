"""The compiled kernels of the portable CPU platform, loaded when they are first asked for.

``library()`` is the extension module ``_native`` (its types are in ``_native.pyi``, the contracts of the operations in
``kernels/src/ops.h``). It takes contiguous CPU tensors or arrays and refuses everything else: ``TypeError`` for a wrong
dtype, number of dimensions or memory layout, ``ValueError`` for sizes and indices out of range, with the accepted range.
"""

from __future__ import annotations

import importlib
from functools import cache
from types import ModuleType

STATISTICS = ("max_logit", "log_sum_exp", "entropy_nats", "varentropy")
"""Columns of the row statistics that ``lm_head`` writes."""

READINGS = ("entropy_nats", "varentropy", "surprisal_nats", "sampled_entropy_nats", "sampled_varentropy")
"""Rows of the readings that ``draw`` writes."""


class KernelsMissingError(ImportError):
    """The extension module is not there, or was built for another Python."""


@cache
def library() -> ModuleType:
    """The extension module.

    Raises:
        KernelsMissingError: it cannot be loaded; the message says how to build it.
    """
    try:
        return importlib.import_module("sgl_entropic_kernels._native")
    except ImportError as error:
        if "SGLANG_ENTROPIC_ISA" in str(error):
            raise KernelsMissingError(f"the CPU kernels cannot be loaded: {error}") from error
        raise KernelsMissingError(
            f"the CPU kernels are not built ({error}); install the package with pip, or run any of scripts/, with a C++17 "
            "compiler (Debian and Ubuntu: apt-get install g++)"
        ) from error
