"""Stored circuit breakers: one row per source that ever failed as a whole, shared by all processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.clock import Clock
from penstock.db import schema
from penstock.db.bulk import same_key, timed
from penstock.db.engine import Database
from penstock.state.records import Breaker

if TYPE_CHECKING:
    from penstock.state.control import AuditEntry

_TABLE = schema.source_breaker

_IS_SUCCESS = f"EXISTS (SELECT 1 FROM partition_state s WHERE {same_key('s', 'k')} AND s.status = 'success')"
_RETRY_NOW = f"""
UPDATE partition_control AS k SET next_run_at = :now
WHERE k.source = :source AND k.strategy = 'auth' AND {_IS_SUCCESS}
"""
_END_WAITING = f"""
UPDATE partition_control AS k SET next_run_at = NULL, strategy = NULL
WHERE k.source = :source AND k.strategy = 'auth' AND NOT {_IS_SUCCESS}
"""


class BreakerStore:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def all(self) -> list[Breaker]:
        with self._database.snapshot() as connection:
            return [Breaker(**row._mapping) for row in connection.execute(sa.select(_TABLE).order_by("source"))]

    def get(self, source: str) -> Breaker:
        return next((breaker for breaker in self.all() if breaker.source == source), Breaker(source))

    def change(self, source: str, step: Callable[[Breaker], Breaker]) -> Breaker:
        """Replace the breaker with the result of `step`. Concurrent calls for one source are serialised."""

        def work(connection: Connection) -> Breaker:
            _ensure_row(connection, source)
            before = _read(connection, source)
            after = step(before)
            if after != before:
                _write(connection, after)
            if before.opened_at is not None and after.opened_at is None:
                _release_postponed(connection, source, self._clock())
            return after

        return self._database.transact(work)

    def close(self, source: str, entry: AuditEntry) -> bool:
        """Close the breaker by an operator's act; False if it was closed."""
        now = self._clock()

        def work(connection: Connection) -> bool:
            before = _read(connection, source)
            if before == Breaker(source):
                return False
            _write(connection, Breaker(source))
            _release_postponed(connection, source, now)
            from penstock.state.control import record_audit

            record_audit(connection, entry, 1, "done", now)
            return True

        return self._database.transact(work)


def _ensure_row(connection: Connection, source: str) -> None:
    """Insert the row to lock if it is missing, so that two processes that see the first failure do not both insert."""
    connection.execute(
        sa.text("INSERT INTO source_breaker (source) VALUES (:source) ON CONFLICT DO NOTHING"), {"source": source}
    )


def _read(connection: Connection, source: str) -> Breaker:
    row = connection.execute(sa.select(_TABLE).where(_TABLE.c.source == source).with_for_update()).one_or_none()
    return Breaker(source) if row is None else Breaker(**row._mapping)


def _write(connection: Connection, breaker: Breaker) -> None:
    connection.execute(sa.update(_TABLE).where(_TABLE.c.source == breaker.source).values(**asdict(breaker)))


def _release_postponed(connection: Connection, source: str, now: datetime) -> None:
    """Make partitions that were postponed for this source due at once. Pending partitions are due anyway; the re-fetch
    of a success partition needs a `next_run_at`."""
    connection.execute(timed(_RETRY_NOW), {"source": source, "now": now})
    connection.execute(sa.text(_END_WAITING), {"source": source})
