"""`penstock top`: its document states what is in progress, its lines fit, and it leaves the terminal as it was."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.app import Workspace
from penstock.cli.activity_screen import screen
from penstock.control.select import Selection
from penstock.ledger.append import append
from penstock.ledger.events import SlicesExtracted, TaskStarted
from penstock.partition import new_run_id, new_ulid
from penstock.partition_set import compact_ranges, count_keys, iter_keys
from penstock.views.activity import activity_document
from penstock.views.document import Document
from support import builders
from support.builders import Actors, accepted, rejected
from support.workspaces import NOW, customer_id, key, open_at, write_workspace


@pytest.fixture(params=builders.BACKENDS)
def workspace(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Workspace]:
    """Three customers and two days. Runs need no Spark."""
    state, name = "sqlite:///state.db", None
    if request.param == "postgresql":
        state, name = request.getfixturevalue("postgres_url"), f"t_{new_ulid().lower()}"
    faults = [{"fault": "wrong_type", "customer": customer_id(2), "date": "2024-06-09"}]
    opened = open_at(
        write_workspace(tmp_path, customers=3, faults=faults, state=state, schema=name, driver_partitions=32)
    )
    yield opened
    opened.close()


def document(workspace: Workspace) -> Document:
    return activity_document(workspace.activity.now())


def in_progress(workspace: Workspace) -> tuple[Actors, str]:
    """A run of six partitions: five were extracted, one was accepted and one rejected."""
    actors = Actors.on(workspace.context.database)
    actors.clock.now = NOW - timedelta(seconds=30)
    keys = [key(number, day) for number in (1, 2, 3) for day in ("2024-06-09", "2024-06-10")]
    run_id = new_run_id()
    actors.control.start_run(run_id, actors.token, "kim", {}, len(keys))
    issued, _ = actors.try_to_issue(*actors.plan(*keys), run_id=run_id)
    attempts = [one.attempt for one in issued]
    started = TaskStarted(run_id, "extract", compact_ranges(keys), 1, "a")
    extracted = SlicesExtracted(run_id, compact_ranges(keys[:5]), 1, "b")
    validating = TaskStarted(run_id, "validate", compact_ranges(keys[:5]), 1, "c")
    workspace.context.database.transact(
        lambda connection: append(connection, [started, extracted, validating], "control", NOW)
    )
    judged = actors.validator.judge([accepted(attempts[0], actors.token), rejected(attempts[1], actors.token)])
    assert len(judged.applied) == 2
    return actors, run_id


def test_a_run_in_progress_is_shown_with_its_stages(workspace: Workspace) -> None:
    actors, run_id = in_progress(workspace)
    [run] = document(workspace)["runs"]
    assert run == {
        "run_id": run_id, "actor": "kim", "state": "running", "stage": "validate",
        "started_at": NOW - timedelta(seconds=30), "finished_at": None, "seconds": 30.0, "planned": 6, "open": 4,
        "extracted": 5, "extract_failed": 0, "accepted": 1, "rejected": 1, "cancelled": 0, "published": 0,
        "last_minute": 2,
    }  # fmt: skip
    found = document(workspace)
    assert (found["last_minute"], found["per_minute"], found["publish_due"]) == (2, 0.2, 1)
    assert found["errors"] == [{"outcome": "FAILED", "error_class": "data", "count": 1}]
    actors.expire(actors.token)
    [run] = document(workspace)["runs"]
    assert run["state"] == "lost"


def test_a_finished_run_is_shown_for_ten_minutes(workspace: Workspace) -> None:
    order = workspace.orders.create("run", Selection(), actor="kim")
    assert document(workspace)["orders"] == {"queued": 1, "claimed": 0, "running": 0}
    assert document(workspace)["oldest_order_seconds"] == 0.0
    done = workspace.orders.execute_next(workspace.context.workers.register(control_loop=True))
    assert done is not None
    [run] = document(workspace)["runs"]
    shown = ("state", "planned", "open", "extracted", "accepted", "rejected", "published")
    assert [run[name] for name in shown] == ["finished", 6, 0, 6, 5, 1, 5]
    assert document(workspace)["control_loops"]["alive"] == 1
    assert order.order_id
    for minutes, runs in ((9, 1), (11, 0)):
        later = open_at(workspace.settings.root, NOW + timedelta(minutes=minutes))
        assert len(document(later)["runs"]) == runs
        later.close()


def sample(runs: int, **changes: Any) -> Document:
    """A document with large numbers and long names."""
    run = {
        "run_id": "01JABCDEFGHJKMNPQRSTVWXYZ0", "actor": "a-very-long-name-of-an-operator@example.com",
        "state": "cancelling", "stage": "validate", "started_at": NOW, "finished_at": None, "seconds": 400_000.0,
        "planned": 1_000_000, "open": 0, "extracted": 999_999, "extract_failed": 1, "accepted": 888_888,
        "rejected": 99_999, "cancelled": 99_999, "published": 888_888, "last_minute": 100_000,
    }  # fmt: skip
    body: dict[str, Any] = {
        "at": NOW, "runs": [run] * runs, "last_minute": 100_000, "per_minute": 123_456.7, "window_minutes": 10,
        "errors": [{"outcome": "FAILED", "error_class": "transient", "count": 12_345}],
        "quota": [{"source": "google_ads", "window": "day", "budget": 15_000, "left": 14_999, "renews_at": NOW}],
        "orders": {"queued": 12, "claimed": 1, "running": 1}, "oldest_order_seconds": 4000.0,
        "control_loops": {"alive": 2, "lost": 1, "last_heartbeat": NOW}, "publish_due": 123_456,
    }  # fmt: skip
    return Document({**body, **changes})


@pytest.mark.parametrize("height", [24, 40])
@pytest.mark.parametrize("runs", [0, 1, 2, 30])
def test_the_screen_fits(runs: int, height: int) -> None:
    lines = [str(line) for line in screen(sample(runs), "acme/ads", height)]
    assert max(map(len, lines)) <= 80, max(lines, key=len)
    assert len(lines) < height
    shown = sum("01JABCDEFGHJKMNPQRSTVWXYZ0" in line for line in lines)
    more = [int(found[1]) for line in lines if (found := re.search(r"and (\d+) more run", line))]
    assert shown + sum(more) == runs


def test_partitions_are_counted_as_they_are_listed() -> None:
    for keys in ([], [key(1)], [key(1), key(2), key(1, "2024-06-10"), key(1, "2024-06-12")]):
        ranges = compact_ranges(keys)
        assert count_keys(ranges) == len(list(iter_keys(ranges))) == len(keys)


def test_without_a_terminal_lines_are_printed_until_it_is_stopped(tmp_path: Path) -> None:
    open_at(write_workspace(tmp_path)).close()
    line = [sys.executable, "-m", "penstock", "top", "--every", "1s", "--workspace", str(tmp_path)]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    titles = 0
    while titles < 2:
        printed = process.stdout.readline()
        assert printed, "it ended"
        titles += printed.startswith(b"acme/ads")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, b"")


@pytest.mark.parametrize("keys", [b"xq", b"\x03"], ids=["q", "ctrl-c"])
def test_the_terminal_is_restored(tmp_path: Path, keys: bytes) -> None:
    open_at(write_workspace(tmp_path), datetime.now(UTC)).close()
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    line = [sys.executable, "-m", "penstock", "top", "--every", "1s", "--workspace", str(tmp_path)]
    process = subprocess.Popen(
        line, stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=_own_terminal, env={**os.environ, "TERM": "xterm"}
    )
    try:
        output = b""
        while b"q quits" not in output:
            output += os.read(ours, 65536)
        os.write(ours, keys)
        assert process.wait(60) == 0
        output += os.read(ours, 65536)
        assert output.count(b"\x1b[?1049h") == output.count(b"\x1b[?1049l") == 1  # the alternate screen
        assert b"\x1b[?25h" in output.rpartition(b"\x1b[?25l")[2]  # the cursor is shown again
        assert termios.tcgetattr(theirs) == before
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(ours)
        os.close(theirs)


def _own_terminal() -> None:
    """The standard input becomes the controlling terminal: Ctrl-C sends a signal."""
    import fcntl

    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
