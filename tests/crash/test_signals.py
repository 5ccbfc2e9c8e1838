"""A run that is asked to stop: it closes what is open, says one line, and the next run goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cli import penstock
from penstock.app import load_workspace
from penstock.lifecycle import Outcome
from workspaces import key, write_workspace


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_asked_to_stop_closes_its_attempts_without_a_verdict(
    number: signal.Signals, tmp_path: Path
) -> None:
    yesterday = (datetime.now(UTC).date() - timedelta(days=1)).isoformat()
    faults = [{"fault": "slow", "seconds": 10}]
    folder = write_workspace(tmp_path, faults=faults, query={"start_date": yesterday})
    assert penstock("db", "migrate", workspace=folder).returncode == 0
    run = subprocess.Popen(
        [sys.executable, "-m", "penstock", "run", "--workspace", str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    ws = load_workspace(folder)
    deadline = time.monotonic() + 90
    while not ws.reader.attempts(key(1, yesterday)):
        assert time.monotonic() < deadline, "nothing was issued"
        time.sleep(0.2)
    time.sleep(1)
    os.kill(run.pid, number)
    _, words = run.communicate(timeout=90)

    assert run.returncode == 130, words
    assert "what was open has been closed without a verdict" in words
    assert "Traceback" not in words
    [attempt] = ws.reader.attempts(key(1, yesterday))
    assert (attempt.outcome, attempt.lost_count) == (Outcome.CANCELLED, 0)
