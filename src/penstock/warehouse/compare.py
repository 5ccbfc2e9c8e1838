"""Compares authority with all pointers in one statement: partitions to load, to replace or to hide."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.db.bulk import same_key, timed
from penstock.db.engine import Database
from penstock.partition import PartitionKey, RunId

_ACT = """
CASE
    WHEN s.status = 'success' AND p.run_id IS NULL THEN 'load'
    WHEN s.status = 'success' AND p.hidden_at IS NOT NULL THEN 'load'
    WHEN s.status = 'success' AND (p.run_id <> s.current_run_id OR p.schema_version <> s.schema_version
        OR NOT p.available) THEN 'replace'
    WHEN s.status <> 'success' AND p.run_id IS NOT NULL AND p.hidden_at IS NULL THEN 'hide'
END"""
_COMPARED = f"""
SELECT s.source, s.customer_id, s.query_name, s.logical_date, s.current_run_id, s.schema_version, s.authority_version,
    p.run_id AS served_run_id, p.schema_version AS served_schema_version, {_ACT} AS act
FROM partition_state s LEFT JOIN warehouse_pointer p ON {same_key("p", "s")}
"""
_QUEUE = f"""
INSERT INTO publish_due (source, customer_id, query_name, logical_date, authority_version, since)
SELECT c.source, c.customer_id, c.query_name, c.logical_date, c.authority_version, :now
FROM ({_COMPARED}) c WHERE c.act IS NOT NULL
ON CONFLICT (source, customer_id, query_name, logical_date) DO NOTHING
"""


@dataclass(frozen=True, slots=True)
class Difference:
    """A partition whose pointer differs from its authority."""

    key: PartitionKey
    act: str
    run_id: RunId | None
    schema_version: str | None
    served_run_id: RunId | None
    served_schema_version: str | None


def differences(database: Database, limit: int | None) -> tuple[list[Difference], dict[str, int]]:
    """The differences between authority and pointers in key order, and the number of each kind."""
    order = "source, customer_id, query_name, logical_date"
    page = f"SELECT * FROM ({_COMPARED}) c WHERE act IS NOT NULL ORDER BY {order}"
    page += "" if limit is None else f" LIMIT {int(limit)}"
    counts = f"SELECT act, count(*) AS n FROM ({_COMPARED}) c WHERE act IS NOT NULL GROUP BY act ORDER BY act"
    with database.snapshot() as connection:
        rows = connection.execute(sa.text(page).columns(logical_date=sa.Date())).all()
        found = {str(row.act): int(row.n) for row in connection.execute(sa.text(counts))}
    return [_difference(row) for row in rows], found


def queue_differences(database: Database, now: datetime) -> int:
    """Insert every difference into the due work. Returns the number of differences that were not in it."""

    def work(connection: Connection) -> int:
        return connection.execute(timed(_QUEUE), {"now": now}).rowcount

    return database.transact(work)


def _difference(row: Any) -> Difference:
    return Difference(
        PartitionKey(row.source, row.customer_id, row.query_name, row.logical_date),
        row.act,
        row.current_run_id if row.act != "hide" else None,
        row.schema_version if row.act != "hide" else None,
        row.served_run_id,
        row.served_schema_version,
    )
