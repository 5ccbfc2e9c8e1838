"""The catalog of warehouse tables: the rows of `warehouse_table`, each with the version that readers see."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.db import schema
from penstock.warehouse.layout import location


@dataclass(frozen=True, slots=True)
class RecordedHead:
    """A table as the database records it. `version` is None before the first publication."""

    name: str
    location: str
    version: int | None
    publication: str | None


def recorded_heads(connection: Connection, tables: Collection[str] | None = None) -> list[RecordedHead]:
    """The heads of these tables (all tables by default), by name."""
    t = schema.warehouse_table.c
    statement = sa.select(t.table_name, t.location, t.version, t.publication).order_by(t.table_name)
    if tables is not None:
        statement = statement.where(t.table_name.in_(sorted(tables)))
    return [RecordedHead(*row) for row in connection.execute(statement)]


def register_tables(connection: Connection, tables: Iterable[tuple[str, str, str]]) -> None:
    """Insert a row for each table (source, query and schema version) that has none."""
    known = set(connection.scalars(sa.select(schema.warehouse_table.c.table_name)))
    for source, query, version in sorted(tables):
        name = f"{source}.{query}.{version}"
        if name not in known:
            place = location(source, query, version)
            connection.execute(
                sa.text(
                    "INSERT INTO warehouse_table (table_name, source, query_name, schema_version, location)"
                    " VALUES (:name, :source, :query, :version, :location) ON CONFLICT DO NOTHING"
                ),
                {"name": name, "source": source, "query": query, "version": version, "location": place},
            )


def tables_of_same_queries(connection: Connection, tables: Collection[str]) -> list[str]:
    """All schema versions of the queries that these tables belong to, by name."""
    queries = {name.rpartition(".")[0] for name in tables}
    known = connection.scalars(sa.select(schema.warehouse_table.c.table_name))
    return sorted(name for name in known if name.rpartition(".")[0] in queries)
