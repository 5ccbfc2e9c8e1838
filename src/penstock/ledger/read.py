"""Reads the ledger: from a cursor, without skipping events that commit late, or all events of one run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from penstock.db import schema
from penstock.db.engine import Database
from penstock.db.migrate import FOREIGN_EVENTS
from penstock.errors import PenstockError
from penstock.ledger.segments import SegmentReader
from penstock.partition import PartitionKey
from penstock.projections.fact import OF_A_RUN, Cursor, Fact, understood

_EVENT = schema.event
# SQLite has one writer at a time and no transaction ids: all events count as one finished transaction.
_TRANSACTION = sa.func.coalesce(_EVENT.c.transaction_id, 0)
_COLUMNS = [
    *(_EVENT.c[name] for name in ("position", "event_id", "type", "version", "occurred_at", "run_id")),
    sa.cast(_EVENT.c.payload, sa.Text).label("payload"),  # parsed here once, not by the driver
    _TRANSACTION.label("transaction"),
]
_LAST_ID = 2**63 - 1  # no transaction has this id
_FROM_ATTEMPT = ("contract_fingerprint", "content_digest")
# Every transaction that may still add events has this id or a higher one.
_HORIZON = sa.text("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")


class LedgerReader:
    """The events of the database, and the exported segments before them."""

    def __init__(self, database: Database, segments: SegmentReader) -> None:
        self._database = database
        self._segments = segments

    def after(self, cursor: Cursor, limit: int) -> tuple[list[Fact], Cursor]:
        """Return the next events and the cursor after them. Stops before an event that others may still precede."""
        with self._database.snapshot() as connection:
            where = [self.beyond(cursor)]
            if self._database.dialect == "postgresql":
                self._check_cluster(connection)
                where.append(_EVENT.c.transaction_id < connection.scalar(_HORIZON))
            rows = self._select(connection, where, limit)
        return self._completed(_facts(rows)), _behind(rows, cursor)

    def of_types(self, cursor: Cursor, types: Sequence[str]) -> tuple[list[Fact], Cursor]:
        """Return all events of these types after a cursor, and the cursor after the last event of any type. Stops
        before an event that others may still precede, as `after` does."""
        with self._database.snapshot() as connection:
            where = [self.beyond(cursor)]
            if self._database.dialect == "postgresql":
                self._check_cluster(connection)
                where.append(_EVENT.c.transaction_id < connection.scalar(_HORIZON))
            newest_first = [column.desc() for column in self._order()]
            columns = (_TRANSACTION.label("transaction"), _EVENT.c.position)
            statement = sa.select(*columns).where(*where).order_by(*newest_first).limit(1)
            last: Sequence[Row[Any]] = connection.execute(statement).all()  # type: ignore[assignment]
            rows = self._select(connection, [*where, _EVENT.c.type.in_(types)], None) if last else []
        return _facts(rows), _behind(last, cursor)

    def newest(self) -> Cursor:
        """Return the cursor after the last event that `after` returns. While it is the same, every projection of the
        ledger is the same."""
        with self._database.snapshot() as connection:
            return self.newest_in(connection)

    def newest_in(self, connection: Connection) -> Cursor:
        """Return the cursor of `newest` in a snapshot of the caller."""
        columns = (_TRANSACTION.label("transaction"), _EVENT.c.position)
        if self._database.dialect == "sqlite":
            statement = sa.select(*columns).order_by(_EVENT.c.position.desc())
        else:
            settled = _EVENT.c.transaction_id < connection.scalar(_HORIZON)
            by_transaction = (_EVENT.c.transaction_id.desc(), _EVENT.c.position.desc())
            statement = sa.select(*columns).where(settled).order_by(*by_transaction)
        row = connection.execute(statement.limit(1)).one_or_none()
        return Cursor(0, 0) if row is None else Cursor(row.transaction, row.position)

    def _check_cluster(self, connection: Connection) -> None:
        if connection.scalar(FOREIGN_EVENTS):
            raise PenstockError(
                "the events in this database come from another PostgreSQL cluster (was it restored from a dump?):"
                " run `penstock db migrate`, then `penstock ledger rebuild`"
            )

    def exported(self) -> Iterator[list[Fact]]:
        """Yield the exported events, segment by segment."""
        segment = schema.ledger_segment
        with self._database.snapshot() as connection:
            rows = connection.execute(sa.select(segment).order_by(segment.c.first_position)).all()
        for row in rows:
            yield self._completed(self._segments.facts(row.path, row.sha256))

    def _completed(self, facts: list[Fact]) -> list[Fact]:
        """Fill in the code version and the content digest of acceptances that the first releases recorded without
        them, from their attempts."""
        lacking = [at for at, fact in enumerate(facts) if fact.type == "AuthorityChanged" and _lacks_content(fact)]
        if not lacking:
            return facts
        attempt, known = schema.partition_attempt, dict[tuple[str, str], dict[str, str]]()
        runs = sorted({facts[at].run_id or "" for at in lacking})
        columns = [*(attempt.c[name] for name in schema.KEY), *(attempt.c[name] for name in _FROM_ATTEMPT)]
        with self._database.snapshot() as connection:
            for row in connection.execute(sa.select(attempt.c.run_id, *columns).where(attempt.c.run_id.in_(runs))):
                key = PartitionKey(row.source, row.customer_id, row.query_name, row.logical_date)
                known[row.run_id, str(key)] = {
                    "code_version": row.contract_fingerprint,
                    "content_digest": row.content_digest,
                }
        completed = list(facts)
        for at in lacking:
            fact = facts[at]
            content = known.get((fact.run_id or "", fact.payload["partition_key"]), {})
            completed[at] = fact._replace(payload={**fact.payload, **content})
        return completed

    def between(self, first: int, last: int, limit: int) -> list[Fact]:
        """Return events by position, both ends included."""
        with self._database.snapshot() as connection:
            where = _EVENT.c.position.between(first, last)
            statement = sa.select(*_COLUMNS).where(where).order_by(_EVENT.c.position).limit(limit)
            return _facts(connection.execute(statement))

    def of_run(self, run_id: str, until: Cursor | None = None) -> list[Fact]:
        """Return all events of one run up to a cursor, from the database and from exported segments."""
        where = [_EVENT.c.run_id == run_id]
        if until is not None:
            where.append(sa.not_(self.beyond(until)))
        with self._database.snapshot() as connection:
            rows = self._select(connection, where, None)
        found = _facts(rows)
        if any(fact.type == "PlanCreated" for fact in found):
            return found
        return [*(fact for page in self.exported() for fact in page if fact.run_id == run_id), *found]

    def news_of_run(self, run_id: str, cursor: Cursor) -> tuple[list[Fact], Cursor]:
        """Return the new events about the tasks of one run, including events that others may still precede. Those are
        returned again by the next call."""
        with self._database.snapshot() as connection:
            where = [_EVENT.c.run_id == run_id, _EVENT.c.type.in_(OF_A_RUN), self.beyond(cursor)]
            rows = self._select(connection, where, None)
            settled = rows
            if self._database.dialect == "postgresql":
                horizon = connection.scalar(_HORIZON)
                settled = [row for row in rows if row.transaction < horizon]
        return _facts(rows), _behind(settled, cursor)

    def tail(
        self, limit: int, *, after: int | None = None, run_id: str | None = None, kind: str | None = None
    ) -> list[dict[str, Any]]:
        """Return the newest events by position, with their whole envelope, including events that others may still
        precede; or the events of `settled` after a position."""
        if after is not None:
            return self.settled(limit, after=after, run_id=run_id, kind=kind)
        newest = sa.select(_EVENT).where(*_about(run_id, kind)).order_by(_EVENT.c.position.desc()).limit(limit)
        with self._database.snapshot() as connection:
            return [dict(row._mapping) for row in connection.execute(newest)][::-1]

    def settled(
        self, limit: int, *, after: Cursor | int | None = None, run_id: str | None = None, kind: str | None = None
    ) -> list[dict[str, Any]]:
        """Return the newest events, or the next ones after a cursor or after the event at a position, in the order of
        the ledger, with their whole envelope. Stops before an event that others may still precede: a reader that
        continues after the last event that it got misses none."""
        where = _about(run_id, kind)
        order = self._order() if after is not None else tuple(column.desc() for column in self._order())
        with self._database.snapshot() as connection:
            if after is not None:
                cursor = self._cursor_at(connection, after) if isinstance(after, int) else after
                where.append(self.beyond(cursor))
            if self._database.dialect == "postgresql":
                self._check_cluster(connection)
                where.append(_EVENT.c.transaction_id < connection.scalar(_HORIZON))
            statement = sa.select(_EVENT).where(*where).order_by(*order).limit(limit)
            rows = [dict(row._mapping) for row in connection.execute(statement)]
        return rows if after is not None else rows[::-1]

    def _cursor_at(self, connection: Connection, position: int) -> Cursor:
        """The cursor after the event at a position. If there is none, for example because it was exported, a cursor
        before every event at a higher position."""
        if self._database.dialect == "sqlite":
            return Cursor(0, position)
        transaction = connection.scalar(sa.select(_TRANSACTION).where(_EVENT.c.position == position))
        if transaction is None:
            higher = sa.select(sa.func.min(_EVENT.c.transaction_id)).where(_EVENT.c.position > position)
            transaction = connection.scalar(higher)
        return Cursor(_LAST_ID if transaction is None else transaction, position)

    def count(self, *, run_id: str | None = None, kind: str | None = None) -> int:
        """Count the events in the database, optionally of one run or one type."""
        statement = sa.select(sa.func.count()).select_from(_EVENT).where(*_about(run_id, kind))
        with self._database.snapshot() as connection:
            return connection.scalar(statement) or 0

    def beyond(self, cursor: Cursor) -> sa.ColumnElement[bool]:
        """The SQL condition that an event comes after a cursor."""
        if self._database.dialect == "sqlite":
            return _EVENT.c.position > cursor.position
        return sa.tuple_(_EVENT.c.transaction_id, _EVENT.c.position) > sa.tuple_(*map(sa.literal, cursor))

    def _select(self, connection: Connection, where: Sequence[Any], limit: int | None) -> Sequence[Row[Any]]:
        return connection.execute(sa.select(*_COLUMNS).where(*where).order_by(*self._order()).limit(limit)).all()

    def _order(self) -> tuple[sa.ColumnElement[Any], ...]:
        sqlite = self._database.dialect == "sqlite"
        return (_EVENT.c.position,) if sqlite else (_EVENT.c.transaction_id, _EVENT.c.position)


def _about(run_id: str | None, kind: str | None) -> list[sa.ColumnElement[bool]]:
    of_run = [] if run_id is None else [_EVENT.c.run_id == run_id]
    return of_run if kind is None else [*of_run, _EVENT.c.type == kind]


def _lacks_content(fact: Fact) -> bool:
    return "code_version" not in fact.payload and understood(fact)


def _behind(rows: Sequence[Row[Any]], cursor: Cursor) -> Cursor:
    return Cursor(rows[-1].transaction, rows[-1].position) if rows else cursor


def _facts(rows: Iterable[Any]) -> list[Fact]:
    return [
        Fact(position, event_id, kind, version, occurred_at, run_id, orjson.loads(payload))
        for position, event_id, kind, version, occurred_at, run_id, payload, _ in rows
    ]
