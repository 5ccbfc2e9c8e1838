"""Pauses by selector on record: one row each, written together with the line in the audit log."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.clock import Clock
from penstock.db import schema
from penstock.db.bulk import Columns, staged
from penstock.db.engine import Database
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

_MARKED = """
(c.paused_at IS NOT NULL OR c.held_at IS NOT NULL) AND EXISTS (SELECT 1 FROM incoming_scope i
    WHERE (i.source IS NULL OR i.source = c.source) AND (i.customer_id IS NULL OR i.customer_id = c.customer_id)
    AND (i.query_name IS NULL OR i.query_name = c.query_name)
    AND (i.first_date IS NULL OR i.first_date <= c.logical_date)
    AND (i.last_date IS NULL OR i.last_date >= c.logical_date))
"""

_LOCK = f"""
SELECT 1 FROM partition_control c WHERE {_MARKED}
ORDER BY c.source, c.customer_id, c.query_name, c.logical_date FOR UPDATE OF c
"""

_CLEAR = f"""
UPDATE partition_control AS c SET paused_at = NULL, paused_by = NULL, paused_reason = NULL, held_at = NULL,
    held_by = NULL, held_reason = NULL
WHERE {_MARKED}
"""

Count = Callable[[Connection], int]


class PauseStore:
    """Pauses and resumes scopes. Each says how many of the partitions that are expected now changed, which `count`
    answers inside the transaction. A call that changes nothing returns None and leaves no line in the audit log."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def pause(self, scopes: Sequence[Scope], reason: str | None, entry: AuditEntry, count: Count) -> int | None:
        """Nothing attempts the partitions of these scopes until they are resumed; days that come later included."""

        def work(connection: Connection) -> int | None:
            _one_at_a_time(connection)
            affected, now = count(connection), self._clock()
            if not _apply(connection, paused_by, scopes, {"paused": True, "since": now, "actor": entry.actor}, reason):
                return None
            record_audit(connection, entry, affected, "done", now)
            return affected

        return self._database.transact(work)

    def resume(self, scopes: Sequence[Scope], entry: AuditEntry, count: Count) -> int | None:
        """Takes back pauses as far as they lie in these scopes, and the holds that rollback and approve leave."""

        def work(connection: Connection) -> int | None:
            _one_at_a_time(connection)
            affected, now = count(connection), self._clock()
            cut = _apply(connection, resumed_by, scopes, {"paused": False, "since": now, "actor": entry.actor}, None)
            if not _clear_marks(connection, scopes) and not cut:
                return None
            record_audit(connection, entry, affected, "done", now)
            return affected

        return self._database.transact(work)


def _apply(
    connection: Connection,
    change_for: Callable[[Sequence[PauseSelector], Scope], Change],
    scopes: Sequence[Scope],
    mark: Mapping[str, Any],
    reason: str | None,
) -> bool:
    """Write what is needed; False if nothing is."""
    existing = read_selectors(connection)
    changes = [(scope, change_for(existing, scope)) for scope in scopes]
    obsolete = sorted({number for _, change in changes for number in change.obsolete})
    rows = [
        {**dict(zip(_SCOPE, (*scope.owner, scope.first, scope.last), strict=True)), **mark, "reason": reason}
        for scope, change in changes
        if change.inserts
    ]
    if obsolete:
        gone = _SELECTOR.c.selector_no.in_(obsolete)
        connection.execute(sa.update(_SELECTOR).where(gone).values(ended_at=mark["since"]))
    if rows:
        connection.execute(sa.insert(_SELECTOR), rows)
    return bool(obsolete or rows)


def _one_at_a_time(connection: Connection) -> None:
    """The order of selectors is the order in which they were written: two writers never overtake each other."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("LOCK TABLE pause_selector IN SHARE ROW EXCLUSIVE MODE"))


def _clear_marks(connection: Connection, scopes: Sequence[Scope]) -> int:
    rows = [(*scope.owner, scope.first, scope.last) for scope in scopes]
    with staged(connection, "incoming_scope", _SCOPE, rows):
        if connection.dialect.name == "postgresql":
            connection.execute(sa.text(_LOCK))
        return connection.execute(sa.text(_CLEAR)).rowcount
