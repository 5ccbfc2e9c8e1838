"""Shares of the pace of a source: each live worker holds one while it fetches, and their sum never exceeds the pace."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.db import schema
from penstock.db.engine import Database
from penstock.db.lease import seconds_ago, worker_lives

ACTIVE_SECONDS = 60  # a worker that waited for a share or used one in this time gets an equal share
_SMALLEST = 0.25  # of an equal share; a worker that could get less waits
_TABLE = schema.source_share


@dataclass(frozen=True, slots=True)
class Share:
    """The share of one live worker. It is 0 while the worker waits or fetches nothing."""

    source: str
    worker_token: str
    host: str
    process: str
    per_second: float
    touched_at: datetime


class ShareStore:
    """Takes and releases shares. A share ends with the lease of its worker."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def take(self, source: str, per_second: float, token: str) -> float | None:
        """Take an equal share of the pace, or what others leave of it. None if they leave too little, or if the lease
        of this worker has expired; the worker then counts as active, so that others leave a share to it."""

        def work(connection: Connection) -> float | None:
            connection.execute(_LOCK_PACE, {"source": source, "per_second": per_second})
            connection.execute(sa.text(self._delete_dead()), {"source": source})
            if not connection.scalar(sa.text(f"SELECT {self._lives(':token')}"), {"token": token}):
                return None
            others = connection.execute(
                sa.select(
                    _TABLE.c.per_second, (_TABLE.c.touched_at >= self._ago(ACTIVE_SECONDS)).label("recent")
                ).where(_TABLE.c.source == source, _TABLE.c.worker_token != token)
            ).all()
            share = equal_share(per_second, [row.per_second for row in others if row.per_second or row.recent])
            self._write(connection, source, token, share or 0.0)
            return share

        return self._database.transact(work)

    def release(self, source: str, token: str) -> None:
        """Give the share back."""
        statement = (
            sa.update(_TABLE)
            .where(_TABLE.c.source == source, _TABLE.c.worker_token == token)
            .values(per_second=0.0, touched_at=self._ago(0))
        )
        self._database.transact(lambda connection: connection.execute(statement))

    def live(self, source: str) -> list[Share]:
        """The shares of live workers, the oldest worker first."""
        worker = schema.worker
        query = (
            sa.select(
                _TABLE.c.source,
                _TABLE.c.worker_token,
                worker.c.host,
                worker.c.process,
                _TABLE.c.per_second,
                _TABLE.c.touched_at,
            )
            .join_from(_TABLE, worker, worker.c.token == _TABLE.c.worker_token)
            .where(_TABLE.c.source == source, sa.text(self._lives("worker_token")))
            .order_by(_TABLE.c.worker_token)
        )
        with self._database.snapshot() as connection:
            return [Share(**row._mapping) for row in connection.execute(query)]

    def _write(self, connection: Connection, source: str, token: str, share: float) -> None:
        mine = (_TABLE.c.source == source, _TABLE.c.worker_token == token)
        values = {"per_second": share, "touched_at": self._ago(0)}
        if not connection.execute(sa.update(_TABLE).where(*mine).values(**values)).rowcount:
            connection.execute(sa.insert(_TABLE).values(source=source, worker_token=token, **values))

    def _delete_dead(self) -> str:
        return f"DELETE FROM source_share WHERE source = :source AND NOT {self._lives('worker_token')}"

    def _lives(self, token: str) -> str:
        return worker_lives(self._database.dialect, token)

    def _ago(self, seconds: int) -> sa.ColumnElement[datetime]:
        return seconds_ago(self._database.dialect, seconds)


def equal_share(per_second: float, others: list[float]) -> float | None:
    """An equal share among all active workers, or what the others leave; None if that is far below an equal one."""
    equal = per_second / (len(others) + 1)
    share = min(equal, per_second - sum(others))
    return share if share >= equal * _SMALLEST else None


# The row of the pace is locked until the transaction ends, so shares are taken one after the other.
_LOCK_PACE = sa.text("""
INSERT INTO source_pace (source, per_second) VALUES (:source, :per_second)
ON CONFLICT (source) DO UPDATE SET per_second = excluded.per_second
""")
