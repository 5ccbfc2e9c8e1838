"""The rows of a state database, read with sqlite3 or psycopg in one transaction."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass, fields
from datetime import date
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row

from penstock.partition import PartitionKey

Row = dict[str, Any]

_JSON = ("body", "payload")
_BOOLEAN = ("available",)
_RECHECKS = "SELECT payload FROM event WHERE type = 'AuthorityChanged'"


@dataclass(frozen=True, slots=True)
class StateTables:
    """The tables that the checker compares, as they are at one moment."""

    partition_state: list[Row]
    partition_attempt: list[Row]
    publish_due: list[Row]
    warehouse_table: list[Row]
    warehouse_pointer: list[Row]
    contract: list[Row]
    ledger_segment: list[Row]
    authority_events: list[Row]  # the payloads of AuthorityChanged that are still in the database


def read_state(url: str, schema: str | None = None) -> StateTables:
    """Read the tables from a SQLAlchemy URL (`sqlite:///...` or `postgresql+psycopg://...`) or a SQLite file's path."""
    statements = {
        field.name: _RECHECKS if field.name == "authority_events" else f"SELECT * FROM {field.name}"
        for field in fields(StateTables)
    }
    found = _from_postgres(url, schema, statements) if url.startswith("postgresql") else _from_sqlite(url, statements)
    return StateTables(**{name: [_typed(row) for row in rows] for name, rows in found.items()})


def key_of(row: Row) -> PartitionKey:
    return PartitionKey(row["source"], row["customer_id"], row["query_name"], row["logical_date"])


def _from_sqlite(url: str, statements: dict[str, str]) -> dict[str, list[Row]]:
    path = Path(url.removeprefix("sqlite:///"))
    if not path.exists():
        raise FileNotFoundError(f"there is no state database at {path}")
    with closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as connection:
        connection.row_factory = sqlite3.Row
        connection.execute("BEGIN")
        return {name: [dict(row) for row in connection.execute(sql)] for name, sql in statements.items()}


def _from_postgres(url: str, schema: str | None, statements: dict[str, str]) -> dict[str, list[Row]]:
    with psycopg.connect(url.replace("+psycopg", "", 1), row_factory=dict_row) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT set_config('search_path', %s, false)", [schema or "public"])
        return {name: connection.execute(sql.encode()).fetchall() for name, sql in statements.items()}


def _typed(row: Row) -> Row:
    """The row with the same Python types on both databases."""
    typed = dict(row)
    if isinstance(day := row.get("logical_date"), str):
        typed["logical_date"] = date.fromisoformat(day)
    for name in _JSON:
        if isinstance(row.get(name), str):
            typed[name] = json.loads(row[name])
    for name in _BOOLEAN:
        if name in row:
            typed[name] = bool(row[name])
    return typed
