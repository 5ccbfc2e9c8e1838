"""Four processes spend one quota; some are killed in the middle. No window gets more requests than its budget."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock.config.rates import RateWindow
from penstock.db.engine import Database
from support import builders, quota_process
from support.builders import BACKENDS

_SECONDS = 16.0


def start(database: Database, log: Path, began: float, until: float) -> subprocess.Popen[bytes]:
    url = database.url.render_as_string(hide_password=False)
    command = [sys.executable, "-m", "support.quota_process", url, database.schema or "", str(log)]
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    return subprocess.Popen([*command, repr(began), repr(until)], env={**os.environ, "PYTHONPATH": paths})


@pytest.mark.parametrize("backend", BACKENDS)
def test_four_processes_never_exceed_a_budget_even_if_some_are_killed(
    backend: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    database = builders.migrated(
        builders.open_database(backend, tmp_path, lambda: request.getfixturevalue("postgres_url"))
    )
    log, die = tmp_path / "requests", random.Random(4)
    began = time.time()
    until = began + _SECONDS
    processes = [start(database, log, began, until) for _ in range(4)]
    killed = 0
    try:
        time.sleep(2.0)
        while time.time() < until - 3:
            time.sleep(0.5 + die.random())
            victim = die.choice(processes)
            if victim.poll() is None:
                victim.send_signal(signal.SIGKILL)
                victim.wait()
                killed += 1
                processes[processes.index(victim)] = start(database, log, began, until)
        ends = [process.wait(60) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    database.close()
    assert ends == [0] * 4
    assert killed >= 4
    lines = log.read_text().splitlines()
    assert [line for line in lines if line.startswith("shares")] == []
    moments = [datetime.fromtimestamp(float(line), UTC) for line in lines]
    for limit in quota_process.LIMITS:
        windows = Counter(limit.window.start(moment) for moment in moments)
        assert max(windows.values()) <= limit.requests, f"{limit}: {sorted(windows.items())}"
        assert max(windows.values()) >= limit.requests / 2, "the processes were too slow to come near a budget"
    assert len({RateWindow.HOUR.start(moment) for moment in moments}) >= 4
