"""What one touch on SGLang is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

SGLANG_VERSION = "0.5.23"


class Mechanism(StrEnum):
    """How SGLang lets us in, most official first."""

    PLATFORM = "platform entry point"
    REGISTRY = "registry"
    SUBCLASS = "class replacement by a subclass (HookRegistry REPLACE)"
    AROUND = "HookRegistry AROUND"
    BEFORE = "HookRegistry BEFORE"
    OVERRIDE = "method of a subclass"
    USE = "called, not changed"
    FIELDS = "fields read, not changed"


@dataclass(frozen=True, slots=True)
class Seam:
    """One touch on SGLang.

    Attributes:
        target: dotted path in SGLang.
        parameters: parameter names that the target must have, in order; ours are passed on unchanged.
        mechanism: how it is touched.
        ours: dotted path of our side; empty for things that are only used.
        why: what it is for.
        processes: where it acts.
        remove_when: what would make the row unnecessary.
    """

    target: str
    parameters: tuple[str, ...]
    mechanism: Mechanism
    ours: str
    why: str
    processes: tuple[str, ...]
    remove_when: str
