"""Row locks in key order, so that two transactions that need the same rows wait for each other and never deadlock.

On SQLite these functions do nothing: a write transaction (BEGIN IMMEDIATE) excludes all other writers already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.db.bulk import same_key
from penstock.db.schema import KEY


def lock_partitions(connection: Connection, table: str, named_in: str) -> None:
    """Lock the rows of `table` whose partitions are in the staged table `named_in`, until the transaction ends."""
    lock_rows(connection, f"{table} t JOIN {named_in} n ON {same_key('t', 'n')}", "t")


def lock_rows(
    connection: Connection,
    rows: str,
    alias: str,
    *,
    order: Sequence[str] = KEY,
    share: bool = False,
    parameters: Mapping[str, Any] | None = None,
) -> None:
    """Lock the rows of the table `alias` in `SELECT ... FROM <rows>`, until the transaction ends. `share` admits other
    transactions that also only share the rows."""
    if connection.dialect.name != "postgresql":
        return
    columns = ", ".join(f"{alias}.{name}" for name in order)
    strength = "SHARE" if share else "UPDATE"
    statement = f"SELECT 1 FROM {rows} ORDER BY {columns} FOR {strength} OF {alias}"
    connection.execute(sa.text(statement), parameters or {})
