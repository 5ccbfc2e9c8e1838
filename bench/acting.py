"""Partitions per second that are issued, judged and requeued, compared with plain inserts into one table."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

from bench.databases import Place, settle
from bench.facts import Fact
from bench.measure import Stopwatch
from bench.simulated_worker import SimulatedWorker, batches
from bench.workload import Workload
from penstock.app import Workspace
from penstock.control.select import Selection
from penstock.db.engine import Database
from penstock.partition import AttemptKey
from penstock.state.audited import AuditedAct
from penstock.state.control import AuditEntry
from penstock.state.records import Verdict

_PLAIN = "plain insert"
_RETRYING = ("decide about retries", "find what failed", "requeue")

_CREATE = """
CREATE TABLE plain (source TEXT, customer_id TEXT, query_name TEXT, logical_date TEXT, status TEXT,
    PRIMARY KEY (source, customer_id, query_name, logical_date))
"""
_INSERT = {
    "sqlite": "INSERT INTO plain VALUES (?, ?, ?, ?, ?)",
    "postgresql": "INSERT INTO plain VALUES (%s, %s, %s, %s, %s)",
}


def measure_acts(place: Place, workload: Workload, batch: int) -> Iterator[Fact]:
    """Accept all partitions on one database; on another, reject and requeue all."""
    with place.workspace(workload) as workspace:
        load, watch, worker = _load(), Stopwatch(), SimulatedWorker(workspace)
        _carry(workspace, worker, worker.accepted, "accept", batch, watch)
        yield from _facts(place, workload, watch, load, (_PLAIN, "issue", "accept"))
    with place.workspace(workload) as workspace:
        load, watch, worker = _load(), Stopwatch(), SimulatedWorker(workspace)
        _carry(workspace, worker, worker.rejected, "reject", batch, watch)
        settle(workspace.context.database)
        _requeue(workspace, workload.partitions, watch)
        yield from _facts(place, workload, watch, load, ("reject", *_RETRYING))


def _facts(place: Place, workload: Workload, watch: Stopwatch, load: float, names: Sequence[str]) -> Iterator[Fact]:
    plain = watch.seconds[_PLAIN]
    for name in names:
        yield Fact(place.backend, name, workload.partitions, watch.seconds[name], load, plain_seconds=plain)


def _carry(
    workspace: Workspace,
    worker: SimulatedWorker,
    verdict: Callable[[AttemptKey], Verdict],
    act: str,
    batch: int,
    watch: Stopwatch,
) -> None:
    """Alternate the batches of both sides, yardstick first, so that other load affects both."""
    planned = workspace.plans.preview(Selection()).items
    workspace.context.database.transact(lambda connection: connection.exec_driver_sql(_CREATE))
    for items in batches(planned, batch):
        rows = [(*item.key[:3], item.key.logical_date.isoformat(), "pending") for item in items]
        watch.begin(_PLAIN)
        _insert(workspace.context.database, rows)
        watch.begin("issue")
        attempts = worker.issue(items)
        watch.end()
        verdicts = [verdict(attempt) for attempt in attempts]
        watch.begin(act)
        worker.judge(verdicts)
        watch.end()


def _insert(database: Database, rows: Sequence[tuple[str, ...]]) -> None:
    database.transact(lambda connection: connection.exec_driver_sql(_INSERT[database.dialect], list(rows)))


def _requeue(workspace: Workspace, partitions: int, watch: Stopwatch) -> None:
    """The end of a run, followed by `penstock state retry`."""
    decide, find, requeue = _RETRYING
    watch.begin(decide)
    workspace.runners.schedule_retries()
    watch.begin(find)
    found = workspace.operations.preview_retry(Selection(), without_raw=False)
    watch.begin(requeue)
    entry = AuditEntry("bench", AuditedAct.STATE_RETRY, {}, {})
    moved = workspace.operations.retry(Selection(), actor=entry.actor)
    watch.end()
    if moved != partitions or any(found.refusals.values()):
        raise SystemExit(f"of {partitions} failed partitions {moved} were requeued")


def _load() -> float:
    return round(os.getloadavg()[0], 2)
