"""Runs of a few partitions: the driver works itself, with the results of Spark and the guarantees of a run."""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from penstock.app import Workspace, load_workspace
from penstock.control.select import Selection
from penstock.errors import SparkFailed
from penstock.lake.protocol import LakeUnavailable
from penstock.lifecycle import Outcome
from penstock.pipeline.driver_work import work_in_driver
from penstock.source.demo import Fault
from support.cli import answer, penstock
from support.workspaces import customer_id, open_at, rows_by_partition, run, write_workspace

FEW = 32


def _faulty(folder: Path, driver_partitions: int) -> Workspace:
    """A workspace with one customer for each fault of the demo source that needs no waiting, and a good one."""
    faults = [
        {"fault": str(name), "customer": customer_id(number + 2)}
        for number, name in enumerate(
            sorted(set(Fault) - {Fault.SLOW, Fault.CRASH, Fault.QUOTA, Fault.AUTH, Fault.UNSTEADY})
        )
    ]
    return open_at(
        write_workspace(
            folder, customers=len(faults) + 1, faults=faults, driver_partitions=driver_partitions,
        )
    )  # fmt: skip


def _verdicts(ws: Workspace) -> dict[str, Any]:
    found = {}
    for view in ws.context.state.views(ws.context.ranges(Selection())):
        [attempt] = ws.context.state.attempts(view.key)
        found[str(view.key)] = (
            view.state.status, attempt.outcome, attempt.stage, attempt.error_class, attempt.error_message,
            attempt.complaints, attempt.record_count, attempt.content_digest, attempt.payload_digest,
        )  # fmt: skip
    return found


def test_verdicts_and_rows_are_those_of_spark(tmp_path: Path, spark: Any) -> None:
    alone, distributed = _faulty(tmp_path / "driver", FEW), _faulty(tmp_path / "spark", 0)
    run(alone, None)
    run(distributed, spark)
    found = _verdicts(alone)
    assert found == _verdicts(distributed)
    assert len({outcome for _, outcome, *_ in found.values()}) > 1
    assert _rows(alone) == _rows(distributed)


def _rows(ws: Workspace) -> dict[str, Any]:
    return {
        str(key): [{name: value for name, value in row.items() if name != "_run_id"} for row in rows]
        for key, rows in rows_by_partition(ws).items()
    }


def test_a_few_partitions_need_no_java(tmp_path: Path) -> None:
    yesterday = (datetime.now(UTC).date() - timedelta(days=1)).isoformat()
    folder = write_workspace(tmp_path, customers=3, query={"start_date": yesterday}, driver_partitions=FEW)
    assert penstock("db", "migrate", workspace=folder).returncode == 0
    nowhere: dict[str, Any] = {"JAVA_HOME": str(tmp_path / "none"), "PATH": str(tmp_path)}
    assert answer("run", workspace=folder, **nowhere)["loaded"] == 3
    again = answer(
        "run", f"demo/{customer_id(1)}/campaign_daily/{yesterday}", "--reprocess", workspace=folder, **nowhere
    )
    assert (again["accepted"], again["loaded"]) == (1, 1)
    # One more than the limit: Spark is needed, and nothing is issued without it.
    write_workspace(tmp_path, customers=3, query={"start_date": yesterday}, driver_partitions=2)
    refused = penstock("run", "--reprocess", "--yes", workspace=folder, **nowhere)
    assert refused.returncode == 1, refused.stderr
    assert "Java" in refused.stderr
    attempts = load_workspace(folder).context.state.attempts
    views = load_workspace(folder).context.state.views(load_workspace(folder).context.ranges(Selection()))
    assert sorted(len(attempts(view.key)) for view in views) == [1, 1, 2]


def test_a_check_that_needs_spark_is_evaluated_by_spark(tmp_path: Path, spark: Any) -> None:
    del spark  # the session of this process
    checks = [{"expression": "length(campaign_name) < 3 OR clicks < 0", "name": "short"}]
    ws = open_at(write_workspace(tmp_path, query={"checks": checks}, driver_partitions=FEW))
    done = run(ws, None)
    assert (done.accepted, done.rejected) == (0, 2)
    assert all("length(campaign_name)" in failure.message for failure in done.failures)


@pytest.mark.parametrize(
    "gap",
    ["run.issued", "raw.payload_written:2", "raw.sealed:2", "run.extracted", "run.judged", "publish.committed"],
)
def test_a_run_killed_in_a_gap_loses_nothing(gap: str, tmp_path: Path) -> None:
    yesterday = datetime.now(UTC).date() - timedelta(days=1)
    faults = [{"fault": "wrong_type", "customer": customer_id(3)}]
    query = {"start_date": yesterday.isoformat()}
    folder = write_workspace(tmp_path, customers=3, faults=faults, query=query, driver_partitions=FEW)
    assert penstock("db", "migrate", workspace=folder).returncode == 0
    assert penstock("run", workspace=folder, PENSTOCK_FAILPOINT=gap).returncode == -signal.SIGKILL
    assert all(len(rows) == 5 for rows in rows_by_partition(load_workspace(folder)).values())
    penstock("run", workspace=folder)
    ws = load_workspace(folder)
    assert sorted(len(rows) for rows in rows_by_partition(ws).values()) == [5, 5]
    for view in ws.context.state.views(ws.context.ranges(Selection())):
        attempts = ws.context.state.attempts(view.key)
        judged = [a for a in attempts if a.outcome in (Outcome.SUCCEEDED, Outcome.FAILED)]
        assert len(judged) == view.state.attempt_count == 1, view.key
    assert ws.context.pointers.waiting() == 0


def test_a_run_that_is_stopped_does_not_wait_for_its_source() -> None:
    stopped, forever = Event(), Event()
    stopped.set()
    with pytest.raises(KeyboardInterrupt):
        work_in_driver(forever.wait, stopped)
    forever.set()


def test_an_unexpected_error_is_that_of_a_failed_job() -> None:
    def broken() -> None:
        raise ZeroDivisionError("in a worker function")

    with pytest.raises(SparkFailed, match="ZeroDivisionError: in a worker function"):
        work_in_driver(broken, Event())


@pytest.mark.parametrize("error", [LakeUnavailable("no answer"), TimeoutError("the source's own")])
def test_errors_of_ours_and_timeouts_of_the_work_are_not_confused_with_waiting(error: Exception) -> None:
    def fails() -> None:
        raise error

    with pytest.raises((LakeUnavailable, SparkFailed)):
        work_in_driver(fails, Event())


def test_the_results_are_returned() -> None:
    assert work_in_driver(os.getpid, Event()) == os.getpid()
