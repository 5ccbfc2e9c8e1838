"""A run killed between any two of its writes: nothing is lost, nothing is partly visible, and a rerun converges."""

from __future__ import annotations

import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from penstock.app import Workspace, load_workspace
from penstock.control.select import Selection
from penstock.lifecycle import Outcome, PartitionStatus
from support.cli import penstock
from support.workspaces import customer_id, key, rows_by_partition, run, write_workspace

DRIVER_GAPS = (
    "run.issued",
    "run.extracted",
    "run.validated",
    "run.judged",
    "publish.staged",
    "publish.prepared",
    "publish.committed",
    "publish.recorded",
)
WORKER_GAPS = ("raw.payload_written:2", "raw.sealed:2")


@pytest.mark.parametrize("gap", DRIVER_GAPS + WORKER_GAPS)
def test_a_run_killed_in_a_gap_loses_nothing_and_a_rerun_converges(gap: str, tmp_path: Path, spark: Any) -> None:
    _kill_and_rerun(gap, tmp_path, "./lake", lambda ws: run(ws, spark))


@pytest.mark.parametrize("gap", ["run.extracted", "publish.committed", *WORKER_GAPS])
def test_a_run_on_s3_killed_while_uploads_overlap_loses_nothing(gap: str, tmp_path: Path, s3_url: str) -> None:
    # By the command: the workers of the shared session may have started without the address of the server.
    _kill_and_rerun(gap, tmp_path, f"{s3_url}/{uuid4().hex}", lambda _ws: penstock("run", workspace=tmp_path))


def _kill_and_rerun(gap: str, tmp_path: Path, lake: str, rerun: Callable[[Workspace], object]) -> None:
    yesterday = datetime.now(UTC).date() - timedelta(days=1)
    faults = [{"fault": "wrong_type", "customer": customer_id(3), "date": yesterday.isoformat()}]
    start = (yesterday - timedelta(days=1)).isoformat()
    folder = write_workspace(tmp_path, customers=3, faults=faults, query={"start_date": start}, lake=lake)
    assert penstock("db", "migrate", workspace=folder).returncode == 0

    killed = penstock("run", workspace=folder, PENSTOCK_FAILPOINT=gap)
    # A driver is killed itself; if a Spark worker is killed, the driver lives, tries each half, and reports it.
    expected = {1} if gap in WORKER_GAPS else {-signal.SIGKILL}
    assert {killed.returncode} == expected, killed.stderr
    ws = load_workspace(folder)
    seen = rows_by_partition(ws)
    assert len(seen) in (range(6) if gap in WORKER_GAPS else (0, 5))
    assert all({len(rows), len({row["_run_id"] for row in rows})} == {5, 1} for rows in seen.values())

    rerun(ws)
    rows = rows_by_partition(ws)
    assert len(rows) == 5
    assert {len(found) for found in rows.values()} == {5}
    views = ws.context.state.views(ws.context.ranges(Selection()))
    assert [view.state.status for view in views].count(PartitionStatus.SUCCESS) == 5
    assert [view.state.status for view in views].count(PartitionStatus.FAILED) == 1
    for view in views:
        attempts = ws.context.state.attempts(view.key)
        judged = [a for a in attempts if a.outcome in (Outcome.SUCCEEDED, Outcome.FAILED)]
        assert len(judged) == view.state.attempt_count == 1, view.key
        assert all(attempt.outcome for attempt in attempts), view.key
    assert ws.context.pointers.waiting() == 0


@pytest.mark.parametrize("gap", ["run.judged", "publish.committed"])
def test_a_refetch_killed_before_its_load_ends_is_published_before_its_model_is_planned(
    gap: str, tmp_path: Path, spark: Any
) -> None:
    yesterday = (datetime.now(UTC).date() - timedelta(days=1)).isoformat()

    def workspace(rows: int) -> Path:
        code = "SELECT logical_date, count(*) AS rows_ FROM demo.campaign_daily GROUP BY ALL"
        models = {"counted": {"code": code, "depends_on": ["demo.campaign_daily"]}}
        return write_workspace(tmp_path, customers=2, rows=rows, query={"start_date": yesterday}, models=models)

    def counted(ws: Workspace) -> list[int]:
        return [row["rows_"] for row in ws.data.vouched("models.counted").arrow().to_pylist()]

    assert penstock("db", "migrate", workspace=workspace(rows=5)).returncode == 0
    run(load_workspace(tmp_path), spark)
    changed, one = workspace(rows=7), str(key(1, yesterday))
    killed = penstock("run", one, "--reprocess", workspace=changed, PENSTOCK_FAILPOINT=gap)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    ws = load_workspace(tmp_path)
    assert counted(ws) == [10]
    done = run(ws, spark)
    assert (done.accepted, done.cancelled, done.loaded) == (1, 0, 2)
    assert counted(ws) == [12]
    assert ws.context.pointers.waiting() == 0
    assert run(ws, spark).planned == 0
