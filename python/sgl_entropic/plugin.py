"""The entry points that SGLang calls in each of its processes; inert unless the extension was asked for."""

from __future__ import annotations

from sgl_entropic import activation

_CPU_PLATFORM = "sgl_entropic.runtime.cpu_platform.PortableCpuPlatform"


def load() -> None:
    """General plugin (group ``sglang.srt.plugins``): register every touch on SGLang.

    SGLang logs what a plugin raises and goes on without it. An extension that was asked for and cannot be installed
    must stop the start instead, so a failure leaves by ``SystemExit``.
    """
    if not activation.asked():
        return
    from sgl_entropic.errors import EntropicError  # noqa: PLC0415 -- a plain sglang process loads none of this
    from sgl_entropic.runtime.seams import install  # noqa: PLC0415

    try:
        install()
    except EntropicError as error:
        raise SystemExit(f"sgl_entropic: {error}") from None
    except Exception as error:
        raise SystemExit(f"sgl_entropic could not be installed: {error!r}") from error


def cpu_platform() -> str | None:
    """Platform plugin (group ``sglang.srt.platforms``): the portable CPU platform, or ``None`` to stay out of the way.

    Chosen only when the extension was asked for, no accelerator is there, and SGLang's own CPU engine is not requested.
    """
    if not activation.asked():
        return None
    from sgl_entropic.runtime.accelerator import accelerator_present, stock_cpu_engine_requested  # noqa: PLC0415

    if accelerator_present() or stock_cpu_engine_requested():
        return None
    return _CPU_PLATFORM
