"""A killed run is resumed: finished work is not repeated, and the result is the same."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.app import Workspace, load_workspace
from penstock.control.select import Selection
from penstock.errors import ActRefused
from penstock.lifecycle import Outcome
from penstock.partition import AttemptKey, PartitionKey, RunId
from penstock.projections.system_tables import system_table
from penstock.raw.reader import RawReader
from support.cli import answer, penstock
from support.workspaces import Silent, customer_id, rows_by_partition, write_workspace

YESTERDAY = datetime.now(UTC).date() - timedelta(days=1)
GAPS = (
    "run.started",
    "run.issued",
    "derive.recorded",
    "run.extracted",
    "run.validated",
    "run.judged",
    "publish.prepared",
    "publish.committed",
    "run.finished",
    "project.written",
)


def workspace(folder: Path, **changes: Any) -> Path:
    faults = [{"fault": "wrong_type", "customer": customer_id(3), "date": YESTERDAY.isoformat()}]
    start = (YESTERDAY - timedelta(days=1)).isoformat()
    spend = "SELECT logical_date, sum(cost_micros) AS cost FROM demo.campaign_daily GROUP BY ALL"
    models = {"spend": {"code": spend, "depends_on": ["demo.campaign_daily"], "require": 2}}
    wanted = {"customers": 3, "faults": faults, "query": {"start_date": start}, "models": models, **changes}
    made = write_workspace(folder, **wanted)
    assert penstock("db", "migrate", workspace=made).returncode == 0
    return made


def told(ws: Workspace) -> dict[str, Any]:
    """The projections without names of runs and without times."""
    current = ws.status.current()
    columns = {
        "tasks": ("task_key", "state", "error_class", "deps_total", "deps_satisfied_count"),
        "dep_satisfaction": ("upstream_task_key", "downstream_task_key", "satisfied", "resolution"),
        "partition_status": ("partition_key", "last_attempt_outcome", "available", "last_materialization_code_version"),
        "runs": ("state", "tasks_total", "tasks_succeeded", "tasks_failed", "tasks_skipped"),
    }
    return {
        name: sorted(
            tuple(str(row[column]) for column in wanted) for row in system_table(name, current).arrow().to_pylist()
        )
        for name, wanted in columns.items()
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, spark: Any) -> dict[str, Any]:
    ws = load_workspace(workspace(tmp_path_factory.mktemp("undisturbed")))
    ws.runs.start(Selection(), listener=Silent(), spark=spark)
    return told(ws)


def the_run(ws: Workspace) -> RunId:
    return RunId(ws.status.current().runs().to_pylist()[-1]["run_id"])


@pytest.mark.parametrize("gap", GAPS)
def test_a_run_killed_in_a_gap_goes_on_and_ends_like_one_that_was_not(
    gap: str, tmp_path: Path, spark: Any, undisturbed: dict[str, Any]
) -> None:
    folder = workspace(tmp_path)
    assert penstock("run", workspace=folder, PENSTOCK_FAILPOINT=gap).returncode == -signal.SIGKILL
    ws = load_workspace(folder)
    run_id = the_run(ws)
    seals = {entry.path for entry in ws.context.lake.list("raw") if entry.path.endswith("metadata.json")}
    if gap in ("run.finished", "project.written"):
        with pytest.raises(ActRefused, match="is over"):
            ws.runs.resume(run_id, listener=Silent(), spark=spark)
    else:
        ws.runs.resume(run_id, listener=Silent(), spark=spark)
    assert told(ws) == undisturbed
    after = {entry.path for entry in ws.context.lake.list("raw") if entry.path.endswith("metadata.json")}
    assert seals <= after
    assert len(after) == 8, "nothing was fetched or made twice"
    for view in ws.context.state.views(ws.context.ranges(Selection())):
        attempts = ws.context.state.attempts(view.key)
        assert [a.run_id for a in attempts] == [run_id]
        assert view.state.attempt_count == 1
    assert ws.context.pointers.waiting() == 0
    assert len(rows_by_partition(ws)) == 5
    assert len(rows_by_partition(ws, "models.spend")) == 2
    ws.ledger.rebuild()
    assert told(ws) == undisturbed


def test_what_was_fetched_under_another_contract_is_not_judged_by_todays(tmp_path: Path, spark: Any) -> None:
    folder = workspace(tmp_path)
    assert penstock("run", workspace=folder, PENSTOCK_FAILPOINT="run.validated").returncode == -signal.SIGKILL
    start = (YESTERDAY - timedelta(days=1)).isoformat()
    write_workspace(tmp_path, customers=2, query={"start_date": start, "checks": [{"rows": {"min": 1}}]})
    ws = load_workspace(folder)
    summary = ws.runs.resume(the_run(ws), listener=Silent(), spark=spark)
    assert (summary.accepted, summary.loaded) == (0, 0)
    ws.runs.start(Selection(), listener=Silent(), spark=spark)
    assert len(rows_by_partition(ws)) == 4
    for view in ws.context.state.views(ws.context.ranges(Selection())):
        outcomes = [(a.outcome, a.lost_count) for a in ws.context.state.attempts(view.key)]
        assert outcomes == [(Outcome.SUCCEEDED, 0), (Outcome.CANCELLED, 0)]


def test_a_slice_that_waited_for_another_goes_on_with_what_was_fetched(tmp_path: Path, spark: Any) -> None:
    """It was fetched and has no verdict, because the partition that it refers to was not loaded when the run died."""
    fields = [{"name": "network", "type": "string"}]
    common = {"source": "demo", "start_date": YESTERDAY.isoformat(), "fields": fields}
    refers = {**common, "checks": [{"references": {"field": "network", "to": "demo.networks"}}]}
    queries = {"campaign_daily": refers, "networks": common}
    folder = workspace(tmp_path, customers=1, rows=40, faults=[], query=None, queries=queries)
    assert penstock("run", workspace=folder, PENSTOCK_FAILPOINT="publish.prepared").returncode == -signal.SIGKILL
    ws = load_workspace(folder)
    summary = ws.runs.resume(the_run(ws), listener=Silent(), spark=spark)
    assert (summary.accepted, summary.rejected) == (1, 0)
    [attempt] = ws.context.state.attempts(PartitionKey("demo", customer_id(1), "campaign_daily", YESTERDAY))
    seal = RawReader(ws.context.lake).seal(AttemptKey(attempt.key, attempt.run_id))
    assert seal is not None
    assert attempt.payload_bytes == seal.payload_bytes > 0


def test_a_later_run_closes_the_attempts_of_a_dead_run(tmp_path: Path, spark: Any) -> None:
    folder = workspace(tmp_path)
    assert penstock("run", workspace=folder, PENSTOCK_FAILPOINT="run.extracted").returncode == -signal.SIGKILL
    ws = load_workspace(folder)
    dead = the_run(ws)
    ws.runs.start(Selection(), listener=Silent(), spark=spark)
    runs = {row["run_id"]: row for row in ws.status.current().runs().to_pylist()}
    assert runs[dead]["state"] == "ABANDONED"
    assert runs[dead]["tasks_cancelled"] == 24
    with pytest.raises(ActRefused, match="is over"):
        ws.runs.resume(dead, listener=Silent(), spark=spark)


@pytest.mark.parametrize("gap", ["run.issued", "run.judged"])
def test_a_killed_reprocess_is_reported_until_somebody_resumes_it(gap: str, tmp_path: Path, spark: Any) -> None:
    folder = workspace(tmp_path, faults=[])
    load_workspace(folder).runs.start(Selection(), listener=Silent(), spark=spark)
    again = ("run", "--reprocess", "--source", "demo", "--yes")
    assert penstock(*again, workspace=folder, PENSTOCK_FAILPOINT=gap).returncode == -signal.SIGKILL
    ws = load_workspace(folder)
    dead, left = the_run(ws), 6 if gap == "run.issued" else 0
    summary = ws.runs.start(Selection(), listener=Silent(), spark=spark)
    if not left:  # every partition had its verdict: the next run published it
        assert (summary.loaded, summary.unfinished) == (6, [])
        return
    [words] = summary.unfinished
    assert words.startswith(
        f"run {dead} (reprocess, 6 of 6 partitions not done) was killed: `penstock runs resume {dead}`"
    )
    assert answer("status", workspace=folder)["unfinished"] == [words]
    assert answer("control", "tick", workspace=folder)["unfinished"] == [words]
    assert "nothing is due" in penstock("run", workspace=folder).stdout

    assert ws.runs.resume(dead, listener=Silent(), spark=spark).accepted >= 6
    assert answer("status", workspace=folder)["unfinished"] == []
    with pytest.raises(ActRefused, match="is over"):
        ws.runs.resume(dead, listener=Silent(), spark=spark)


def test_a_killed_reprocess_that_is_cancelled_is_not_reported(tmp_path: Path, spark: Any) -> None:
    folder = workspace(tmp_path, faults=[], models={})
    load_workspace(folder).runs.start(Selection(), listener=Silent(), spark=spark)
    again = ("run", "--reprocess", "--source", "demo", "--yes")
    assert penstock(*again, workspace=folder, PENSTOCK_FAILPOINT="run.issued").returncode == -signal.SIGKILL
    ws = load_workspace(folder)
    dead = the_run(ws)
    assert len(ws.runs.start(Selection(), listener=Silent(), spark=spark).unfinished) == 1
    assert answer("runs", "cancel", dead, workspace=folder)["requested"] is True
    assert answer("status", workspace=folder)["unfinished"] == []


def test_a_cancelled_run_stops_at_once_and_leaves_its_partitions_due(tmp_path: Path) -> None:
    folder = workspace(tmp_path, faults=[{"fault": "slow", "seconds": 60}])
    run = subprocess.Popen(
        [sys.executable, "-m", "penstock", "run", "--workspace", str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    ws = load_workspace(folder)
    deadline = time.monotonic() + 90
    while not ws.context.state.views(ws.context.ranges(Selection()))[0].open_run_id:
        assert time.monotonic() < deadline, "nothing was issued"
        time.sleep(0.2)
    run_id = the_run(ws)
    assert answer("runs", "cancel", run_id, workspace=folder)["requested"] is True
    words, errors = run.communicate(timeout=45)
    assert run.returncode == 1, errors
    assert "the run was cancelled" in words
    [row] = ws.status.current().runs().to_pylist()
    assert (row["state"], row["tasks_cancelled"]) == ("CANCELLED", 24)
    for view in ws.context.state.views(ws.context.ranges(Selection(source="demo"))):
        [attempt] = ws.context.state.attempts(view.key)
        assert (attempt.outcome, attempt.lost_count) == (Outcome.CANCELLED, 0)
    assert answer("runs", "cancel", run_id, workspace=folder)["requested"] is False
    assert [line["command"] for line in ws.context.state.audit()] == ["runs cancel"]


def test_a_run_killed_at_random_points_again_and_again_ends_like_one_that_was_not(
    tmp_path: Path, spark: Any, undisturbed: dict[str, Any]
) -> None:
    """Killed as soon as the ledger has a random number of events more; resumed by a process that is killed, too."""
    folder = workspace(tmp_path)
    chance = random.Random(7)
    command = ["run"]
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock", *command, "--workspace", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        ws = load_workspace(folder)
        before = events(ws)
        more, deadline = chance.randint(1, 12), time.monotonic() + 60
        while events(ws) < before + more and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        process.kill()
        process.wait()
        command = ["runs", "resume", the_run(ws)]
    try:
        ws.runs.resume(the_run(ws), listener=Silent(), spark=spark)
    except ActRefused:
        pass  # the last one came to its end before it was killed
    assert told(ws) == undisturbed


def events(ws: Workspace) -> int:
    found = ws.context.ledger.tail(1)
    return int(found[0]["position"]) if found else 0


def test_a_slice_that_was_to_be_made_again_is_made_again_by_the_resumed_run(tmp_path: Path, spark: Any) -> None:
    """Even though its inputs are unchanged: it was requested explicitly."""
    folder = workspace(tmp_path)
    load_workspace(folder).runs.start(Selection(), listener=Silent(), spark=spark)
    wanted = ("--query", "spend", "--reprocess")
    assert penstock("run", *wanted, workspace=folder, PENSTOCK_FAILPOINT="run.started").returncode == -signal.SIGKILL
    ws = load_workspace(folder)
    summary = ws.runs.resume(the_run(ws), listener=Silent(), spark=spark)
    assert (summary.accepted, summary.unchanged) == (2, 0)


@pytest.mark.parametrize("gap", ["run.started", "derive.recorded"])
def test_what_was_planned_under_other_code_is_made_by_todays(gap: str, tmp_path: Path, spark: Any) -> None:
    folder = workspace(tmp_path)
    assert penstock("run", workspace=folder, PENSTOCK_FAILPOINT=gap).returncode == -signal.SIGKILL
    (folder / "spend.sql").write_text("SELECT logical_date, 7L AS cost FROM demo.campaign_daily GROUP BY ALL")
    ws = load_workspace(folder)
    ws.runs.resume(the_run(ws), listener=Silent(), spark=spark)
    ws.runs.start(Selection(), listener=Silent(), spark=spark)
    found = rows_by_partition(ws, "models.spend")
    assert [[row["cost"] for row in rows] for rows in found.values()] == [[7], [7]]


def test_a_run_whose_model_is_gone_is_resumed_without_it(tmp_path: Path, spark: Any) -> None:
    folder = workspace(tmp_path)
    assert penstock("run", workspace=folder, PENSTOCK_FAILPOINT="derive.recorded").returncode == -signal.SIGKILL
    start = (YESTERDAY - timedelta(days=1)).isoformat()
    write_workspace(tmp_path, customers=3, query={"start_date": start})
    ws = load_workspace(folder)
    ws.runs.resume(the_run(ws), listener=Silent(), spark=spark)
    assert len(rows_by_partition(ws)) == 5
    for day in (YESTERDAY, YESTERDAY - timedelta(days=1)):
        [attempt] = ws.context.state.attempts(PartitionKey("models", "all", "spend", day))
        assert (attempt.outcome, attempt.lost_count) == (Outcome.CANCELLED, 0)
    assert [row["state"] for row in ws.status.current().runs().to_pylist()] == ["FAILED"]
