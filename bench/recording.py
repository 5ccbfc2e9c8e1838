"""Appends events and folds them into projections, on both databases, compared with plain inserts of the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from time import perf_counter

import sqlalchemy as sa

from bench.databases import Place
from bench.workload import FIRST_DAY, QUERY, SOURCE, Workload
from penstock.app import Workspace
from penstock.ledger.append import append
from penstock.ledger.events import AuthorityChanged, Event, PartitionPublished, PlanCreated, RunFinished, TaskFinished
from penstock.partition import PartitionKey, RunId, new_run_id
from penstock.partition_set import compact_ranges

_BATCH = 10_000
_NOW = datetime(2024, 7, 1, tzinfo=UTC)


def measure_recording(place: Place, events: int) -> Iterator[dict[str, object]]:
    """A third each of verdicts, changes of authority and publications, all of one run."""
    partitions = events // 3
    with place.workspace(Workload(partitions, rows=1)) as workspace:
        run_id = new_run_id()
        run_events = make_events(run_id, partitions)
        appended = _append(workspace, run_events)
        plain = _plain(workspace, run_events)
        started = perf_counter()
        folded = workspace.status.projector.advance()
        seconds = perf_counter() - started
        [run] = workspace.status.current().runs().to_pylist()
        if run["tasks_succeeded"] != 2 * partitions or folded != len(run_events):  # there are no events of extraction
            raise SystemExit(f"{partitions} partitions have events, but the run counts {run}")
        yield {
            "what": "append and fold",
            "backend": place.backend,
            "events": len(run_events),
            "append_seconds": round(appended, 2),
            "plain_insert_seconds": round(plain, 2),
            "append_ratio": round(appended / plain, 2),
            "fold_seconds": round(seconds, 2),
            "appended_per_second": round(len(run_events) / appended),
            "folded_per_second": round(len(run_events) / seconds),
        }


def make_events(run_id: RunId, partitions: int) -> list[Event]:
    days = 100
    keys = [
        PartitionKey(SOURCE, str(1_000_000_001 + n // days), QUERY, FIRST_DAY + timedelta(days=n % days))
        for n in range(partitions)
    ]
    chains = [{"stages": ["validate", "load"], "slices": compact_ranges(keys)}]
    plan: list[Event] = [PlanCreated(run_id, 0, chains, reasons={"missing": partitions})]
    for key in keys:
        plan.append(TaskFinished(run_id, key, 1, "validate", "SUCCEEDED", None, "c0ffee", 10))
        plan.append(AuthorityChanged(run_id, key, 1, "accept", "c0ffee", "d16e57"))
        plan.append(PartitionPublished(run_id, key, "b1", "demo.campaign_daily.v1", 1, 10))
    return [*plan, RunFinished(run_id, "done")]


def _append(workspace: Workspace, run_events: list[Event]) -> float:
    started = perf_counter()
    for at in range(0, len(run_events), _BATCH):
        batch = run_events[at : at + _BATCH]
        workspace.context.database.transact(lambda connection, batch=batch: append(connection, batch, "bench", _NOW))  # type: ignore[misc]
    return perf_counter() - started


def _plain(workspace: Workspace, run_events: list[Event]) -> float:
    """The same rows by executemany into a table without any constraint."""
    table = sa.Table(
        "plain_event", sa.MetaData(), *(sa.Column(n, sa.Text) for n in ("type", "key", "run_id", "payload"))
    )
    rows = [
        {"type": e.type, "key": e.idempotency_key, "run_id": e.run_id, "payload": str(e.payload())} for e in run_events
    ]
    workspace.context.database.transact(lambda connection: table.create(connection))
    started = perf_counter()
    for at in range(0, len(rows), _BATCH):
        batch = rows[at : at + _BATCH]
        workspace.context.database.transact(lambda connection, batch=batch: connection.execute(sa.insert(table), batch))  # type: ignore[misc]
    return perf_counter() - started
