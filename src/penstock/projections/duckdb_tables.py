"""Tables in DuckDB from Python values and from files of the lake, without Arrow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    import duckdb

Columns = Mapping[str, str]  # SQL types by name

_CHUNK = 50_000  # rows in one statement


def create_table(
    connection: duckdb.DuckDBPyConnection, name: str, columns: Columns, rows: Iterable[Sequence[Any]]
) -> int:
    """Create a temporary table of these rows, and return their number. The values travel as JSON."""
    connection.execute(
        f"CREATE TEMP TABLE {name} ({', '.join(f'{column} {kind}' for column, kind in columns.items())})"
    )
    shape = orjson.dumps({column: [kind] for column, kind in columns.items()}).decode()
    selected = ", ".join(f"unnest(j.{column})" for column in columns)
    statement = f"INSERT INTO {name} SELECT {selected} FROM (SELECT from_json(?, '{shape}') AS j)"
    remaining, count = iter(rows), 0
    while chunk := list(islice(remaining, _CHUNK)):
        values = dict(zip(columns, zip(*chunk, strict=True), strict=True))
        connection.execute(statement, [orjson.dumps(values).decode()])
        count += len(chunk)
    return count


def empty_sql(columns: Columns) -> str:
    """A query without rows, with these columns."""
    return f"SELECT {', '.join(f'CAST(NULL AS {kind}) AS {name}' for name, kind in columns.items())} WHERE false"


def file_list(paths: Sequence[str]) -> str:
    """The paths as an SQL list of strings."""
    return "[" + ", ".join("'" + path.replace("'", "''") + "'" for path in paths) + "]"
