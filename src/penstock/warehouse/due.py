"""Due work: the partitions whose verdicts changed and whose pointers have to follow."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.db.bulk import KEY_COLUMNS, key_values, same_key, staged
from penstock.db.types import UtcTimestamp
from penstock.partition import PartitionKey, RunId
from penstock.warehouse.packing import NewSlice

_ITEMS = f"""
SELECT d.source, d.customer_id, d.query_name, d.logical_date, s.status, s.current_run_id, s.schema_version,
    s.record_count, s.authority_version, a.payload_digest, a.payload_bytes, a.contract_fingerprint,
    p.run_id AS served_run_id, p.schema_version AS served_schema_version, p.table_name AS served_table,
    p.available, p.hidden_at
FROM {{queue}} d
JOIN partition_state s ON {same_key("s", "d")}
LEFT JOIN partition_attempt a ON {same_key("a", "d")} AND a.run_id = s.current_run_id
LEFT JOIN warehouse_pointer p ON {same_key("p", "d")}
"""
_ORDER = "ORDER BY d.source, d.query_name, d.logical_date, d.customer_id"
_DUE = f"""{_ITEMS.format(queue="publish_due")}
WHERE d.source || '.' || d.query_name NOT IN :without
{_ORDER} LIMIT :limit
"""
_TYPES: dict[str, sa.types.TypeEngine[Any]] = {
    "logical_date": sa.Date(),
    "available": sa.Boolean(),
    "hidden_at": UtcTimestamp(),
}


@dataclass(frozen=True, slots=True)
class Load:
    """An authoritative run that readers do not see yet. `instead_of` is the table with the rows that it replaces."""

    slice: NewSlice
    schema_version: str
    contract_fingerprint: str
    authority_version: int
    instead_of: str | None

    @property
    def key(self) -> PartitionKey:
        return self.slice.key

    @property
    def table(self) -> str:
        return f"{self.key.asset}.{self.schema_version}"


@dataclass(frozen=True, slots=True)
class Hide:
    """A partition without authority whose rows are still in `table`."""

    key: PartitionKey
    table: str
    authority_version: int


@dataclass(frozen=True, slots=True)
class Settled:
    """A partition whose pointer already agrees with its authority."""

    key: PartitionKey
    authority_version: int


Due = Load | Hide | Settled


def read_due(connection: Connection, limit: int, without: Collection[str] = ()) -> list[Due]:
    """The due work in table order, up to `limit`, except for the assets `without`."""
    statement = sa.text(_DUE).bindparams(sa.bindparam("without", type_=sa.Text(), expanding=True)).columns(**_TYPES)
    rows = connection.execute(statement, {"limit": limit, "without": sorted(without)})
    return [_due(False, *row) for row in rows]


def load_again(connection: Connection, keys: Iterable[PartitionKey]) -> list[Load | Hide]:
    """The items that load the authoritative rows of these partitions again, independent of their pointers."""
    with staged(connection, "incoming_again", KEY_COLUMNS, [key_values(key) for key in keys]):
        statement = sa.text(f"{_ITEMS.format(queue='incoming_again')} {_ORDER}").columns(**_TYPES)
        found = [_due(True, *row) for row in connection.execute(statement)]
    return [item for item in found if not isinstance(item, Settled)]


# CROSS JOIN makes SQLite begin with the due work. For a plain JOIN it reads all of `partition_state`, in the order that
# DISTINCT prefers.
_TABLES = f"""
SELECT DISTINCT s.source, s.query_name, CASE WHEN s.status = 'success' THEN s.schema_version END AS schema_version,
    CASE WHEN p.hidden_at IS NULL THEN p.table_name END AS served_table
FROM publish_due d
CROSS JOIN partition_state s
LEFT JOIN warehouse_pointer p ON {same_key("p", "d")}
WHERE {same_key("s", "d")}
"""


@dataclass(frozen=True, slots=True)
class DueTables:
    """The tables that gain rows (with source, query and schema version) or lose rows."""

    gaining: dict[str, tuple[str, str, str]]
    losing: set[str]

    @property
    def names(self) -> set[str]:
        return {*self.gaining, *self.losing}

    def with_losing(self, tables: set[str]) -> DueTables:
        return DueTables(self.gaining, self.losing | tables)

    def without(self, tables: Collection[str]) -> DueTables:
        """Without the assets of these tables, in all schema versions."""
        assets = {name.rpartition(".")[0] for name in tables}
        return DueTables(
            {name: facts for name, facts in self.gaining.items() if name.rpartition(".")[0] not in assets},
            {name for name in self.losing if name.rpartition(".")[0] not in assets},
        )


def due_tables(connection: Connection) -> DueTables:
    """The tables of the due work, without reading its items."""
    rows = connection.execute(sa.text(_TABLES)).all()
    gaining = {
        f"{row.source}.{row.query_name}.{row.schema_version}": (row.source, row.query_name, row.schema_version)
        for row in rows
        if row.schema_version is not None
    }
    return DueTables(gaining, {row.served_table for row in rows if row.served_table is not None})


def tables_of(due: Iterable[Due]) -> set[str]:
    """Every table that gains or loses rows."""
    tables: set[str] = set()
    for item in due:
        if isinstance(item, Load):
            tables |= {item.table, *([item.instead_of] if item.instead_of else [])}
        elif isinstance(item, Hide):
            tables.add(item.table)
    return tables


def _due(
    again: bool,
    source: str,
    customer_id: str,
    query_name: str,
    logical_date: date,
    status: str,
    run_id: str,
    schema_version: str,
    record_count: int,
    authority_version: int,
    payload_digest: str,
    payload_bytes: int,
    contract_fingerprint: str,
    served_run_id: str | None,
    served_schema_version: str | None,
    served_table: str | None,
    available: bool | None,
    hidden_at: datetime | None,
) -> Due:
    """The item of one row of `_DUE`. Columns are positional, because access by name would dominate the run time."""
    key = PartitionKey(source, customer_id, query_name, logical_date)
    served = served_table if hidden_at is None else None
    if status != "success":
        return Settled(key, authority_version) if served is None else Hide(key, served, authority_version)
    if not again and available and (served_run_id, served_schema_version) == (run_id, schema_version):
        return Settled(key, authority_version)
    new = NewSlice(key, RunId(run_id), record_count, payload_digest, payload_bytes)
    return Load(new, schema_version, contract_fingerprint, authority_version, served)


def delete_settled(connection: Connection, settled: Iterable[Settled]) -> None:
    """Delete settled partitions from the due work, unless their authority changed since."""
    columns = {**KEY_COLUMNS, "authority_version": sa.Integer()}
    with staged(connection, "incoming_settled", columns, [(*key_values(s.key), s.authority_version) for s in settled]):
        connection.execute(
            sa.text(
                "DELETE FROM publish_due AS d WHERE EXISTS (SELECT 1 FROM incoming_settled i"
                f" WHERE {same_key('i', 'd')} AND d.authority_version <= i.authority_version)"
            )
        )


def still_authoritative(connection: Connection, loads: Iterable[Load]) -> set[PartitionKey]:
    """The partitions of these loads whose authority has not changed since they were read."""
    columns = {**KEY_COLUMNS, "run_id": sa.Text(), "schema_version": sa.Text()}
    rows = [(*key_values(load.key), load.slice.run_id, load.schema_version) for load in loads]
    with staged(connection, "incoming_load", columns, rows):
        found = connection.execute(
            sa.text(
                # CROSS JOIN makes SQLite begin with the loads, not with all partitions that are success
                "SELECT l.source, l.customer_id, l.query_name, l.logical_date FROM incoming_load l"
                f" CROSS JOIN partition_state s WHERE {same_key('s', 'l')}"
                " AND s.status = 'success' AND s.current_run_id = l.run_id AND s.schema_version = l.schema_version"
            ).columns(logical_date=sa.Date())
        ).all()
    return {PartitionKey(*row) for row in found}
