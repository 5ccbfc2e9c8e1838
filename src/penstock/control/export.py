"""Exports old events from the database to the lake: only events that no open run needs and the projections hold."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa

from penstock.db import schema
from penstock.db.engine import Database
from penstock.lake import Lake
from penstock.ledger.read import LedgerReader
from penstock.ledger.segments import export
from penstock.projections.fact import Cursor
from penstock.state.control import AuditEntry

_SEGMENT = 500_000  # events in one file


def export_before(
    database: Database,
    lake: Lake,
    ledger: LedgerReader,
    before: datetime,
    folded: Cursor,
    entry: AuditEntry,
    now: datetime,
    *,
    rehearsal: bool,
) -> dict[str, Any]:
    """Export the events that happened before a moment, that the projections hold, and that precede the first event of
    any open run. The newest event stays: SQLite reuses the positions of an empty table. With `rehearsal` the events are
    only counted."""
    event, run = schema.event, schema.run
    with database.snapshot() as connection:
        open_runs = sa.select(run.c.run_id).where(run.c.finished_at.is_(None))
        needed = connection.scalar(sa.select(sa.func.min(event.c.position)).where(event.c.run_id.in_(open_runs)))
        young = connection.scalar(sa.select(sa.func.min(event.c.position)).where(event.c.occurred_at >= before))
        oldest = connection.scalar(sa.select(sa.func.min(event.c.position)))
        newest = connection.scalar(sa.select(sa.func.max(event.c.position)))
        unfolded = connection.scalar(sa.select(sa.func.min(event.c.position)).where(ledger.beyond(folded)))
    if oldest is None:
        return {"events": 0, "segments": []}
    until = min(position for position in (needed, young, unfolded, newest) if position is not None) - 1
    segments, events = [], 0
    while facts := ledger.between(oldest, until, _SEGMENT):
        events += len(facts)
        if not rehearsal:
            line = sa.insert(schema.audit).values(
                at=now,
                actor=entry.actor,
                command=entry.command,
                filters=dict(entry.filters),
                flags=dict(entry.flags),
                affected=len(facts),
                outcome="done",
            )
            segments.append(export(database, lake, facts, now, line))
        oldest = facts[-1].position + 1
    return {"events": events, "segments": segments}
