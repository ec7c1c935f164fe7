"""Progress as a terminal and as a log file show it."""

from __future__ import annotations

import io

from sgl_entropic.models.progress import Progress, StderrReport


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(stream: io.StringIO, *reports: Progress) -> str:
    report = StderrReport(stream)
    for each in reports:
        report(each)
    report.close()
    return stream.getvalue()


COUNT = [Progress("down", done, 1000) for done in range(0, 1001, 5)]


def test_a_log_gets_a_line_per_ten_percent() -> None:
    lines = shown(io.StringIO(), *COUNT).splitlines()
    assert [line.split("%")[0] for line in lines] == [f"down: {percent:3d}" for percent in range(0, 101, 10)]


def test_a_terminal_gets_one_line_that_is_rewritten_and_ended() -> None:
    text = shown(Terminal(), *COUNT, Progress("next"))
    assert text.count("\n") == 2
    assert text.split("\n")[0].split("\r")[-1] == "down: 100% (0.0 of 0.0 MB)"
    assert text.endswith("\nnext\n")


def test_a_sentence_is_not_repeated() -> None:
    assert shown(io.StringIO(), Progress("a"), Progress("a"), Progress("b")) == "a\nb\n"


def test_more_than_announced_is_a_hundred_percent() -> None:
    assert Progress("x", 30, 20).percent == 100
    assert Progress("x", 30, 0).percent == 0
