"""Leases of tables: one publisher per table at a time. They are acquired in name order, which prevents deadlocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.db import schema
from penstock.db.engine import Database
from penstock.db.lease import worker_lives
from penstock.errors import LeaseLost, StateConflict
from penstock.partition import new_ulid

_WAIT_SECONDS = 0.25


class TableLeases:
    """The leases of one publication under one token. They are valid while the worker's heartbeat is fresh."""

    def __init__(self, database: Database, worker_token: str, patience: float = 600.0) -> None:
        self.token = new_ulid()
        self._database = database
        self._worker = worker_token
        self._patience = patience

    def acquire(self, tables: Sequence[str], waiting: Callable[[str], None] | None = None) -> None:
        """Acquire the leases of `tables`; waits while another live worker holds one. Raises StateConflict if the wait
        exceeds the patience."""
        deadline = time.monotonic() + self._patience
        for table in sorted(tables):
            while not self._database.transact(lambda connection, name=table: self._take(connection, name)):  # type: ignore[misc]
                if time.monotonic() > deadline:
                    raise StateConflict(f"another process has been publishing to {table} for too long: try again later")
                if waiting:
                    waiting(table)
                time.sleep(_WAIT_SECONDS)

    def release(self) -> None:
        """Release all leases of this token."""
        table = schema.warehouse_table
        statement = (
            sa.update(table).where(table.c.lease_token == self.token).values(lease_token=None, lease_worker=None)
        )
        self._database.transact(lambda connection: connection.execute(statement))

    def require(self, connection: Connection, tables: Sequence[str]) -> None:
        """Lock the leases in the caller's transaction. Raises LeaseLost if another process took over one of
        `tables`."""
        table = schema.warehouse_table
        held = sa.select(table.c.table_name).where(table.c.lease_token == self.token).with_for_update()
        lost = set(tables) - set(connection.scalars(held))
        if lost:
            raise LeaseLost(f"another process took over {', '.join(sorted(lost))} while we paused: run again")

    def _take(self, connection: Connection, table: str) -> bool:
        lives = worker_lives(connection.dialect.name, "warehouse_table.lease_worker")
        taken = connection.execute(
            sa.text(
                "UPDATE warehouse_table SET lease_token = :token, lease_worker = :worker WHERE table_name = :table"
                f" AND (lease_token IS NULL OR lease_token = :token OR NOT {lives})"
            ),
            {"token": self.token, "worker": self._worker, "table": table},
        )
        return taken.rowcount == 1
