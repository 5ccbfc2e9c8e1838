"""Garbage collection of raw runs: finds runs that nothing refers to, and marks them before their files are deleted."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.clock import Clock
from penstock.db.bulk import KEY_COLUMNS, same_key, staged
from penstock.db.engine import Database
from penstock.db.locks import lock_partitions
from penstock.db.types import UtcTimestamp
from penstock.partition import AttemptKey, PartitionKey, RunId
from penstock.state.control import AuditEntry, record_audit

# Closed long ago, and neither trusted nor served nor waiting to be published.
_UNREFERENCED = f"""
a.outcome IS NOT NULL AND a.finished_at < :before AND a.raw_deleted_at IS NULL
AND NOT EXISTS (SELECT 1 FROM partition_state s WHERE {same_key("s", "a")} AND s.current_run_id = a.run_id)
AND NOT EXISTS (SELECT 1 FROM warehouse_pointer p WHERE {same_key("p", "a")} AND p.run_id = a.run_id)
AND NOT EXISTS (SELECT 1 FROM load_batch_item i WHERE {same_key("i", "a")} AND i.run_id = a.run_id)
AND NOT EXISTS (SELECT 1 FROM attempt_input n WHERE n.input_source = a.source AND n.input_customer_id = a.customer_id
    AND n.input_query_name = a.query_name AND n.input_logical_date = a.logical_date AND n.input_run_id = a.run_id
    AND EXISTS (SELECT 1 FROM partition_state d WHERE {same_key("d", "n")} AND d.current_run_id = n.run_id))
"""
_ORDER = "a.source, a.customer_id, a.query_name, a.logical_date, a.attempt_no"
_ATTEMPT = "SELECT a.source, a.customer_id, a.query_name, a.logical_date, a.run_id FROM partition_attempt a"
_FIND = f"{_ATTEMPT} WHERE {_UNREFERENCED}"
_MARK = f"""
UPDATE partition_attempt AS a SET raw_deleted_at = :now FROM incoming_raw r
WHERE {same_key("a", "r")} AND a.run_id = r.run_id AND {_UNREFERENCED}
"""
_MARKED = f"{_ATTEMPT} WHERE a.raw_deleted_at >= :since ORDER BY {_ORDER}"


class GarbageStore:
    """Marks raw runs as deleted, in a transaction that verifies that nothing refers to them. No act returns to a marked
    run; its files are deleted after the commit."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def find(self, before: datetime, limit: int | None = None) -> list[AttemptKey]:
        """Return raw runs that were closed before a moment and that nothing refers to."""
        tail = "" if limit is None else f" LIMIT {int(limit)}"
        with self._database.snapshot() as connection:
            rows = connection.execute(_timed(f"{_FIND} ORDER BY {_ORDER}{tail}", "before"), {"before": before}).all()
        return [_attempt(row) for row in rows]

    def mark(self, found: list[AttemptKey], before: datetime, entry: AuditEntry) -> int:
        """Mark those that still nothing refers to, and return how many."""
        now = self._clock()
        rows = [(*attempt.partition, attempt.run_id) for attempt in found]

        def work(connection: Connection) -> int:
            with staged(connection, "incoming_raw", {**KEY_COLUMNS, "run_id": sa.Text()}, rows):
                # A concurrent change of authority waits for this transaction, or this transaction for it.
                lock_partitions(connection, "partition_state", "incoming_raw")
                marked = connection.execute(_timed(_MARK, "before", "now"), {"before": before, "now": now}).rowcount
            record_audit(connection, entry, marked, "done", now)
            return marked

        return self._database.transact(work)

    def marked_since(self, since: datetime) -> list[AttemptKey]:
        """Return raw runs marked since a moment. Their files must be deleted, even if the marking process died."""
        with self._database.snapshot() as connection:
            return [_attempt(row) for row in connection.execute(_timed(_MARKED, "since"), {"since": since})]


def _timed(statement: str, *names: str) -> Any:
    moments = [sa.bindparam(name, type_=UtcTimestamp()) for name in names]
    return sa.text(statement).bindparams(*moments).columns(logical_date=sa.Date())


def _attempt(row: Any) -> AttemptKey:
    return AttemptKey(PartitionKey(row.source, row.customer_id, row.query_name, row.logical_date), RunId(row.run_id))
