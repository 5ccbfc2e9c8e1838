"""Bulk writes: rows are staged in a temporary table, then one set-based statement uses them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from functools import lru_cache
from itertools import islice
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.clock import iso
from penstock.db.schema import KEY
from penstock.db.types import Json, UtcTimestamp
from penstock.partition import PartitionKey

Columns = Mapping[str, sa.types.TypeEngine[Any]]

KEY_COLUMNS: Columns = {
    "source": sa.Text(),
    "customer_id": sa.Text(),
    "query_name": sa.Text(),
    "logical_date": sa.Date(),
}

_CHUNK = 20_000


@contextmanager
def staged(connection: Connection, name: str, columns: Columns, rows: Iterable[Sequence[Any]]) -> Iterator[None]:
    """A temporary table `name` with `rows`, for the length of the block."""
    types = {column: _compiled(connection, kind) for column, kind in columns.items()}
    body = ", ".join(f"{column} {kind}" for column, kind in types.items())
    connection.exec_driver_sql(f"CREATE TEMPORARY TABLE {name} ({body})")
    load = _copy if connection.dialect.name == "postgresql" else _execute_many
    load(connection, name, columns, rows)
    index = [column for column in (*KEY, "run_id") if column in columns]
    if index:
        connection.exec_driver_sql(f"CREATE INDEX {name}_by_key ON {name} ({', '.join(index)})")
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"ANALYZE {name}")
    yield
    # Not in a finally block: an error rolls back the transaction, and the temporary table with it.
    connection.exec_driver_sql(f"DROP TABLE {name}")


def insert(connection: Connection, table: sa.Table, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> int:
    """Insert rows, except those that violate a unique constraint. Returns the number of inserted rows."""
    staging = f"incoming_{table.name}"
    names = ", ".join(columns)
    with staged(connection, staging, {name: table.c[name].type for name in columns}, rows):
        result = connection.exec_driver_sql(
            f"INSERT INTO {table.name} ({names}) SELECT {names} FROM {staging} WHERE true ON CONFLICT DO NOTHING"
        )
    return result.rowcount


def same_key(left: str, right: str) -> str:
    """The SQL condition that two rows belong to the same partition."""
    return " AND ".join(f"{left}.{column} = {right}.{column}" for column in KEY)


def key_values(key: PartitionKey) -> tuple[Any, ...]:
    """The values of the key columns of a partition."""
    return (key.source, key.customer_id, key.query_name, key.logical_date)


def timed(statement: str) -> sa.TextClause:
    """A statement whose parameter `now` is a timestamp in both dialects."""
    return sa.text(statement).bindparams(sa.bindparam("now", type_=UtcTimestamp()))


def _compiled(connection: Connection, kind: sa.types.TypeEngine[Any]) -> str:
    return kind.compile(dialect=connection.dialect)


def _copy(connection: Connection, name: str, columns: Columns, rows: Iterable[Sequence[Any]]) -> None:
    documents = [index for index, kind in enumerate(columns.values()) if isinstance(kind, Json)]
    cursor = connection.connection.cursor()
    try:
        with cursor.copy(f"COPY {name} ({', '.join(columns)}) FROM STDIN") as copy:
            for row in rows:
                copy.write_row(_with_documents(row, documents))
    finally:
        cursor.close()


def _execute_many(connection: Connection, name: str, columns: Columns, rows: Iterable[Sequence[Any]]) -> None:
    converters = [(index, convert) for index, kind in enumerate(columns.values()) if (convert := _as_text(kind))]
    statement = f"INSERT INTO {name} VALUES ({', '.join('?' * len(columns))})"
    remaining = (_converted(row, converters) for row in rows)
    while chunk := list(islice(remaining, _CHUNK)):
        connection.exec_driver_sql(statement, chunk)


def _converted(row: Sequence[Any], converters: Sequence[tuple[int, Callable[[Any], Any]]]) -> tuple[Any, ...]:
    values = list(row)
    for index, convert in converters:
        if values[index] is not None:
            values[index] = convert(values[index])
    return tuple(values)


def _with_documents(row: Sequence[Any], documents: Sequence[int]) -> Sequence[Any]:
    if not documents:
        return row
    values = list(row)
    for index in documents:
        if values[index] is not None:
            values[index] = orjson.dumps(values[index]).decode()
    return values


def _as_text(kind: sa.types.TypeEngine[Any]) -> Callable[[Any], Any] | None:
    """The conversion to text for types that SQLite does not have; None for others."""
    if isinstance(kind, sa.Date):
        return date.isoformat
    if isinstance(kind, UtcTimestamp):
        return _moment
    if isinstance(kind, Json):
        return lambda value: orjson.dumps(value).decode()
    return None


@lru_cache(maxsize=16)  # thousands of rows of one batch have the same timestamp
def _moment(value: datetime) -> str:
    return iso(value)
