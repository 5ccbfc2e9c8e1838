"""SQL over vouched rows: DuckDB sees only the tables that are registered for it, and nothing else of the machine."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Protocol

import duckdb
import pyarrow as pa

from penstock.errors import UsageError
from penstock.sql_guard import SqlRefused, duckdb_tables

_COMMENT = r"--[^\n]*|/\*.*?\*/"
_QUOTED = r"""'(?:[^']|'')*'|"(?:[^"]|"")*\""""


# Types in the text of a type, and names and values in quotes, which are none.
_INEXACT = re.compile(rf"{_QUOTED}|\b(?:UHUGEINT|BIGNUM|TIME WITH TIME ZONE|BIT|VARIANT|GEOMETRY)\b")


class Relation(Protocol):
    """Something that DuckDB can be shown as a table."""

    def duckdb(self, connection: duckdb.DuckDBPyConnection, /) -> duckdb.DuckDBPyRelation: ...


def query(statement: str, tables: Mapping[str, Callable[[], Relation]]) -> pa.RecordBatchReader:
    """Run one SELECT. Tables are named `source.query_name`; only those that the statement names are opened."""
    connection = _closed_duckdb()
    named = named_tables(statement, tables)
    # DuckDB has a catalog of its own with the name `system`, so ours go by another one inside.
    inside = {name: f"penstock_{name}" for name in named if name.startswith("system.")}
    for name in named:
        source, _, table = inside.get(name, name).partition(".")
        connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{source}"')
        relation = f"vouched_{source}_{table}"
        tables[name]().duckdb(connection).create_view(relation)
        connection.execute(f'CREATE VIEW "{source}"."{table}" AS SELECT * FROM "{relation}"')
    try:
        asked = connection.sql(with_names(statement, inside) if inside else statement)
        reader = _exact(asked).to_arrow_reader(100_000)
    except duckdb.Error as error:
        raise UsageError(f"the SQL failed: {_first_line(error)}") from error
    return pa.RecordBatchReader.from_batches(reader.schema, _translated(reader))


def _exact(relation: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
    """The relation with text in place of types that Arrow would show otherwise than they are: a large UHUGEINT as a
    negative number, a time without its zone, bits and large numbers as bytes."""
    kinds = [str(kind) for kind in relation.types]
    casts = {number: exact for number, kind in enumerate(kinds) if (exact := _INEXACT.sub(_as_text, kind)) != kind}
    if not casts:
        return relation
    if len(set(relation.columns)) < len(relation.columns):
        raise UsageError(f"two columns have the same name ({', '.join(relation.columns)}): rename one with AS")
    return relation.select(
        *(
            duckdb.ColumnExpression(name).cast(duckdb.sqltype(casts[number])).alias(name)
            if number in casts
            else duckdb.ColumnExpression(name)
            for number, name in enumerate(relation.columns)
        )
    )


def _as_text(found: re.Match[str]) -> str:
    return found[0] if found[0].startswith(('"', "'")) else "VARCHAR"


def _translated(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """DuckDB works while it is read: an error may come after the first rows, and comes through Arrow."""
    try:
        yield from reader
    except (OSError, pa.ArrowException) as error:
        raise UsageError(f"the SQL failed: {str(error).partition(chr(10))[0]}") from error


def named_tables(statement: str, known: Collection[str]) -> list[str]:
    """The tables that one SELECT reads; refuses anything else, unknown tables and functions that are not listed."""
    found = json.loads(_closed_duckdb().execute("SELECT json_serialize_sql(?)", [statement]).fetchall()[0][0])
    if found["error"]:
        if found["error_type"] == "not implemented":
            raise UsageError("only SELECT statements are allowed: readers change nothing")
        raise UsageError(f"the SQL is not valid: {found['error_message']}")
    if len(found["statements"]) != 1:
        raise UsageError("one SELECT at a time")
    try:
        return duckdb_tables(found["statements"], known)
    except (SqlRefused, RecursionError) as error:
        text = str(error) if isinstance(error, SqlRefused) else "the SQL is nested too deeply"
        raise UsageError(text) from error


def _closed_duckdb() -> duckdb.DuckDBPyConnection:
    """A DuckDB that sees neither files nor Python variables nor the network, only what we register."""
    return duckdb.connect(
        config={
            "enable_external_access": "false",
            "python_enable_replacements": "false",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
        }
    )


def with_names(statement: str, names: Mapping[str, str]) -> str:
    """The statement with tables renamed. Words inside quotes and comments are left as they are."""
    tables = "|".join(r"\s*\.\s*".join(f"(?:`{part}`|{part})" for part in name.split(".")) for name in names)
    pattern = rf"{_COMMENT}|{_QUOTED}|(?<![\w.])(?:{tables})(?!\w)|`[^`]*`"

    def named(found: re.Match[str]) -> str:
        return names.get(re.sub(r"[`\s]", "", found[0]).lower(), found[0])

    return re.sub(pattern, named, statement, flags=re.IGNORECASE | re.DOTALL)


def _first_line(error: duckdb.Error) -> str:
    return str(error).partition("\n\n")[0].replace("\n", " ")
