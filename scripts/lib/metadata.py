"""Write this clone's ``sgl_entropic-VERSION.dist-info`` into a directory: ``metadata.py DIRECTORY``.

It is what an installation would write, made by the same build backend, and it holds the entry points by which SGLang
finds the plugin. On ``PYTHONPATH`` it does for one clone what installing would do for a whole environment.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from scikit_build_core.build import prepare_metadata_for_build_wheel


def main(directory: str) -> None:
    """Ask the build backend for the metadata; it works in the directory of ``pyproject.toml``."""
    target = str(Path(directory).resolve())
    os.chdir(Path(__file__).resolve().parents[2])
    made = prepare_metadata_for_build_wheel(target)
    for leftover in Path(target).glob("*.egg-info"):
        shutil.rmtree(leftover)
    print(made)


if __name__ == "__main__":
    main(sys.argv[1])
