"""Bulk append to the ledger, inside the caller's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.db.bulk import Columns, staged
from penstock.db.types import Json, UtcTimestamp
from penstock.ledger.events import Event
from penstock.partition import new_ulids

_COLUMNS: Columns = {
    "event_id": sa.Text(),
    "type": sa.Text(),
    "version": sa.Integer(),
    "idempotency_key": sa.Text(),
    "occurred_at": UtcTimestamp(),
    "source": sa.Text(),
    "run_id": sa.Text(),
    "payload": Json(),
}

# Without an owner the insert fails on its NOT NULL columns: no state may change without its event.
_INSERT = """
INSERT INTO event (event_id, type, version, idempotency_key, occurred_at, tenant_id, workspace_id, source, run_id,
    payload)
SELECT e.event_id, e.type, e.version, e.idempotency_key, e.occurred_at, (SELECT tenant_id FROM workspace),
    (SELECT workspace_id FROM workspace), e.source, e.run_id, e.payload
FROM incoming_event e
WHERE true
ORDER BY e.event_id
ON CONFLICT (idempotency_key) DO NOTHING
"""


def append(connection: Connection, events: Sequence[Event], source: str, now: datetime) -> int:
    """Append events of `source` and return how many are new. Events whose idempotency key exists are skipped."""
    if not events:
        return 0
    rows = (
        (ulid, e.type, e.version, e.idempotency_key, now, source, e.run_id, e.payload())
        for ulid, e in zip(new_ulids(len(events)), events, strict=True)
    )
    with staged(connection, "incoming_event", _COLUMNS, rows):
        return connection.execute(sa.text(_INSERT)).rowcount
