"""Totals of closed attempts by table, outcome and error class: monotone, and cheap to keep up to date.

A closed attempt is never deleted or reopened, so the totals are counts of rows. Counting them reads every row: it is
done once. After that, each reading adds the events of closed attempts since the last one. When events were exported
from the database in between, the rows are counted again.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.db import schema
from penstock.ledger.read import LedgerReader
from penstock.lifecycle import LOST_WORKER
from penstock.projections.fact import Cursor

_EVENT, _ATTEMPT = schema.event, schema.partition_attempt
_FIELDS = ("asset_key", "outcome", "error_class")
_IS_LOST = _ATTEMPT.c.error_message.like(f"{LOST_WORKER}%")


class ClosedAs(NamedTuple):
    """How attempts at a table were closed; an accepted attempt has no error class."""

    table: str
    outcome: str
    error_class: str | None


@dataclass(frozen=True, slots=True)
class ClosedAttempts:
    """The number of closed attempts, and of those that were closed because their worker died."""

    counts: Mapping[ClosedAs, int]
    lost: int


@dataclass(slots=True)
class _Known:
    cursor: Cursor
    segments: int  # exported segments of the ledger
    counts: Counter[ClosedAs]
    lost: dict[str, int] = field(default_factory=dict)  # by run


class AttemptTotals:
    """Remembers the totals between readings. Safe in several threads."""

    def __init__(self, ledger: LedgerReader) -> None:
        self._ledger = ledger
        self._lock = threading.Lock()
        self._known: _Known | None = None

    def read(self, connection: Connection) -> ClosedAttempts:
        """The totals in a snapshot. An event that others may still precede is counted by a later reading."""
        with self._lock:
            segments = connection.scalar(sa.select(sa.func.count()).select_from(schema.ledger_segment)) or 0
            newest = self._ledger.newest_in(connection)
            if self._known is None or self._known.segments != segments or newest < self._known.cursor:
                self._known = self._counted(connection, newest, segments)
            else:
                self._advance(connection, self._known, newest)
            return ClosedAttempts(dict(self._known.counts), sum(self._known.lost.values()))

    def _counted(self, connection: Connection, newest: Cursor, segments: int) -> _Known:
        """The totals up to the newest event, from the rows of all attempts."""
        lost = sa.case((_IS_LOST, _ATTEMPT.c.run_id)).label("lost")
        groups = (_ATTEMPT.c.source, _ATTEMPT.c.query_name, _ATTEMPT.c.outcome, _ATTEMPT.c.error_class, lost)
        statement = (
            sa.select(*groups, sa.func.count()).where(_ATTEMPT.c.outcome.is_not(None)).group_by(*groups)  # one scan
        )
        known = _Known(newest, segments, Counter())
        for source, query_name, outcome, error_class, run_id, count in connection.execute(statement):
            known.counts[ClosedAs(f"{source}.{query_name}", outcome, error_class)] += count
            if run_id is not None:
                known.lost[run_id] = known.lost.get(run_id, 0) + count
        # Rows of transactions that the cursor does not include yet are counted with their events.
        known.counts -= self._closed_by(connection, [self._ledger.beyond(newest)])
        return known

    def _advance(self, connection: Connection, known: _Known, newest: Cursor) -> None:
        if newest == known.cursor:
            return
        new = [self._ledger.beyond(known.cursor), sa.not_(self._ledger.beyond(newest))]
        known.counts += self._closed_by(connection, new)
        known.lost |= self._lost_in(connection, new)
        known.cursor = newest

    def _closed_by(self, connection: Connection, where: list[sa.ColumnElement[bool]]) -> Counter[ClosedAs]:
        """Count the attempts that these events closed."""
        fields = [_payload(connection, name).label(name) for name in _FIELDS]
        closed = [*where, _EVENT.c.type == "TaskFinished"]
        counted = sa.select(*fields, sa.func.count().label("attempts")).where(*closed).group_by(*_FIELDS)
        rows = connection.execute(counted).all()
        return Counter({ClosedAs(row.asset_key, row.outcome, row.error_class): row.attempts for row in rows})

    def _lost_in(self, connection: Connection, where: list[sa.ColumnElement[bool]]) -> dict[str, int]:
        """Count the lost attempts of each run in which these events closed one with an internal error."""
        closed = [*where, _EVENT.c.type == "TaskFinished", _payload(connection, "error_class") == "internal"]
        runs = sa.select(_EVENT.c.run_id).where(*closed).distinct()
        statement = (
            sa.select(_ATTEMPT.c.run_id, sa.func.count().label("lost"))
            .where(_ATTEMPT.c.run_id.in_(runs), _IS_LOST)
            .group_by(_ATTEMPT.c.run_id)
        )
        return {row.run_id: row.lost for row in connection.execute(statement)}


def _payload(connection: Connection, name: str) -> sa.ColumnElement[str]:
    """A text in the payload of an event."""
    if connection.dialect.name == "sqlite":
        return sa.literal_column(f"json_extract(event.payload, '$.{name}')", sa.Text())
    return sa.literal_column(f"event.payload ->> '{name}'", sa.Text())
