"""Starts SGLang's server with the extension asked for; what ``python -m sgl_entropic.launch_server`` does."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from sgl_entropic import activation
from sgl_entropic.config import EntropicConfig, read_command_line
from sgl_entropic.errors import EntropicError
from sgl_entropic.models import default_model, resolve_model_path
from sgl_entropic.runtime.refusals import environment_problems, raise_if_any
from sgl_entropic.runtime.start_probes import probe_outlets


def main(argv: Sequence[str]) -> None:
    """Run the server until it is stopped.

    Args:
        argv: the command line without the program's name; all of SGLang's flags and ours.
    """
    try:
        _refuse_early(argv)
        # Asked for before any flag is read: SGLang loads plugins, and picks its platform, on import.
        activation.export_config(EntropicConfig().to_json())
        _run(_with_model(list(argv)))
    except EntropicError as error:
        raise SystemExit(f"sgl_entropic: {error}") from None


def _refuse_early(argv: Sequence[str]) -> None:
    """Say at once what is wrong without SGLang's help: importing it takes longer than any mistake deserves.

    What is right goes no further: the flags count as SGLang's parser reads them, see :mod:`.server_args`.
    """
    raise_if_any(environment_problems())
    # SGLang's own YAML file may hold flags of ours; only SGLang reads it.
    if not _asks_for_help(argv) and not any(item.partition("=")[0] == "--config" for item in argv):
        probe_outlets(read_command_line(argv))


def _asks_for_help(argv: Sequence[str]) -> bool:
    return any(item in ("-h", "--help") for item in argv)


def _with_model(argv: list[str]) -> list[str]:
    """Serve the default model when none is named; a name of the catalogue becomes its directory."""
    if _asks_for_help(argv):
        return ["--model-path", default_model().name, *argv]
    # SGLang reads its own file only where the flag stands alone.
    argv = [
        part for item in argv for part in (item.split("=", 1) if item.startswith("--config=") else [item])
    ]
    # Of a flag that is given twice the last one counts.
    for index in reversed(range(len(argv))):
        name, separator, value = argv[index].partition("=")
        if name not in ("--model-path", "--model"):
            continue
        if separator:
            return [
                *argv[:index],
                f"{name}={resolve_model_path(value)}",
                *argv[index + 1 :],
                *_served_as(value, argv),
            ]
        if index + 1 < len(argv):
            value = argv[index + 1]
            return [
                *argv[: index + 1],
                resolve_model_path(value),
                *argv[index + 2 :],
                *_served_as(value, argv),
            ]
        return argv
    if "--config" in argv:
        # SGLang's own YAML file may name the model.
        return argv
    return ["--model-path", resolve_model_path(None), *_served_as(default_model().name, argv), *argv]


def _served_as(model: str, argv: list[str]) -> list[str]:
    """A model of the catalogue is served under its name rather than under its directory's."""
    if resolve_model_path(model) == model or any(
        item.partition("=")[0] == "--served-model-name" for item in argv
    ):
        return []
    return ["--served-model-name", model]


def _run(argv: list[str]) -> None:
    from sglang.launch_server import run_server  # noqa: PLC0415 -- after the environment is set
    from sglang.srt.plugins import load_plugins  # noqa: PLC0415
    from sglang.srt.server_args import prepare_server_args  # noqa: PLC0415
    from sglang.srt.utils import kill_process_tree  # noqa: PLC0415

    from sgl_entropic.runtime.seams import verify  # noqa: PLC0415 -- imports nothing of SGLang itself

    load_plugins()
    verify("main")
    server_args = prepare_server_args(argv)
    try:
        run_server(server_args)
    finally:
        sys.stdout.flush()
        kill_process_tree(os.getpid(), include_parent=False)
