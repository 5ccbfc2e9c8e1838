"""Stored pause selectors: one row each, written in one transaction with the audit entry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.clock import Clock
from penstock.db import schema
from penstock.db.bulk import Columns, staged, timed
from penstock.db.engine import Database
from penstock.db.locks import lock_rows
from penstock.state.control import AuditEntry, record_audit
from penstock.state.pause_scope import Change, PauseSelector, Scope, paused_by, resumed_by
from penstock.state.pause_selectors import read_selectors

_SELECTOR = schema.pause_selector

_SCOPE: Columns = {
    "source": sa.Text(),
    "customer_id": sa.Text(),
    "query_name": sa.Text(),
    "first_date": sa.Date(),
    "last_date": sa.Date(),
}

_MARKED = "(c.paused_at IS NOT NULL OR c.held_at IS NOT NULL)"
_NO_MARKS = (
    """paused_at = NULL, paused_by = NULL, paused_reason = NULL, held_at = NULL, held_by = NULL, held_reason = NULL"""
)

# For a few scopes with open fields.
_NAMED = """EXISTS (SELECT 1 FROM incoming_scope i
    WHERE (i.source IS NULL OR i.source = c.source) AND (i.customer_id IS NULL OR i.customer_id = c.customer_id)
    AND (i.query_name IS NULL OR i.query_name = c.query_name)
    AND (i.first_date IS NULL OR i.first_date <= c.logical_date)
    AND (i.last_date IS NULL OR i.last_date >= c.logical_date))
"""
_ROWS = f"partition_control c WHERE {_MARKED} AND {_NAMED}"
_CLEAR = f"UPDATE partition_control AS c SET {_NO_MARKS} WHERE {_MARKED} AND {_NAMED}"

# For thousands of scopes with all fields set: each finds its rows by key.
_INSIDE = """i.source = c.source AND i.customer_id = c.customer_id AND i.query_name = c.query_name
    AND c.logical_date BETWEEN i.first_date AND i.last_date
"""
_ROWS_INSIDE = f"partition_control c JOIN incoming_scope i ON {_INSIDE} WHERE {_MARKED}"
_CLEAR_INSIDE = f"UPDATE partition_control AS c SET {_NO_MARKS} FROM incoming_scope i WHERE {_INSIDE} AND {_MARKED}"

_END = """
UPDATE pause_selector SET ended_at = :now WHERE selector_no IN (SELECT e.selector_no FROM incoming_ended e)
"""

Count = Callable[[Connection], int]


class PauseStore:
    """Pauses and resumes scopes. Each call returns how many of the expected partitions changed, which `count` computes
    inside the transaction. A call that changes nothing returns None and writes no audit entry."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def pause(self, scopes: Sequence[Scope], reason: str | None, entry: AuditEntry, count: Count) -> int | None:
        """Pause the partitions of these scopes, future days included: no attempt is issued until they are resumed."""

        def work(connection: Connection) -> int | None:
            _lock_selectors(connection)
            affected, now = count(connection), self._clock()
            if not _apply(connection, paused_by, scopes, {"paused": True, "since": now, "actor": entry.actor}, reason):
                return None
            record_audit(connection, entry, affected, "done", now)
            return affected

        return self._database.transact(work)

    def resume(self, scopes: Sequence[Scope], entry: AuditEntry, count: Count, *, audited: bool = True) -> int | None:
        """Resume the partitions of these scopes: ends pauses, and the holds that rollback and approve leave. Without
        `audited`, the call is one page of an act whose audit entry exists."""

        def work(connection: Connection) -> int | None:
            _lock_selectors(connection)
            affected, now = count(connection), self._clock()
            cut = _apply(connection, resumed_by, scopes, {"paused": False, "since": now, "actor": entry.actor}, None)
            if not _clear_marks(connection, scopes) and not cut:
                return None
            if audited:
                record_audit(connection, entry, affected, "done", now)
            return affected

        return self._database.transact(work)


def _apply(
    connection: Connection,
    change_for: Callable[[Sequence[PauseSelector], Iterable[Scope]], Change],
    scopes: Sequence[Scope],
    mark: Mapping[str, Any],
    reason: str | None,
) -> bool:
    """Write the change; False if it is empty."""
    change = change_for(read_selectors(connection), scopes)
    if change.obsolete:
        ended = [(number,) for number in change.obsolete]
        with staged(connection, "incoming_ended", {"selector_no": sa.BigInteger()}, ended):
            connection.execute(timed(_END), {"now": mark["since"]})
    if change.inserts:
        rows = [
            {**dict(zip(_SCOPE, _values(scope), strict=True)), **mark, "reason": reason} for scope in change.inserts
        ]
        connection.execute(sa.insert(_SELECTOR), rows)
    return bool(change)


def _lock_selectors(connection: Connection) -> None:
    """Serialise writers: the order of selectors is the order of their numbers."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("LOCK TABLE pause_selector IN SHARE ROW EXCLUSIVE MODE"))


def _clear_marks(connection: Connection, scopes: Sequence[Scope]) -> int:
    rows = [_values(scope) for scope in scopes]
    named, clear = (_ROWS, _CLEAR) if any(None in row for row in rows) else (_ROWS_INSIDE, _CLEAR_INSIDE)
    with staged(connection, "incoming_scope", _SCOPE, rows):
        lock_rows(connection, named, "c")
        return connection.execute(sa.text(clear)).rowcount


def _values(scope: Scope) -> tuple[str | date | None, ...]:
    return (*scope.owner, scope.first, scope.last)
