"""Every touch on SGLang is a row of this table, installed from it and verified at start.

SGLang's plugin loader logs an exception and goes on, so a hook that did not take would leave a server that silently
measures nothing. :func:`verify` turns that into an error: each target must exist with the parameters written here, and
after installation it must really be ours.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable
from typing import Any

from sgl_entropic.errors import SeamError
from sgl_entropic.runtime.seam import SGLANG_VERSION, Mechanism, Seam
from sgl_entropic.runtime.seam_table import SEAMS


def install() -> None:
    """Register every seam with SGLang; SGLang applies hooks when all plugins have run."""
    from sglang.srt.layers.sampler import register_sampler_backend  # noqa: PLC0415 -- SGLang is loaded by its plugin loader
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # noqa: PLC0415

    kinds = {
        Mechanism.AROUND: HookType.AROUND,
        Mechanism.BEFORE: HookType.BEFORE,
        Mechanism.SUBCLASS: HookType.REPLACE,
    }
    check_signatures()
    for seam in SEAMS:
        if seam.mechanism in kinds:
            HookRegistry.register(seam.target, pkgutil.resolve_name(seam.ours), kinds[seam.mechanism])
        elif seam.mechanism is Mechanism.REGISTRY:
            for backend in ("pytorch", "flashinfer"):
                register_sampler_backend(backend, pkgutil.resolve_name(seam.ours))


def check_signatures() -> None:
    """Raise :class:`SeamError` unless every target exists with the parameters that the table says."""
    problems = problems_of(SEAMS)
    if problems:
        raise SeamError(_message(problems))


def problems_of(seams: tuple[Seam, ...]) -> list[str]:
    """What is wrong with the targets of ``seams`` in the installed SGLang."""
    return [problem for seam in seams if (problem := _signature_problem(seam)) is not None]


def verify(process: str) -> None:
    """Raise :class:`SeamError` unless every seam of ``process`` is alive."""
    problems = [
        f"{seam.target}: not installed" for seam in SEAMS if process in seam.processes and not _alive(seam)
    ]
    if problems:
        raise SeamError(_message(problems))


def _message(problems: list[str]) -> str:
    return (
        f"sgl_entropic is made for SGLang {SGLANG_VERSION}; {len(problems)} of its {len(SEAMS)} seams are dead: "
        + "; ".join(problems)
    )


def _signature_problem(seam: Seam) -> str | None:
    try:
        target = pkgutil.resolve_name(seam.target)
    except (ImportError, AttributeError) as error:
        return f"{seam.target}: {error}"
    function: Callable[..., Any] = target.__init__ if inspect.isclass(target) else target
    names = tuple(inspect.signature(inspect.unwrap(function)).parameters)
    if seam.mechanism is Mechanism.FIELDS:
        missing = [name for name in seam.parameters if name not in names]
        return f"{seam.target}: has no field {', '.join(missing)}" if missing else None
    wanted = seam.parameters[1:] if seam.parameters[:1] == ("cls",) else seam.parameters
    if names[: len(wanted)] != wanted:
        return f"{seam.target}: has the parameters {names}, expected {wanted} first"
    return None


def _alive(seam: Seam) -> bool:
    if not seam.ours:
        return True
    ours = pkgutil.resolve_name(seam.ours)
    if seam.mechanism is Mechanism.REGISTRY:
        from sglang.srt.layers.sampler import _CUSTOM_SAMPLER_FACTORIES  # noqa: PLC0415

        return ours in _CUSTOM_SAMPLER_FACTORIES.values()
    current = pkgutil.resolve_name(seam.target)
    if seam.mechanism is Mechanism.SUBCLASS:
        return current is ours
    if seam.mechanism is Mechanism.OVERRIDE:
        # The class is replaced in its own module, so the target now leads to our method, or our class derives from it.
        return (
            ours is current
            or pkgutil.resolve_name(seam.ours.rpartition(".")[0])
            .__mro__[1]
            .__dict__.get(seam.target.rpartition(".")[2])
            is current
        )
    return ours in _closure_values(current)


def _closure_values(function: Any) -> list[Any]:
    """What the wrappers that SGLang's hook registry has laid around ``function`` hold on to."""
    values: list[Any] = []
    while function is not None:
        function = getattr(function, "__func__", function)
        values += [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
        function = getattr(function, "__wrapped__", None)
    return values
