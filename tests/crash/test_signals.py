"""A command that is asked to stop, at whatever moment: one line, exit code 130, nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cli import penstock
from penstock.app import load_workspace
from penstock.lifecycle import Outcome
from workspaces import key, write_workspace

SIGNALS = [signal.SIGINT, signal.SIGTERM]
YESTERDAY = (datetime.now(UTC).date() - timedelta(days=1)).isoformat()


def start(folder: Path, *command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "penstock", *command, "--workspace", str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PENSTOCK_TEST": str(folder)},  # by which whatever it starts is found again
    )


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal."""
    with suppress(FileNotFoundError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def started_by(folder: Path) -> Iterator[int]:
    """Processes that a command of this workspace started, and that are still there."""
    mark = f"PENSTOCK_TEST={folder}".encode()
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark in environ.read_bytes().split(b"\0"):
                yield int(environ.parent.name)


def java_of(folder: Path) -> list[int]:
    found = []
    for pid in started_by(folder):
        with suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().strip() == "java":
                found.append(pid)
    return found


def wait_until(condition: object, run: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 90
    while not condition():  # type: ignore[operator]
        assert run.poll() is None, run.communicate()
        assert time.monotonic() < deadline, "it did not come so far"
        time.sleep(0.01)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    faults = [{"fault": "slow", "seconds": 10}]
    made = write_workspace(tmp_path, faults=faults, query={"start_date": YESTERDAY})
    assert penstock("db", "migrate", workspace=made).returncode == 0
    return made


@pytest.mark.parametrize("number", SIGNALS)
def test_a_run_that_is_asked_to_stop_closes_its_attempts_without_a_verdict(
    number: signal.Signals, folder: Path
) -> None:
    run, ws = start(folder, "run"), load_workspace(folder)
    wait_until(lambda: ws.reader.attempts(key(1, YESTERDAY)), run)
    time.sleep(1)
    os.kill(run.pid, number)
    _, words = run.communicate(timeout=90)

    assert run.returncode == 130, words
    assert "what was open has been closed without a verdict" in words
    assert "Traceback" not in words
    [attempt] = ws.reader.attempts(key(1, YESTERDAY))
    assert (attempt.outcome, attempt.lost_count) == (Outcome.CANCELLED, 0)
    assert java_of(folder) == []


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("moment", ["first instant", "import", "java", "gateway", "0.3 s of java", "1 s of java"])
def test_a_run_that_is_asked_to_stop_while_it_starts_leaves_no_java_and_no_traceback(
    number: signal.Signals, moment: str, folder: Path
) -> None:
    run = start(folder, "run")
    wait_until(lambda: catches(run.pid, signal.SIGTERM), run)  # set behind that of SIGINT
    if moment == "import":
        time.sleep(0.3)
    elif moment != "first instant":
        wait_until(lambda: java_of(folder), run)
        wait_until(lambda: moment != "gateway" or run.pid in parents(java_of(folder)), run)
        time.sleep({"0.3 s of java": 0.3, "1 s of java": 1.0}.get(moment, 0))
    os.kill(run.pid, number)
    _, words = run.communicate(timeout=90)

    assert run.returncode == 130, words
    assert "Traceback" not in words
    assert [line for line in words.splitlines() if line.startswith("penstock: ")] == words.splitlines()[-1:]
    assert java_of(folder) == []
    assert list(started_by(folder)) == []


def parents(pids: list[int]) -> set[int]:
    found = set()
    for pid in pids:
        with suppress(OSError):
            found.add(int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]))
    return found


@pytest.mark.parametrize(
    "command",
    [
        ("warehouse", "reconcile"),
        ("validate",),
        ("sql", "--spark", "SELECT 1"),
        ("ledger", "rebuild", "--engine", "spark"),
    ],
)
def test_other_commands_end_in_the_same_way(command: tuple[str, ...], folder: Path) -> None:
    run = start(folder, *command)
    wait_until(lambda: catches(run.pid, signal.SIGTERM), run)
    os.kill(run.pid, signal.SIGTERM)
    _, words = run.communicate(timeout=90)
    assert run.returncode == 130, words
    assert words == "penstock: interrupted\n"
    assert list(started_by(folder)) == []
