"""Switched off, the extension is not there: same tokens as stock SGLang, and a plain process loads none of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from sgl_entropic.testing.servers import Server, stock_server

pytestmark = pytest.mark.e2e

SUBJECTS = (
    *("rain", "bread", "clocks", "ships", "bees", "stars", "chess", "salt", "rivers", "maps"),
    *("glass", "horses", "paper", "towers", "wheels", "winter", "letters", "gardens", "bells", "islands"),
)
FORMS = (
    "Explain {}.",
    "Write a line about {}.",
    "Q: Why {}?\nA:",
    "The history of {} began",
    "def count_{}(items):\n   ",
)
PROMPTS = [form.format(subject) for subject in SUBJECTS for form in FORMS]
MODULES = """
import sys
from sglang.srt.plugins import load_plugins
from sglang.srt.platforms import current_platform
load_plugins()
current_platform.device_name
import sglang.srt.server_args
print(sorted(name for name in sys.modules if name.split(".")[0].startswith("sgl_entropic")))
"""


def greedy(server: Server) -> list[list[int]]:
    body = {"text": PROMPTS, "sampling_params": {"temperature": 0, "max_new_tokens": 12}}
    response = httpx.post(server.url + "/generate", json=body, timeout=1200)
    assert response.status_code == 200, response.text
    return [answer["output_ids"] for answer in response.json()]


@pytest.fixture(scope="module")
def stock_tokens(tmp_path_factory: pytest.TempPathFactory, model_path: str) -> list[list[int]]:
    """Greedy answers of stock SGLang on a minimal platform."""
    with stock_server(
        tmp_path_factory.mktemp("stock") / "server.log", model_path, "--max-total-tokens", "32768"
    ) as stock:
        return greedy(stock)


@pytest.fixture(scope="module")
def off_server(tmp_path_factory: pytest.TempPathFactory, model_path: str) -> Iterator[Server]:
    """SGLang's own command with a configuration asked for: telemetry and the CPU's fast path off."""
    folder = tmp_path_factory.mktemp("off")
    (folder / "off.yaml").write_text("telemetry:\n  enabled: false\ncpu:\n  fast_path: false\n")
    command = [str(Path(sys.executable).parent / "sglang"), "serve", "--model-path", model_path]
    flags = ["--entropic-config", str(folder / "off.yaml"), "--max-total-tokens", "32768"]
    with Server([*command, *flags], folder / "server.log", {}) as running:
        yield running
        assert running.alive(), running.log_tail()


def test_switched_off_equals_stock(off_server: Server, stock_tokens: list[list[int]]) -> None:
    """A hundred greedy answers, token for token."""
    assert len(PROMPTS) == 100
    assert greedy(off_server) == stock_tokens


def test_sglang_serve_with_a_configuration_is_entropic(off_server: Server) -> None:
    """``sglang serve --entropic-config`` came up with the extension, which measured nothing."""
    state: Any = httpx.get(off_server.url + "/server_info", timeout=60).json()["internal_states"][0][
        "sgl_entropic"
    ]
    assert state["config"]["telemetry"]["enabled"] is False
    assert state["config"]["cpu"]["fast_path"] is False
    assert state.get("cpu") is None
    assert set(state["counters"].values()) == {0}
    assert state["slot_store_bytes"] == 0


def test_asking_a_server_that_does_not_measure_is_refused(off_server: Server) -> None:
    """The client learns that nothing would be measured, and which flag decides it."""
    response = httpx.post(
        off_server.url + "/generate", json={"text": "a", "return_entropy": True}, timeout=60
    )
    assert response.status_code == 400
    assert "--entropic-telemetry off" in response.text


def test_telemetry_on_chooses_the_same_tokens(server: Server, stock_tokens: list[list[int]]) -> None:
    """Measuring changes nothing that is chosen, up to what an equal maximum in another batch shape may flip."""
    same = sum(mine == theirs for mine, theirs in zip(greedy(server), stock_tokens, strict=True))
    assert same >= 95


def test_plain_sglang_loads_nothing_but_the_question(tmp_path: Path) -> None:
    """A plain SGLang process imports the entry point and the module that tells it that nobody asked."""
    result = subprocess.run(
        [sys.executable, "-c", MODULES], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert (
        result.stdout.splitlines()[-1] == "['sgl_entropic', 'sgl_entropic.activation', 'sgl_entropic.plugin']"
    )
