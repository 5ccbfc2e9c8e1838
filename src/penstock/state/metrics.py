"""The facts of the state database for metrics and live views: all from one snapshot, one statement per subject."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.config.rates import RateLimit
from penstock.db import schema
from penstock.db.engine import Database
from penstock.db.lease import LEASE_SECONDS, seconds_ago, worker_lives
from penstock.db.types import UtcTimestamp
from penstock.ledger.read import LedgerReader
from penstock.state.attempt_totals import AttemptTotals, ClosedAttempts
from penstock.state.quota import QuotaWindow
from penstock.warehouse.publish_facts import LastPublication, PublishQueue, last_publication, publish_queues

MOST_BACKFILLS = 50  # unfinished backfills with metrics of their own, the most urgent first
_LOST_SECONDS = 24 * 3600  # how long a worker without a heartbeat counts as lost; it never returns
_ATTEMPT, _RUN, _WORKER, _ORDER = schema.partition_attempt, schema.run, schema.worker, schema.run_order
_BACKFILL, _CHUNK = schema.backfill, schema.backfill_chunk


@dataclass(frozen=True, slots=True)
class OpenAttempts:
    """The open attempts at one table, of workers that are alive or of workers that are gone."""

    table: str
    has_worker: bool
    attempts: int
    oldest: datetime


@dataclass(frozen=True, slots=True)
class OpenRuns:
    """The unfinished runs of workers that are alive, or of workers that are gone."""

    has_worker: bool
    runs: int
    oldest: datetime


@dataclass(frozen=True, slots=True)
class LastRun:
    """The run that ended last."""

    started_at: datetime
    finished_at: datetime


@dataclass(frozen=True, slots=True)
class WorkerCounts:
    """Workers of one kind: alive, and lost without deregistering in the last day; the newest heartbeat of any, and the
    end of the newest round of a control loop."""

    is_control_loop: bool
    alive: int
    lost: int
    last_heartbeat: datetime | None
    last_round: datetime | None


@dataclass(frozen=True, slots=True)
class BackfillProgress:
    """An unfinished backfill: its partitions, those of finished chunks and those of chunks in progress."""

    backfill_id: str
    total: int
    finished: int
    claimed: int


@dataclass(frozen=True, slots=True)
class OrderCount:
    """The orders of one state, and the time of the oldest."""

    state: str
    orders: int
    oldest: datetime


@dataclass(frozen=True, slots=True)
class StateFacts:
    """The facts of one snapshot."""

    closed: ClosedAttempts
    open_attempts: Sequence[OpenAttempts]
    open_runs: Sequence[OpenRuns]
    last_run: LastRun | None
    workers: Sequence[WorkerCounts]
    publish_queues: Sequence[PublishQueue]
    last_publication: LastPublication | None
    open_breakers: frozenset[str]  # sources
    quotas: Sequence[QuotaWindow]
    backfills: Sequence[BackfillProgress]
    orders: Sequence[OrderCount]
    newest_position: int  # of the ledger


class StateMetrics:
    """Reads the facts. Remembers the totals of closed attempts between readings. Safe in several threads."""

    def __init__(self, database: Database, ledger: LedgerReader) -> None:
        self._database = database
        self._totals = AttemptTotals(ledger)

    def read(self, limits: Mapping[str, Sequence[RateLimit]]) -> StateFacts:
        """The facts now. `limits` are the counted limits of each source."""
        with self._database.snapshot() as connection:
            return StateFacts(
                self._totals.read(connection),
                _open_attempts(connection),
                _open_runs(connection),
                _last_run(connection),
                worker_counts(connection),
                publish_queues(connection),
                last_publication(connection),
                frozenset(connection.scalars(_OPEN_BREAKERS)),
                quota_windows(connection, limits),
                _backfills(connection),
                order_counts(connection),
                connection.scalar(_NEWEST_POSITION) or 0,
            )


_OPEN_BREAKERS = sa.select(schema.source_breaker.c.source).where(schema.source_breaker.c.opened_at.is_not(None))
_NEWEST_POSITION = sa.select(sa.func.max(schema.event.c.position))


def _has_worker(connection: Connection, column: str) -> sa.ColumnElement[Any]:
    return sa.literal_column(worker_lives(connection.dialect.name, column), sa.Boolean())


def _oldest(column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    return sa.func.min(column, type_=UtcTimestamp())


def _open_attempts(connection: Connection) -> list[OpenAttempts]:
    """Workers are joined after the attempts are counted by worker: there are many attempts and few workers."""
    c = _ATTEMPT.c
    by_worker = (
        sa.select(
            c.source, c.query_name, c.worker_token, sa.func.count().label("n"), _oldest(c.issued_at).label("oldest")
        )
        .where(c.outcome.is_(None))
        .group_by(c.source, c.query_name, c.worker_token)
        .subquery("held")
    )
    lives = _has_worker(connection, "held.worker_token").label("lives")
    held = by_worker.c
    statement = (
        sa.select(held.source, held.query_name, lives, sa.func.sum(held.n), sa.func.min(held.oldest))
        .group_by(held.source, held.query_name, sa.text("lives"))
        .order_by(held.source, held.query_name, sa.text("lives"))
    )
    rows = connection.execute(statement)
    return [OpenAttempts(f"{source}.{name}", bool(has), int(n), oldest) for source, name, has, n, oldest in rows]


def _open_runs(connection: Connection) -> list[OpenRuns]:
    lives = _has_worker(connection, "run.worker_token").label("lives")
    statement = (
        sa.select(lives, sa.func.count(), _oldest(_RUN.c.started_at))
        .where(_RUN.c.finished_at.is_(None))
        .group_by(sa.text("lives"))
        .order_by(sa.text("lives"))
    )
    return [OpenRuns(bool(has), count, oldest) for has, count, oldest in connection.execute(statement)]


def _last_run(connection: Connection) -> LastRun | None:
    newest = sa.select(sa.func.max(_RUN.c.finished_at)).scalar_subquery()
    statement = sa.select(_RUN.c.started_at, _RUN.c.finished_at).where(_RUN.c.finished_at == newest).limit(1)
    row = connection.execute(statement).one_or_none()
    return None if row is None else LastRun(row.started_at, row.finished_at)


def worker_counts(connection: Connection) -> list[WorkerCounts]:
    """The workers of each kind that has one."""
    dialect, beat = connection.dialect.name, _WORKER.c.heartbeat_at
    running, leased = _WORKER.c.stopped_at.is_(None), beat >= seconds_ago(dialect, LEASE_SECONDS)
    recent = beat >= seconds_ago(dialect, _LOST_SECONDS)
    statement = sa.select(
        _WORKER.c.is_control_loop,
        sa.func.count().filter(running, leased),
        sa.func.count().filter(running, sa.not_(leased), recent),
        sa.func.max(beat, type_=UtcTimestamp()),
        sa.func.max(_WORKER.c.round_at, type_=UtcTimestamp()),
    ).group_by(_WORKER.c.is_control_loop)
    return [WorkerCounts(bool(loop), *counts) for loop, *counts in connection.execute(statement)]


def quota_windows(connection: Connection, limits: Mapping[str, Sequence[RateLimit]]) -> list[QuotaWindow]:
    """The present window of each counted limit, by the clock of the database. A window without a row is unused."""
    if not any(limits.values()):
        return []
    now = connection.execute(
        sa.select(sa.type_coerce(seconds_ago(connection.dialect.name, 0), UtcTimestamp()))
    ).scalar_one()
    rows = connection.execute(sa.select(schema.source_quota))
    known = {(row.source, row.window_name, row.window_start): row for row in rows}
    found = []
    for source, mine in sorted(limits.items()):
        for limit in mine:
            start, budget = limit.window.start(now), int(limit.requests)
            row = known.get((source, limit.window.value, start))
            claimed, used = (0, 0) if row is None else (row.claimed, row.used)
            found.append(QuotaWindow(source, limit.window, start, budget, claimed, used))
    return found


def _backfills(connection: Connection) -> list[BackfillProgress]:
    done = _CHUNK.c.finished_at.is_not(None)

    def partitions(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[Any]:
        return sa.func.coalesce(sa.func.sum(_CHUNK.c.partitions).filter(condition), 0)

    statement = (
        sa.select(_BACKFILL.c.backfill_id, _BACKFILL.c.total, partitions(done), partitions(sa.not_(done)))
        .select_from(_BACKFILL.outerjoin(_CHUNK, _CHUNK.c.backfill_id == _BACKFILL.c.backfill_id))
        .where(_BACKFILL.c.finished_at.is_(None))
        .group_by(_BACKFILL.c.backfill_id)
        .order_by(_BACKFILL.c.priority.desc(), _BACKFILL.c.backfill_id)
        .limit(MOST_BACKFILLS)
    )
    return [
        BackfillProgress(one, total, int(end), int(held)) for one, total, end, held in connection.execute(statement)
    ]


def order_counts(connection: Connection) -> list[OrderCount]:
    """The orders of each state that has any."""
    rows = connection.execute(
        sa.select(_ORDER.c.state, sa.func.count(), _oldest(_ORDER.c.created_at)).group_by(_ORDER.c.state)
    )
    return [OrderCount(state, count, oldest) for state, count, oldest in rows]
