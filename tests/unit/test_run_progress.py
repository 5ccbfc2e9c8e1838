"""Progress goes to standard error: a bar on a terminal, a line at each quarter otherwise."""

from __future__ import annotations

import io
import re

import pytest

from penstock.cli.progress import RunProgress
from penstock.observe.progress import SILENT, LineListener


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def work(progress: RunProgress) -> None:
    report = progress.stage("extract", 8)
    for share in (0.1, 0.3, 0.8, 1.0):
        report(share)


def test_without_a_terminal_there_is_a_line_at_each_quarter(capsys: pytest.CaptureFixture[str]) -> None:
    with RunProgress() as progress:
        work(progress)
        progress.say("publishing")
    told = capsys.readouterr()
    assert told.err.splitlines() == ["extract: 8 partitions", "extract: 25 %", "extract: 75 %", "publishing"]
    assert told.out == ""


def test_on_a_terminal_there_is_a_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with RunProgress() as progress:
        work(progress)
    assert "extract" in terminal.getvalue()
    assert "━" in terminal.getvalue()
    assert "100%" in terminal.getvalue()
    assert capsys.readouterr().out == ""


def test_on_a_terminal_a_message_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    message = "[/] [bold]renew[/bold] :key:"
    with RunProgress() as progress:
        progress.say(message)
    assert message in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.getvalue())


def test_lines_are_written_to_any_log() -> None:
    written: list[str] = []
    lines = LineListener(written.append)
    report = lines.stage("load", 1)
    for share in (0.5, 0.5, 0.2, 1.0):
        report(share)
    lines.say("published")
    assert written == ["load: 1 partition", "load: 50 %", "published"]


def test_the_silent_listener_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    SILENT.stage("extract", 8)(1.0)
    SILENT.say("publishing")
    assert capsys.readouterr() == ("", "")
