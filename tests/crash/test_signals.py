"""A command that is interrupted at any moment: one line, exit code 130, nothing left behind."""

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

from penstock.app import load_workspace
from penstock.lifecycle import Outcome
from penstock.partition import new_ulid
from support.cli import penstock
from support.harness import Harness
from support.workspaces import key, write_workspace

SIGNALS = [signal.SIGINT, signal.SIGTERM]
YESTERDAY = (datetime.now(UTC).date() - timedelta(days=1)).isoformat()


def start(folder: Path, *command: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "penstock", *command, "--workspace", str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **environment, "PENSTOCK_TEST": str(folder)},  # by which whatever it starts is found again
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
    wait_until(lambda: ws.context.state.attempts(key(1, YESTERDAY)), run)
    time.sleep(1)
    os.kill(run.pid, number)
    _, words = run.communicate(timeout=90)

    assert run.returncode == 130, words
    assert "open attempts are closed without a verdict" in words
    assert "Traceback" not in words
    [attempt] = ws.context.state.attempts(key(1, YESTERDAY))
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


# More rows than are written in a minute, from no table at all.
MANY_ROWS = "WITH t AS (SELECT * FROM (VALUES (0),(1),(2),(3),(4),(5),(6),(7),(8),(9)) v(n)) SELECT {} FROM {}".format(
    ", ".join(f"t{i}.n AS n{i}" for i in range(10)), ", ".join(f"t t{i}" for i in range(10))
)


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("kind", ["csv", "parquet", "arrow", "json"])
def test_an_interrupted_answer_leaves_no_unfinished_file(
    number: signal.Signals, kind: str, folder: Path, tmp_path: Path
) -> None:
    place = tmp_path / "answers"
    place.mkdir()
    asked = start(folder, "sql", MANY_ROWS, "--format", kind, "--output", str(place / "out"))
    unfinished = place / ".out.part"
    wait_until(lambda: unfinished.exists() and unfinished.stat().st_size > 100_000, asked)
    os.kill(asked.pid, number)
    _, words = asked.communicate(timeout=90)
    assert (asked.returncode, words) == (130, "penstock: interrupted\n")
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("number", SIGNALS)
def test_an_interrupted_read_leaves_no_unfinished_file(number: signal.Signals, tmp_path: Path) -> None:
    house = Harness(tmp_path / "house")
    house.deliver({key(customer): 1 for customer in range(1, 10)}, rows=20_000)
    house.publish()
    house.workspace.context.database.close()
    place = tmp_path / "answers"
    place.mkdir()
    asked = start(house.folder, "read", "demo.campaign_daily", "--format", "json", "--output", str(place / "out"))
    unfinished = place / ".out.part"
    wait_until(unfinished.exists, asked)
    os.kill(asked.pid, number)
    _, words = asked.communicate(timeout=90)
    assert (asked.returncode, words) == (130, "penstock: interrupted\n")
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("number", SIGNALS)
def test_an_interrupted_preview_of_a_recovery_leaves_no_temporary_database(
    number: signal.Signals, tmp_path: Path
) -> None:
    house = Harness(tmp_path / "house")
    house.deliver({key(1): 1})
    house.publish()
    house.workspace.context.database.close()
    (house.folder / "state.db").unlink()
    place = tmp_path / "temporary"
    place.mkdir()
    asked = start(house.folder, "recover", "--from", "lake", "--dry-run", TMPDIR=str(place))
    wait_until(lambda: list(place.glob("penstock-*/state.db")), asked)
    os.kill(asked.pid, number)
    _, words = asked.communicate(timeout=90)
    assert (asked.returncode, words.splitlines()) == (130, ["read: 1 partition", "penstock: interrupted"])
    assert list(place.glob("penstock-*")) == []


@pytest.mark.parametrize("existed", [True, False])
def test_an_interrupted_backup_can_be_made_again_in_the_same_folder(
    existed: bool, postgres_url: str, tmp_path: Path
) -> None:
    folder = write_workspace(tmp_path / "ws", state=postgres_url, schema=f"t_{new_ulid().lower()}")
    assert penstock("db", "migrate", workspace=folder).returncode == 0
    slow = tmp_path / "bin" / "pg_dump"  # writes half a dump and then waits
    slow.parent.mkdir()
    slow.write_text(
        '#!/bin/sh\nfor o in "$@"; do case $o in --file=*) echo > "${o#--file=}";; esac; done\nexec sleep 90\n'
    )
    slow.chmod(0o755)
    place = tmp_path / "backup"
    if existed:
        place.mkdir()
    asked = start(folder, "backup", str(place), PATH=f"{slow.parent}:{os.environ['PATH']}")
    wait_until((place / ".state.dump.unfinished").exists, asked)
    os.kill(asked.pid, signal.SIGTERM)
    _, words = asked.communicate(timeout=90)
    assert (asked.returncode, words) == (130, "penstock: interrupted\n")
    assert place.exists() is existed
    assert list(started_by(folder)) == []
    assert penstock("backup", str(place), workspace=folder).returncode == 0
