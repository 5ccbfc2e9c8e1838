"""Table heads: the version of each table that readers see, and the partitions in it that they must not see."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date

import pyarrow as pa
import sqlalchemy as sa

from penstock.db import schema
from penstock.db.engine import Database
from penstock.warehouse.layout import SortKey
from penstock.warehouse.versions import Contents, Versions
from penstock.warehouse.withdrawn import keys_by_table


@dataclass(frozen=True, slots=True)
class TableHead:
    """A table at the version that readers see, and the partitions in it that they must not see."""

    name: str
    schema_version: str
    location: str
    version: int
    exceptions: frozenset[SortKey]
    withdrawn: frozenset[tuple[date, str, str]] = frozenset()  # (day, customer, run), demoted after the snapshot
    publication: str | None = None  # the batch that committed this version
    withdrawn_inputs: frozenset[SortKey] = frozenset()  # partitions that were derived from a demoted run

    @property
    def asset(self) -> tuple[str, str]:
        source, query_name, _ = self.name.split(".")
        return source, query_name

    @property
    def hidden_inputs(self) -> frozenset[SortKey]:
        """The partitions of `withdrawn_inputs` whose rows are hidden from readers."""
        runs = {(day, customer) for day, customer, _ in self.withdrawn}
        return frozenset(key for key in self.withdrawn_inputs if key in self.exceptions or key in runs)


def heads(database: Database, source: str, query_name: str, hiding: Collection[str] | None = None) -> list[TableHead]:
    """The heads of an asset from one snapshot of the database. See `table_heads`."""
    with database.snapshot() as connection:
        return table_heads(connection, source, query_name, hiding)


def heads_of_all(
    database: Database, assets: Sequence[tuple[str, str]], hiding: Collection[str] | None = None
) -> list[tuple[str, TableHead]]:
    """The heads of several assets (source and query), each with its asset, from one snapshot of the database."""
    with database.snapshot() as connection:
        return [
            (f"{source}.{query}", head)
            for source, query in assets
            for head in table_heads(connection, source, query, hiding)
        ]


def heads_and_slices(
    database: Database, source: str, query_name: str, first: date, last: date, hiding: Collection[str] | None = None
) -> tuple[list[TableHead], frozenset[SortKey]]:
    """The heads of an asset and its readable slices (day and customer) between two days, from one snapshot of the
    database."""
    pointer = schema.warehouse_pointer
    statement = sa.select(pointer.c.logical_date, pointer.c.customer_id).where(
        pointer.c.source == source,
        pointer.c.query_name == query_name,
        pointer.c.logical_date.between(first, last),
        pointer.c.available,
    )
    with database.snapshot() as connection:
        slices = frozenset((row.logical_date, row.customer_id) for row in connection.execute(statement))
        found = table_heads(connection, source, query_name, hiding)
    hidden = (head.withdrawn_inputs & head.exceptions for head in found)
    return found, slices.difference(*hidden)


def table_schemas(
    versions: Versions, database: Database, assets: Sequence[tuple[str, str]]
) -> dict[str, list[pa.Schema]]:
    """The columns of the tables that readers see, by asset: one schema for each schema version."""
    found: dict[str, list[pa.Schema]] = {}
    for asset, head in heads_of_all(database, assets, ()):
        found.setdefault(asset, []).append(contents_of(versions, head).columns)
    return found


def contents_of(versions: Versions, head: TableHead) -> Contents:
    """The columns and files of a table at its head. Raises WarehouseError if the head's publication is not in it."""
    return versions.contents(head.name, head.location, head.version, head.publication)


def table_heads(
    connection: sa.Connection, source: str, query_name: str, hiding: Collection[str] | None = None
) -> list[TableHead]:
    """The tables of an asset with a published version, and their exceptions, as this connection sees them. `hiding`
    names the models whose rows are hidden if they were derived from a demoted run; with it, tables without an available
    partition are left out. With None, for maintenance, all tables are returned."""
    table, pointer = schema.warehouse_table, schema.warehouse_pointer
    statement = (
        sa.select(table)
        .where(table.c.source == source, table.c.query_name == query_name, table.c.version.is_not(None))
        .order_by(table.c.schema_version)
    )
    if hiding is not None:
        served = sa.exists().where(pointer.c.table_name == table.c.table_name, pointer.c.available)
        statement = statement.where(served)
    rows = connection.execute(statement).all()
    hidden = connection.execute(
        sa.select(pointer.c.table_name, pointer.c.logical_date, pointer.c.customer_id).where(
            sa.text("NOT warehouse_pointer.available"),  # exactly as in the index, or SQLite does not use it
            pointer.c.hidden_at.is_(None),
            pointer.c.source == source,
            pointer.c.query_name == query_name,
        )
    ).all()
    exceptions: dict[str, set[SortKey]] = {}
    for row in hidden:
        exceptions.setdefault(row.table_name, set()).add((row.logical_date, row.customer_id))
    withdrawn = {} if hiding is None else keys_by_table(connection, source, query_name)
    if hiding is not None and query_name in hiding:
        for name, keys in withdrawn.items():
            exceptions.setdefault(name, set()).update(keys)
    return [
        TableHead(
            r.table_name,
            r.schema_version,
            r.location,
            r.version,
            frozenset(exceptions.get(r.table_name, ())),
            publication=r.publication,
            withdrawn_inputs=frozenset(withdrawn.get(r.table_name, ())),
        )
        for r in rows
    ]
