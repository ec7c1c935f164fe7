"""What the scripts install, read from ``pyproject.toml``; standard library only, runs before anything is installed.

::

    requirements.py list   one requirement a line: build requirements, dependencies and every extra
    requirements.py key    16 hexadecimal digits that name an environment holding exactly these
    requirements.py text   16 hexadecimal digits of pyproject.toml itself

The package itself is not among the requirements, so several clones share one environment.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def requirements(pyproject: dict[str, object]) -> list[str]:
    """Every requirement of ``pyproject``, sorted, each once."""
    build, project = pyproject["build-system"], pyproject["project"]
    if not isinstance(build, dict) or not isinstance(project, dict):
        raise TypeError("pyproject.toml: [build-system] and [project] must be tables")
    extras = project["optional-dependencies"].values()
    lists: list[list[str]] = [build["requires"], project["dependencies"], *extras]
    return sorted({item for one in lists for item in one})


def key(wanted: list[str]) -> str:
    """Name of the environment that holds ``wanted``; another Python or processor has another."""
    python = f"{sys.implementation.name}-{sys.version_info.major}.{sys.version_info.minor}"
    return digest(json.dumps([wanted, python, sys.platform, platform.machine()]).encode())


def digest(data: bytes) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of ``data``."""
    return hashlib.sha256(data).hexdigest()[:16]


def main(arguments: list[str]) -> int:
    """Print what was asked for; 2 when it is none of the three."""
    text = PYPROJECT.read_bytes()
    wanted = requirements(tomllib.loads(text.decode()))
    answers = {"list": "\n".join(wanted), "key": key(wanted), "text": digest(text)}
    if len(arguments) != 1 or arguments[0] not in answers:
        print(__doc__, file=sys.stderr)
        return 2
    print(answers[arguments[0]])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
