"""Many processes on one state database, some of them killed: every partition is decided once, and none is lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import sqlalchemy as sa

from penstock.db import schema
from penstock.db.engine import Database
from penstock.partition import PartitionKey
from support import builders
from support.builders import BACKENDS
from support.checker import check_state
from support.worker_process import POLICY, expected

PARTITIONS = 5000
_LONGEST_SECONDS = 300


def start(database: Database, folder: Path) -> subprocess.Popen[bytes]:
    url = database.url.render_as_string(hide_password=False)
    command = [sys.executable, "-m", "support.worker_process", url, database.schema or "", str(folder), str(PARTITIONS)]
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths})


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("workers", "kills"), [(2, 6), (8, 12)])
def test_every_partition_is_decided_once_even_if_workers_die(
    backend: str, workers: int, kills: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "places").mkdir()
    database = builders.open_database(backend, tmp_path, lambda: request.getfixturevalue("postgres_url"))
    builders.Actors.on(builders.migrated(database))
    die = random.Random(workers)
    crowd = [start(database, tmp_path) for _ in range(workers)]
    killed = 0
    deadline = time.monotonic() + _LONGEST_SECONDS
    try:
        while any(worker.poll() is None for worker in crowd):
            assert time.monotonic() < deadline, "the crowd does not come to an end"
            time.sleep(0.3 + die.random())
            alive = [worker for worker in crowd if worker.poll() is None]
            if killed < kills and alive:
                victim = die.choice(alive)
                victim.send_signal(signal.SIGKILL)
                victim.wait()
                crowd.append(start(database, tmp_path))
                killed += 1
    finally:
        for worker in crowd:
            worker.kill()
            worker.wait()
    assert killed >= kills // 2
    assert not (tmp_path / "caught").exists(), (tmp_path / "caught").read_text()
    check(database)
    assert check_state(database.url.render_as_string(hide_password=False), database.schema) == []
    database.close()


def check(database: Database) -> None:
    attempt, state, control = schema.partition_attempt, schema.partition_state, schema.partition_control
    with database.snapshot() as connection:
        attempts: dict[PartitionKey, list[sa.Row[tuple[object, ...]]]] = {}
        for row in connection.execute(sa.select(attempt).order_by(attempt.c.attempt_no)):
            attempts.setdefault(PartitionKey(*row[:4]), []).append(row)
        states = {PartitionKey(*row[:4]): row for row in connection.execute(sa.select(state))}
        controls = {PartitionKey(*row[:4]): row for row in connection.execute(sa.select(control))}
        finished = connection.scalar(
            sa.select(sa.func.count()).select_from(schema.event).where(schema.event.c.type == "TaskFinished")
        )
    assert len(states) == len(attempts) == sum(len(span) for span in expected(PARTITIONS))
    for key, mine in attempts.items():
        outcomes = [row.outcome for row in mine]
        assert None not in outcomes, f"{key} is still open"
        assert [row.attempt_no for row in mine] == list(range(1, len(mine) + 1))
        verdicts = Counter(outcomes)
        now = states[key]
        assert now.attempt_count == verdicts["SUCCEEDED"] + verdicts["FAILED"], key
        accepted = [row.run_id for row in mine if row.outcome == "SUCCEEDED"]
        if accepted:
            assert (now.status, now.current_run_id, now.authority_version) == ("success", accepted[-1], len(accepted))
        else:
            assert now.status == "failed", key
            last = [row for row in mine if row.outcome == "FAILED"][-1]
            assert last.error_class == "data" or controls[key].failures == POLICY.max_attempts, key
            assert controls[key].next_run_at is None
    assert finished == sum(len(mine) for mine in attempts.values())
