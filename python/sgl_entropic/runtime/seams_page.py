"""``python -m sgl_entropic.runtime.seams_page > docs/seams.md``: the table of touches on SGLang as a page."""

from __future__ import annotations

import sys

from sgl_entropic.runtime.cpu.seam_rows import CPU_SEAMS
from sgl_entropic.runtime.seam import SGLANG_VERSION
from sgl_entropic.runtime.seam_table import SEAMS
from sgl_entropic.runtime.seam_table_attention import ATTENTION_SEAMS
from sgl_entropic.runtime.seam_table_eviction import EVICTION_SEAMS

_HEAD = f"""# Touches on SGLang

Made from `runtime/seam_table*.py` and `runtime/cpu/seam_rows.py` by `python -m sgl_entropic.runtime.seams_page`; do not edit it here. Every row is checked at
start against the installed SGLang ({SGLANG_VERSION}): the target must exist with these parameters, and after installation
it must really be ours. A row that is dead stops the start and is named. The rows of attention pruning on GPUs, of
eviction and of the CPU fast path stand last; they are checked where these are used.

The package also enters through two entry points: `sglang.srt.plugins` (`sgl_entropic.plugin:load`, which installs this
table) and `sglang.srt.platforms` (`sgl_entropic.plugin:cpu_platform`, the portable CPU platform). Output fields, internal
state and the readings' way to the host use SGLang's own extension points: `SchedulerOutputStreamer`,
`SchedulerInternalStateController` and auxiliary outputs.
"""


def page() -> str:
    """The whole page as Markdown."""
    parts = [_HEAD]
    for seam in (*SEAMS, *ATTENTION_SEAMS, *EVICTION_SEAMS, *CPU_SEAMS):
        ours = f"`{seam.ours}`" if seam.ours else "nothing is changed"
        parts.append(
            f"## `{seam.target.removeprefix('sglang.srt.')}`\n\n"
            f"* parameters: `{', '.join(seam.parameters)}`\n"
            f"* how: {seam.mechanism}\n"
            f"* ours: {ours}\n"
            f"* why: {seam.why}\n"
            f"* processes: {', '.join(seam.processes)}\n"
            f"* to be removed when: {seam.remove_when}\n"
        )
    return "\n".join(parts)


if __name__ == "__main__":
    sys.stdout.write(page())
