"""Files that a run leaves at its end: whether they can be written is asked before it begins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from sgl_entropic.errors import ConfigError


def require(outputs: Mapping[str, Path | None], inputs: Mapping[str, Path | None]) -> None:
    """Fail unless every output can be written. What is there already stays as it is.

    Args:
        outputs: path of each option.
        inputs: path of each option, or what the user calls it, that is read and must not be written over.

    Raises:
        ConfigError: the text has the option, its path and the reason.
    """
    taken = [(name, path) for name, path in inputs.items() if path is not None]
    for option, path in outputs.items():
        if path is None:
            continue
        for name, other in taken:
            if _same(path, other):
                raise ConfigError(f"{option} is {path}: that is {name}")
        taken.append((option, path))
        with told(option, path):
            _try(path)


@contextmanager
def told(option: str, path: Path) -> Iterator[None]:
    """Name option and path where writing fails.

    Raises:
        ConfigError: it did.
    """
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{option} is {path}: cannot be written: {error.strerror or error}") from error


def _try(path: Path) -> None:
    existed = path.exists()
    if path.exists() and not path.is_file() and not path.is_dir():
        return  # a pipe or a device: opening it is no question without consequences
    with path.open("ab"):
        pass
    if not existed:
        # Where a link leads to, and not the link.
        path.resolve().unlink()


def _same(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except OSError:
        return path.absolute() == other.absolute()
