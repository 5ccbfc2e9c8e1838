"""The heads of several tables and the run of each partition in them, from one snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.db import schema
from penstock.db.engine import Database
from penstock.partition import RunId
from penstock.warehouse.heads import TableHead, table_heads


@dataclass(frozen=True, slots=True)
class Served:
    """The heads of tables and the runs that they serve, from one snapshot. Each run is authoritative in it."""

    heads: Mapping[str, list[TableHead]]  # by table
    runs: Mapping[tuple[str, date], Mapping[str, tuple[RunId, str]]]  # by table and day; by customer, run and digest
    served_in: Mapping[tuple[str, date], Mapping[str, str]]  # the same; by customer, the name of the head


def read_served(database: Database, days: Mapping[str, tuple[date, date]]) -> Served:
    """The heads of these tables, and their runs between two days, from one snapshot of the database. Leaves out
    partitions that are about to be replaced and derived partitions with a demoted input: models must not read them."""
    heads: dict[str, list[TableHead]] = {}
    runs: dict[tuple[str, date], dict[str, tuple[RunId, str]]] = {}
    served_in: dict[tuple[str, date], dict[str, str]] = {}
    with database.snapshot() as connection:
        for table, (first, last) in days.items():
            source, _, query_name = table.partition(".")
            tables = table_heads(connection, source, query_name, ())
            overtaken = {head.name: set(head.withdrawn_inputs) for head in tables}
            for row in _pointers(connection, source, query_name, first, last):
                key = (row.logical_date, row.customer_id)
                if row.run_id == row.current_run_id and key not in overtaken.get(row.table_name, ()):
                    one = (RunId(row.run_id), row.content_digest)
                    runs.setdefault((table, row.logical_date), {})[row.customer_id] = one
                    served_in.setdefault((table, row.logical_date), {})[row.customer_id] = row.table_name
                else:
                    overtaken.setdefault(row.table_name, set()).add(key)
            heads[table] = [
                replace(head, exceptions=head.exceptions | overtaken.get(head.name, set())) for head in tables
            ]
    return Served(heads, runs, served_in)


def _pointers(connection: Connection, source: str, query_name: str, first: date, last: date) -> Iterable[sa.Row[Any]]:
    """The available pointers, each with the authoritative run of its partition (or none)."""
    pointer, state, attempt = schema.warehouse_pointer, schema.partition_state, schema.partition_attempt
    p = pointer.c
    trusted = [state.c[name] == p[name] for name in schema.KEY] + [state.c.status == "success"]
    its = [attempt.c[name] == p[name] for name in schema.KEY] + [attempt.c.run_id == p.run_id]
    return connection.execute(
        sa.select(
            p.customer_id, p.logical_date, p.run_id, p.table_name, state.c.current_run_id, attempt.c.content_digest
        )
        .join(attempt, sa.and_(*its))
        .outerjoin(state, sa.and_(*trusted))
        .where(p.source == source, p.query_name == query_name, p.available, p.logical_date.between(first, last))
    )
