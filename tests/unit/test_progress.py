"""Progress of planning: a moving bar on a terminal for large plans, one line otherwise."""

from __future__ import annotations

import io
import sys

import pytest

from penstock.cli.progress import LARGE_PLAN, RunProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def planned(monkeypatch: pytest.MonkeyPatch, stderr: io.StringIO, expected: int) -> str:
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with RunProgress() as progress:
        progress.plan(expected)
        if progress._live is not None:
            progress._live.refresh()
        progress.stage("extract", 3)(1.0)
        if progress._live is not None:
            progress._live.refresh()
    return stderr.getvalue()


def test_a_large_plan_shows_a_bar_until_the_first_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = planned(monkeypatch, Terminal(), 730_000)
    assert "730,000 partitions expected" in shown
    assert "730,000" not in shown[shown.rindex("extract") :]
    assert "planning" not in shown


def test_a_small_plan_and_a_log_get_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "planning" in planned(monkeypatch, Terminal(), LARGE_PLAN - 1)
    assert planned(monkeypatch, io.StringIO(), 730_000) == "planning\nextract: 3 partitions\n"
