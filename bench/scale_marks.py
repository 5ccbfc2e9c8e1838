"""Time of an operator's acts on many partitions: `state pause` and `state resume` of pending partitions, and
`state retry` of failed ones."""

from __future__ import annotations

import sqlalchemy as sa

from bench.scale_case import Case
from bench.simulated_worker import SimulatedWorker, batches
from bench.workload import SOURCE, Workload
from penstock.app import Workspace
from penstock.control.select import Selection
from penstock.db import schema
from penstock.state.audited import AuditedAct
from penstock.state.control import AuditEntry

_BATCH = 10_000
_ALL = Selection(source=SOURCE)


def pending(_workspace: Workspace, _workload: Workload) -> None:
    """A workspace without attempts: nothing is inserted."""


def failed(workspace: Workspace, _workload: Workload) -> None:
    """Every partition was refused by its source once."""
    worker = SimulatedWorker(workspace)
    for items in batches(workspace.plans.preview(_ALL).items, _BATCH):
        worker.judge([worker.rejected(attempt) for attempt in worker.issue(items)])


def _entry(act: AuditedAct) -> AuditEntry:
    return AuditEntry("bench", act, _ALL.as_dict(), {})


def _expected(workspace: Workspace) -> int:
    return sum(len(span) for span in workspace.context.ranges(_ALL))


def _pause(workspace: Workspace) -> None:
    paused = workspace.operations.pause(_ALL, reason="bench", actor="bench")
    with workspace.context.database.snapshot() as connection:
        rows = connection.scalar(sa.select(sa.func.count()).select_from(schema.pause_selector))
    if (paused, rows) != (_expected(workspace), 1):
        raise SystemExit(f"{paused} of {_expected(workspace)} partitions were paused with {rows} rows")


def _resume(workspace: Workspace) -> None:
    resumed = workspace.operations.resume(_ALL, actor="bench")
    if resumed != _expected(workspace):
        raise SystemExit(f"{resumed} of {_expected(workspace)} partitions were resumed")


def _retry(workspace: Workspace) -> None:
    moved = workspace.operations.retry(_ALL, actor="bench")
    if moved != _expected(workspace):
        raise SystemExit(f"{moved} of {_expected(workspace)} failed partitions were requeued")


MARKS: tuple[Case, ...] = (
    Case("state pause", pending, _pause),
    Case("state resume", pending, _resume),
    Case("state retry", failed, _retry),
)
