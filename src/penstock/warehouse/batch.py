"""Publications in the database: a batch is prepared before the first table commit and finished after the last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.db import schema
from penstock.db.bulk import insert, key_values, same_key, timed
from penstock.db.lease import worker_lives
from penstock.db.locks import lock_rows
from penstock.db.schema import KEY
from penstock.errors import LeaseLost
from penstock.ledger.append import append
from penstock.ledger.events import Event, PartitionHidden, PartitionPublished
from penstock.partition import PartitionKey, RunId
from penstock.warehouse.due import Hide, Load
from penstock.warehouse.format import StagedFile

_ITEM_COLUMNS = (
    "batch_id", *KEY, "act", "run_id", "schema_version", "table_name", "record_count", "authority_version",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TableChange:
    """The files that a batch adds to and removes from one table."""

    add: tuple[StagedFile, ...]
    remove: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        return {"add": [asdict(staged) for staged in self.add], "remove": list(self.remove)}

    @classmethod
    def from_dict(cls, body: Mapping[str, Any]) -> Self:
        return cls(tuple(StagedFile(**staged) for staged in body["add"]), tuple(body["remove"]))


@dataclass(frozen=True, slots=True)
class Batch:
    """One publication: the changes of all its tables, which take effect together."""

    batch_id: str
    changes: Mapping[str, TableChange]

    @property
    def tables(self) -> list[str]:
        return sorted(self.changes)


def prepare(
    connection: Connection,
    batch: Batch,
    token: str,
    run_id: RunId | None,
    loads: Sequence[Load],
    hides: Sequence[Hide],
    now: datetime,
) -> None:
    """Record the batch, so that another process can finish or discard it after a crash."""
    body = {name: change.as_dict() for name, change in batch.changes.items()}
    connection.execute(
        sa.insert(schema.load_batch),
        {
            "batch_id": batch.batch_id,
            "status": "prepared",
            "lease_token": token,
            "run_id": run_id,
            "prepared_at": now,
            "body": body,
        },
    )
    rows = [
        (batch.batch_id, *key_values(load.key), "load", load.slice.run_id, load.schema_version, load.table,
         load.slice.record_count, load.authority_version)
        for load in loads
    ]  # fmt: skip
    rows += [
        (batch.batch_id, *key_values(hide.key), "hide", None, None, None, None, hide.authority_version)
        for hide in hides
    ]
    insert(connection, schema.load_batch_item, _ITEM_COLUMNS, rows)


def prepared_batches(connection: Connection, tables: Sequence[str]) -> list[Batch]:
    """The prepared, unfinished batches that change any of `tables`, oldest first."""
    table = schema.load_batch
    rows = connection.execute(sa.select(table).where(table.c.status == "prepared").order_by(table.c.batch_id)).all()
    batches = [
        Batch(row.batch_id, {name: TableChange.from_dict(change) for name, change in row.body.items()}) for row in rows
    ]
    return [batch for batch in batches if set(batch.tables) & set(tables)]


def abandoned_tables(connection: Connection) -> set[str]:
    """The tables of prepared batches whose worker is dead."""
    table = schema.load_batch
    lives = worker_lives(connection.dialect.name, "t.lease_worker")
    alone = f"NOT EXISTS (SELECT 1 FROM warehouse_table t WHERE t.lease_token = load_batch.lease_token AND {lives})"
    bodies = connection.scalars(sa.select(table.c.body).where(table.c.status == "prepared", sa.text(alone)))
    return {name for body in bodies for name in body}


def adopt(connection: Connection, batch: Batch, token: str) -> None:
    """Take over a prepared batch under this lease token. The process that prepared it can no longer finish it."""
    table = schema.load_batch
    connection.execute(
        sa.update(table)
        .where(table.c.batch_id == batch.batch_id, table.c.status == "prepared")
        .values(lease_token=token)
    )


def discard(connection: Connection, batch: Batch, token: str, now: datetime) -> None:
    """Mark a prepared batch as discarded. Raises LeaseLost if another process finished or adopted it."""
    _finish(connection, batch, token, "discarded", now)


def record_published(
    connection: Connection, batch: Batch, token: str, versions: Mapping[str, int], now: datetime
) -> tuple[int, int]:
    """Write pointers, load records, heads, due work, events and the batch itself in the caller's transaction. Returns
    the numbers of loaded and hidden partitions. Raises LeaseLost if another process finished or adopted the batch."""
    parameters = {"batch_id": batch.batch_id, "now": now}
    lock_rows(connection, _ITS_STATES, "s", share=True, parameters={"batch_id": batch.batch_id})
    connection.execute(timed(_RECORD_LOADS), parameters)
    for name, version in versions.items():
        connection.execute(
            sa.update(schema.warehouse_table)
            .where(schema.warehouse_table.c.table_name == name)
            .values(version=version, publication=batch.batch_id)
        )
    connection.execute(sa.text(_POINT), parameters)
    connection.execute(timed(_HIDE), parameters)
    connection.execute(sa.text(_DELETE_DUE), parameters)
    connection.execute(timed(_STILL_DUE), parameters)
    events = _events(connection, batch)
    append(connection, events, "loader", now)
    _finish(connection, batch, token, "published", now)
    published = sum(isinstance(event, PartitionPublished) for event in events)
    return published, len(events) - published


_ITS_STATES = f"partition_state s JOIN load_batch_item i ON {same_key('s', 'i')} WHERE i.batch_id = :batch_id"

# A load record is written at the first load of a run. Loading the run again does not change it, not even `loaded_at`.
_RECORD_LOADS = """
INSERT INTO load_record (source, customer_id, query_name, logical_date, run_id, schema_version, record_count, loaded_at,
    table_name)
SELECT source, customer_id, query_name, logical_date, run_id, schema_version, record_count, :now, table_name
FROM load_batch_item WHERE batch_id = :batch_id AND act = 'load'
ON CONFLICT DO NOTHING
"""

# A run that a newer run replaced during its publication stays readable until the newer run is published. It was
# replaced and not withdrawn if only acceptances changed the authority since.
_ONLY_REPLACED = f"""s.status = 'success' AND EXISTS (
    SELECT 1 FROM warehouse_pointer p JOIN partition_attempt a ON {same_key("a", "p")} AND a.run_id = i.run_id
    WHERE {same_key("p", "i")} AND p.available AND s.authority_version - i.authority_version = (
        SELECT count(*) FROM partition_attempt n
        WHERE {same_key("n", "i")} AND n.outcome = 'SUCCEEDED' AND n.attempt_no > a.attempt_no))"""

# A pointer follows authority: a run that was withdrawn during its publication is in the table, but not available.
_POINT = f"""
INSERT INTO warehouse_pointer (source, customer_id, query_name, logical_date, run_id, schema_version, table_name,
    table_version, available, record_count, loaded_at, hidden_at)
SELECT i.source, i.customer_id, i.query_name, i.logical_date, i.run_id, i.schema_version, i.table_name, t.version,
    (s.status = 'success' AND s.current_run_id = i.run_id AND s.schema_version = i.schema_version)
        OR ({_ONLY_REPLACED}),
    i.record_count, r.loaded_at, NULL
FROM load_batch_item i
JOIN partition_state s ON {same_key("s", "i")}
JOIN warehouse_table t ON t.table_name = i.table_name
JOIN load_record r ON {same_key("r", "i")} AND r.run_id = i.run_id
WHERE i.batch_id = :batch_id AND i.act = 'load'
ORDER BY i.source, i.customer_id, i.query_name, i.logical_date
ON CONFLICT (source, customer_id, query_name, logical_date) DO UPDATE SET
    run_id = excluded.run_id, schema_version = excluded.schema_version, table_name = excluded.table_name,
    table_version = excluded.table_version, available = excluded.available, record_count = excluded.record_count,
    loaded_at = excluded.loaded_at, hidden_at = excluded.hidden_at
"""

_HIDE = f"""
UPDATE warehouse_pointer AS p SET available = false, hidden_at = :now FROM load_batch_item i
WHERE {same_key("p", "i")} AND i.batch_id = :batch_id AND i.act = 'hide'
"""

_DELETE_DUE = f"""
DELETE FROM publish_due AS d WHERE EXISTS (
    SELECT 1 FROM load_batch_item i WHERE i.batch_id = :batch_id AND {same_key("i", "d")}
    AND d.authority_version <= i.authority_version)
"""

# A partition whose authority changed during the publication is due again, because its row may have been deleted.
_STILL_DUE = f"""
INSERT INTO publish_due (source, customer_id, query_name, logical_date, authority_version, since)
SELECT s.source, s.customer_id, s.query_name, s.logical_date, s.authority_version, :now
FROM load_batch_item i JOIN partition_state s ON {same_key("s", "i")}
WHERE i.batch_id = :batch_id AND s.authority_version > i.authority_version
ON CONFLICT (source, customer_id, query_name, logical_date) DO NOTHING
"""

_ITEMS = """
SELECT i.source, i.customer_id, i.query_name, i.logical_date, i.act, i.run_id, i.table_name, i.record_count, t.version
FROM load_batch_item i LEFT JOIN warehouse_table t ON t.table_name = i.table_name
WHERE i.batch_id = :batch_id
"""


def _events(connection: Connection, batch: Batch) -> list[Event]:
    rows = connection.execute(sa.text(_ITEMS).columns(logical_date=sa.Date()), {"batch_id": batch.batch_id})
    events: list[Event] = []
    for source, customer_id, query_name, day, act, run_id, table, count, version in rows:
        key = PartitionKey(source, customer_id, query_name, day)
        if act == "hide":
            events.append(PartitionHidden(key, batch.batch_id))
        else:
            events.append(PartitionPublished(RunId(run_id), key, batch.batch_id, table, version, count))
    return events


def _finish(connection: Connection, batch: Batch, token: str, status: str, now: datetime) -> None:
    table = schema.load_batch
    ours = sa.and_(table.c.batch_id == batch.batch_id, table.c.status == "prepared", table.c.lease_token == token)
    finished = connection.execute(sa.update(table).where(ours).values(status=status, finished_at=now, body={}))
    if finished.rowcount != 1:
        raise LeaseLost(f"publication {batch.batch_id} was finished by another process while we paused: run again")
    items = schema.load_batch_item
    connection.execute(sa.delete(items).where(items.c.batch_id == batch.batch_id))
