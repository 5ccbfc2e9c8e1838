"""SQL over vouched rows: DuckDB sees only the tables that are registered for it, and nothing else of the machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping

import duckdb
import pyarrow as pa

from penstock.errors import UsageError
from penstock.warehouse.reader import Vouched


def query(statement: str, tables: Mapping[str, Callable[[], Vouched]]) -> pa.RecordBatchReader:
    """Run one SELECT. Tables are named `source.query_name`; only those that the statement names are opened."""
    connection = duckdb.connect(config={"enable_external_access": "false", "python_enable_replacements": "false"})
    for name in named_tables(statement, tables):
        source, _, table = name.partition(".")
        connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{source}"')
        relation = f"vouched_{source}_{table}"
        tables[name]().duckdb(connection).create_view(relation)
        connection.execute(f'CREATE VIEW "{source}"."{table}" AS SELECT * FROM "{relation}"')
    try:
        result = connection.sql(statement)
        if result is None:
            raise UsageError("only SELECT statements are allowed: readers change nothing")
        return result.to_arrow_reader(100_000)
    except duckdb.Error as error:
        raise UsageError(f"the SQL failed: {_first_line(error)}") from error


def named_tables(statement: str, known: Collection[str]) -> list[str]:
    """The tables that a statement reads; refuses one that does not exist, and names those that do."""
    try:
        named = sorted(name.replace('"', "") for name in duckdb.connect().get_table_names(statement, qualified=True))
    except duckdb.Error as error:
        raise UsageError(f"the SQL is not valid: {_first_line(error)}") from error
    for name in named:
        if name not in known:
            raise UsageError(f"unknown table {name} (tables: {', '.join(sorted(known)) or 'none'})")
    return named


def with_names(statement: str, names: Mapping[str, str]) -> str:
    """The statement with tables renamed. Words inside quotes are left as they are."""
    tables = "|".join(re.escape(name) for name in names)
    pattern = rf"""'(?:[^']|'')*'|"(?:[^"]|"")*"|(?<![\w.])(?:{tables})(?![\w.])"""
    return re.sub(pattern, lambda found: names.get(found[0], found[0]), statement)


def _first_line(error: duckdb.Error) -> str:
    return str(error).partition("\n\n")[0].replace("\n", " ")
