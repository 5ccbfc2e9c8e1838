"""Reads pointers (the run that the warehouse serves for each partition), load records and due work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import sqlalchemy as sa

from penstock.db import schema
from penstock.db.bulk import key_values
from penstock.db.engine import Database
from penstock.lifecycle import PartitionStatus
from penstock.partition import PartitionKey, RunId


@dataclass(frozen=True, slots=True)
class Pointer:
    """The run of a partition in the warehouse, and whether readers see it."""

    key: PartitionKey
    run_id: RunId
    schema_version: str
    table: str
    table_version: int
    available: bool
    record_count: int
    loaded_at: datetime


@dataclass(frozen=True, slots=True)
class PointerSummary:
    """The pointers of one table in numbers. Hidden partitions are loaded, but readers do not see them."""

    available: int
    hidden: int
    rows: int  # of the available partitions
    loaded_at: datetime | None  # the last load


class PointerReader:
    """Queries about published partitions."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def pointer(self, key: PartitionKey) -> Pointer | None:
        table = schema.warehouse_pointer
        with self._database.snapshot() as connection:
            row = connection.execute(sa.select(table).where(*_is(table, key))).one_or_none()
        return None if row is None else _pointer(row)

    def summary(self, source: str, query_name: str) -> PointerSummary:
        """The pointers of one table in numbers."""
        c = schema.warehouse_pointer.c
        statement = sa.select(
            sa.func.count().filter(c.available),
            sa.func.count().filter(sa.not_(c.available)),
            sa.func.coalesce(sa.func.sum(c.record_count).filter(c.available), 0),
            sa.func.max(c.loaded_at, type_=c.loaded_at.type),
        ).where(c.source == source, c.query_name == query_name)
        with self._database.snapshot() as connection:
            available, hidden, rows, loaded_at = connection.execute(statement).one()
        return PointerSummary(available, hidden, int(rows), loaded_at)

    def due_since(self, key: PartitionKey) -> datetime | None:
        """The time since which the partition waits for publication; None if it is published."""
        table = schema.publish_due
        with self._database.snapshot() as connection:
            since: datetime | None = connection.scalar(sa.select(table.c.since).where(*_is(table, key)))
            return since

    def waiting(self) -> int:
        """The number of partitions that wait for publication."""
        with self._database.snapshot() as connection:
            return int(connection.scalar(sa.select(sa.func.count()).select_from(schema.publish_due)) or 0)

    def interrupted(self) -> bool:
        """Whether a prepared publication of a dead worker is unfinished."""
        from penstock.warehouse.batch import abandoned_tables

        with self._database.snapshot() as connection:
            return bool(abandoned_tables(connection))

    def find(
        self,
        *,
        keys: Sequence[PartitionKey] = (),
        source: str | None = None,
        customers: Sequence[str] = (),
        queries: Sequence[str] = (),
        since: date | None = None,
        until: date | None = None,
        status: PartitionStatus | None = None,
        after: PartitionKey | None = None,
        limit: int | None = None,
    ) -> tuple[list[Pointer], int]:
        """A page of pointers in key order, and the total number."""
        where = _where(schema.warehouse_pointer, keys, source, customers, queries, since, until, status)
        rows, total = self._page(schema.warehouse_pointer, where, after, limit, [])
        return [_pointer(row) for row in rows], total

    def loads(
        self,
        *,
        keys: Sequence[PartitionKey] = (),
        source: str | None = None,
        customers: Sequence[str] = (),
        queries: Sequence[str] = (),
        since: date | None = None,
        until: date | None = None,
        status: PartitionStatus | None = None,
        after: PartitionKey | None = None,
        after_run: RunId | None = None,
        limit: int | None = None,
    ) -> tuple[list[LoadRecord], int]:
        """A page of load records by key and run, and the total number. The page begins after a partition, or after one
        run of it."""
        table = schema.load_record
        where = _where(table, keys, source, customers, queries, since, until, status)
        rows, total = self._page(table, where, after, limit, [table.c.run_id], after_run)
        return [
            LoadRecord(
                PartitionKey(row.source, row.customer_id, row.query_name, row.logical_date),
                RunId(row.run_id),
                row.schema_version,
                row.record_count,
                row.loaded_at,
                row.table_name,
            )
            for row in rows
        ], total

    def _page(
        self,
        table: sa.Table,
        where: Sequence[sa.ColumnElement[bool]],
        after: PartitionKey | None,
        limit: int | None,
        order: Sequence[sa.ColumnElement[Any]],
        after_run: RunId | None = None,
    ) -> tuple[Sequence[sa.Row[Any]], int]:
        keys = _columns(table.c)
        cursor, begin = (keys, key_values(after)) if after else ([], ())
        if after_run is not None:
            cursor, begin = [*cursor, *order], (*begin, after_run)
        page = [*where, sa.tuple_(*cursor) > sa.tuple_(*begin)] if cursor else where
        with self._database.snapshot() as connection:
            total = connection.scalar(sa.select(sa.func.count()).select_from(table).where(*where))
            rows = connection.execute(sa.select(table).where(*page).order_by(*keys, *order).limit(limit)).all()
        return rows, int(total or 0)


def _where(
    table: sa.Table,
    keys: Sequence[PartitionKey],
    source: str | None,
    customers: Sequence[str],
    queries: Sequence[str],
    since: date | None,
    until: date | None,
    status: PartitionStatus | None,
) -> list[sa.ColumnElement[bool]]:
    c = table.c
    where: list[sa.ColumnElement[bool]] = []
    if keys:
        where.append(sa.tuple_(*_columns(c)).in_([key_values(key) for key in keys]))
    if source:
        where.append(c.source == source)
    if customers:
        where.append(c.customer_id.in_(customers))
    if queries:
        where.append(c.query_name.in_(queries))
    if since:
        where.append(c.logical_date >= since)
    if until:
        where.append(c.logical_date <= until)
    if status:
        state = schema.partition_state
        same = [state.c[name] == c[name] for name in schema.KEY]
        where.append(sa.exists().where(*same, state.c.status == status.value))
    return where


@dataclass(frozen=True, slots=True)
class LoadRecord:
    """The first load of a run. Loading the run again does not change it."""

    key: PartitionKey
    run_id: RunId
    schema_version: str
    record_count: int
    loaded_at: datetime
    table: str


def _columns(c: Any) -> list[sa.ColumnElement[Any]]:
    return [c[name] for name in schema.KEY]


def _is(table: sa.Table, key: PartitionKey) -> list[sa.ColumnElement[bool]]:
    return [table.c[name] == getattr(key, name) for name in schema.KEY]


def _pointer(row: Any) -> Pointer:
    return Pointer(
        PartitionKey(row.source, row.customer_id, row.query_name, row.logical_date),
        RunId(row.run_id),
        row.schema_version,
        row.table_name,
        row.table_version,
        row.available,
        row.record_count,
        row.loaded_at,
    )
