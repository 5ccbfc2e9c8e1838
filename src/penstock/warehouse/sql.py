"""SQL over accepted rows. DuckDB sees only the tables that are registered for it: no file, no variable, no network."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import duckdb
import pyarrow as pa

from penstock.errors import UsageError
from penstock.sql_guard import SqlRefused, duckdb_tables
from penstock.sql_tables import with_tables_renamed

# Arrow represents these types incorrectly: a large UHUGEINT as a negative number, a time without its zone, bits and
# large numbers as bytes.
_INEXACT = frozenset({"uhugeint", "bignum", "time with time zone", "bit", "variant", "geometry"})


class Relation(Protocol):
    """A table that can be opened on a DuckDB connection."""

    def duckdb(self, connection: duckdb.DuckDBPyConnection, /) -> duckdb.DuckDBPyRelation: ...


@dataclass(frozen=True, slots=True)
class SqlLimits:
    """Limits of one statement. With them, DuckDB writes no temporary files."""

    rows: int
    memory_mib: int  # of DuckDB's buffers; some functions allocate memory outside of them
    threads: int


def query(
    statement: str, tables: Mapping[str, Callable[[], Relation]], limits: SqlLimits | None = None
) -> pa.RecordBatchReader:
    """Run one SELECT. Tables are named `source.query_name`; only those that the statement names are opened. Raises
    UsageError if the statement is refused or fails, also while the result is read."""
    connection = _isolated_duckdb(limits)
    named = named_tables(statement, tables)
    # DuckDB has a catalog of its own named `system`, so our schema `system` has another name inside.
    inside = {name: f"penstock_{name}" for name in named if name.startswith("system.")}
    for name in named:
        source, _, table = inside.get(name, name).partition(".")
        connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{source}"')
        relation = f"vouched_{source}_{table}"
        tables[name]().duckdb(connection).create_view(relation)
        connection.execute(f'CREATE VIEW "{source}"."{table}" AS SELECT * FROM "{relation}"')
    try:
        result = connection.sql(with_tables_renamed(statement, inside, "duckdb") if inside else statement)
        if limits is not None:
            result = result.limit(limits.rows)
        reader = _with_exact_types(result).to_arrow_reader(100_000)
    except duckdb.Error as error:
        raise UsageError(f"the SQL failed: {_first_line(error)}") from error
    return pa.RecordBatchReader.from_batches(reader.schema, _translated(reader))


def _with_exact_types(relation: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
    """The relation with text in place of types that Arrow represents incorrectly."""
    exact = [_exact(kind) for kind in relation.types]
    if exact == list(relation.types):
        return relation
    if len(set(relation.columns)) < len(relation.columns):
        raise UsageError(f"two columns have the same name ({', '.join(relation.columns)}): rename one with AS")
    return relation.select(
        *(
            duckdb.ColumnExpression(name) if kind == wanted else duckdb.ColumnExpression(name).cast(wanted).alias(name)
            for name, kind, wanted in zip(relation.columns, relation.types, exact, strict=True)
        )
    )


def _exact(kind: Any) -> Any:
    """The DuckDB type with text in place of each inexact type in it."""
    if kind.id in _INEXACT:
        return duckdb.sqltype("VARCHAR")
    match kind.id:
        case "list":
            [(_, child)] = kind.children
            return duckdb.list_type(_exact(child))
        case "array":
            [(_, child), (_, size)] = kind.children
            return duckdb.array_type(_exact(child), size)
        case "map":
            [(_, key), (_, value)] = kind.children
            return duckdb.map_type(_exact(key), _exact(value))
        case "struct":
            return duckdb.struct_type({name: _exact(member) for name, member in kind.children})
        case "tuple":  # its members have no names, and the Python API no constructor for it
            return duckdb.sqltype(f"TUPLE({', '.join(str(_exact(member)) for _, member in kind.children)})")
        case "union":
            _tag, *members = kind.children
            return duckdb.union_type({name: _exact(member) for name, member in members})
        case _:
            return kind


def _translated(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """The batches of the result. DuckDB computes while it is read, so an error may follow the first rows; Arrow raises
    it, and it is translated here."""
    try:
        yield from reader
    except (OSError, pa.ArrowException) as error:
        raise UsageError(f"the SQL failed: {str(error).partition(chr(10))[0]}") from error


def named_tables(statement: str, known: Collection[str]) -> list[str]:
    """The tables that one SELECT reads. Raises UsageError for other statements, unknown tables and functions that are
    not listed."""
    found = json.loads(_isolated_duckdb().execute("SELECT json_serialize_sql(?)", [statement]).fetchall()[0][0])
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


def _isolated_duckdb(limits: SqlLimits | None = None) -> duckdb.DuckDBPyConnection:
    """A DuckDB connection without access to files, Python variables and the network. Its settings cannot be changed."""
    config: dict[str, str | bool | int | float | list[str]] = {
        "enable_external_access": "false",
        "python_enable_replacements": "false",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "lock_configuration": "true",
    }
    if limits is not None:
        memory = f"{limits.memory_mib}MiB"
        config |= {"memory_limit": memory, "threads": str(limits.threads), "temp_directory": ""}
    return duckdb.connect(config=config)


def _first_line(error: duckdb.Error) -> str:
    return str(error).partition("\n\n")[0].replace("\n", " ")
