"""Was the extension asked for? And the only reader and writer of ``SGLANG_ENTROPIC_*``.

Installing the package must change nothing, so every entry point that SGLang calls in every process first asks
:func:`asked`. It answers yes when our launcher (or the parent process) exported the configuration, or when this
process was started with an ``--entropic-*`` flag. Standard library only: this module is all that a plain ``sglang``
process loads of the package. (The prefix is SGLang's own: it takes ``SGL_`` for a deprecated spelling and warns.)

==============================  ==========================================================================================
``SGLANG_ENTROPIC_CONFIG``      the resolved configuration as JSON; written by the launching process, inherited by children
``SGLANG_ENTROPIC_CACHE``       where models are kept; default ``$XDG_CACHE_HOME/sgl_entropic`` or ``~/.cache/sgl_entropic``
==============================  ==========================================================================================
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

FLAG_PREFIX = "--entropic-"
_CONFIG = "SGLANG_ENTROPIC_CONFIG"
_CACHE = "SGLANG_ENTROPIC_CACHE"


def asked(argv: Sequence[str] | None = None) -> bool:
    """Whether this process was asked to be entropic, by its parent or by its own command line."""
    if os.environ.get(_CONFIG):
        return True
    return any(item.startswith(FLAG_PREFIX) for item in (sys.argv[1:] if argv is None else argv))


def exported_config() -> str | None:
    """The configuration JSON that the launching process exported, or ``None``."""
    return os.environ.get(_CONFIG) or None


def export_config(config_json: str) -> None:
    """Hand the resolved configuration to every process that is started from here on."""
    os.environ[_CONFIG] = config_json


def cache_dir() -> Path:
    """Directory for downloads and converted models (not created here)."""
    own = os.environ.get(_CACHE)
    if own:
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "sgl_entropic"
