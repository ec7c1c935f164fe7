"""The table of touches on SGLang: it fits the installed SGLang, it fits the code, and a dead row stops the start."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sgl_entropic.errors import SeamError
from sgl_entropic.runtime import seams
from sgl_entropic.runtime.seams_page import page

ROOT = Path(__file__).parents[2]
ALIVE = """
from sgl_entropic import activation
from sgl_entropic.config import EntropicConfig
activation.export_config(EntropicConfig().to_json())
from sgl_entropic.runtime import seams
{before}
from sglang.srt.plugins import load_plugins
load_plugins()
{after}
try:
    seams.verify("scheduler")
except seams.SeamError as error:
    print("DEAD", error)
else:
    print("ALIVE")
"""


def run(before: str = "", after: str = "") -> str:
    """Load SGLang's plugins in a fresh process and say whether every seam is alive."""
    code = ALIVE.format(before=before, after=after)
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300
    )
    lines = result.stdout.strip().splitlines()
    return lines[-1] if lines else result.stderr.strip().splitlines()[-1]


def test_the_table_fits_the_installed_sglang() -> None:
    """Every target exists and takes the parameters written in its row."""
    seams.check_signatures()


@pytest.mark.parametrize("seam", seams.SEAMS, ids=lambda seam: seam.target.rpartition(".")[2])
def test_a_moved_signature_is_named(seam: seams.Seam, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target with other parameters is refused, naming the target."""
    moved = dataclasses.replace(seam, parameters=(*seam.parameters, "parameter_of_the_future"))
    monkeypatch.setattr(seams, "SEAMS", (moved,))
    with pytest.raises(SeamError, match=re.escape(seam.target)):
        seams.check_signatures()


def test_a_missing_target_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """So is a target that is gone."""
    gone = dataclasses.replace(seams.SEAMS[0], target="sglang.srt.server_args.ServerArgs.gone")
    monkeypatch.setattr(seams, "SEAMS", (gone,))
    with pytest.raises(SeamError, match="gone"):
        seams.check_signatures()


def test_all_rows_are_alive_after_sglang_has_loaded_its_plugins() -> None:
    """In a fresh process, through SGLang's own plugin loader."""
    assert run() == "ALIVE"


def test_a_hook_that_did_not_take_is_noticed() -> None:
    """SGLang swallows the failure of a hook; the check does not."""
    after = (
        "from sglang.srt.model_executor.model_runner import ModelRunner\n"
        "ModelRunner.sample = ModelRunner.sample.__wrapped__"
    )
    answer = run(after=after)
    assert answer.startswith("DEAD")
    assert "ModelRunner.sample: not installed" in answer


def test_a_failing_plugin_stops_the_process() -> None:
    """SGLang logs a plugin's exception and goes on; ours leaves instead, saying why."""
    before = (
        "import dataclasses\n"
        "seams.SEAMS = (dataclasses.replace(seams.SEAMS[0], target='sglang.srt.server_args.ServerArgs.gone'),)"
    )
    answer = run(before=before)
    assert "sgl_entropic" in answer
    assert "ServerArgs.gone" in answer


def test_every_import_of_a_private_name_of_sglang_has_a_row() -> None:
    """No module reaches for a private attribute of SGLang that the table does not name."""
    private = set()
    for path in (ROOT / "python/sgl_entropic/runtime").glob("*.py"):
        if path.name == "seams.py":
            continue
        for name in re.findall(
            r"(?:processor|runner|worker|manager|req|batch|scheduler)\.(_[a-z]\w*)", path.read_text()
        ):
            private.add(name)
    named = {seam.target.rpartition(".")[2] for seam in seams.SEAMS}
    assert private <= named, json.dumps(sorted(private - named))


def test_the_page_is_up_to_date() -> None:
    """``docs/seams.md`` is what the table says."""
    assert (ROOT / "docs/seams.md").read_text() == page()
