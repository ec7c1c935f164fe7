"""Put the claims of all result files into README.md and the docs, so that no figure is typed by hand.

``python benchmark/report.py`` rewrites what stands between the two markers; ``--check`` only says whether that is needed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "docs/reference/benchmarks.md")
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"


def table() -> str:
    """Markdown table of every claim, one row each, with the host it was measured on."""
    lines = ["| claim | value | interval | bar | reached | file |", "| --- | --- | --- | --- | --- | --- |"]
    hosts = set()
    for path in sorted((ROOT / "benchmark/results").glob("*.json")):
        content = json.loads(path.read_text())
        host = content["host"]
        hosts.add(f"{host['processor']}, {host['cores']} cores")
        lines += [_row(claim, path.name) for claim in content["claims"]]
    lines += ["", f"Measured on {'; '.join(sorted(hosts)) or 'no machine yet'}."]
    return "\n".join(lines)


def _row(claim: dict[str, Any], file: str) -> str:
    unit = "" if claim["unit"] == "ratio" else f" {claim['unit']}"
    interval = f"{claim['low']:.4g} to {claim['high']:.4g}"
    reached = "yes" if claim["ok"] else "**no**"
    return f"| `{claim['name']}` | {claim['value']:.4g}{unit} | {interval} | {claim['bar']} | {reached} | `{file}` |"


def rewritten(text: str) -> str:
    """``text`` with the current table between the markers."""
    head, _, rest = text.partition(BEGIN)
    _, found, tail = rest.partition(END)
    if not found:
        raise ValueError(f"the page has no {BEGIN} ... {END}")
    return f"{head}{BEGIN}\n\n{table()}\n\n{END}{tail}"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="change nothing, fail when a page is out of date"
    )
    options = parser.parse_args()
    stale = [page for page in PAGES if rewritten((ROOT / page).read_text()) != (ROOT / page).read_text()]
    if options.check and stale:
        raise SystemExit(f"out of date: {', '.join(stale)}; run python benchmark/report.py")
    for page in stale:
        (ROOT / page).write_text(rewritten((ROOT / page).read_text()))
        print(f"rewritten: {page}")


if __name__ == "__main__":
    main()
