"""Work in progress: runs with the counts of their stages, and the attempts that ended in the last minutes.

Everything is read from one snapshot. The cost grows with the partitions of the runs in progress, not with the
workspace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.config.rates import RateLimit
from penstock.db import schema
from penstock.db.engine import Database
from penstock.db.lease import worker_lives
from penstock.lifecycle import Outcome, Stage
from penstock.partition_set import count_keys
from penstock.state.metrics import OrderCount, WorkerCounts, order_counts, quota_windows, worker_counts
from penstock.state.quota import QuotaWindow
from penstock.warehouse.publish_facts import PublishQueue, publish_queues

_MINUTE = timedelta(minutes=1)
_RUN, _ATTEMPT, _EVENT = schema.run, schema.partition_attempt, schema.event
_STAGE_EVENTS = ("TaskStarted", "SlicesExtracted", "RunCancelRequested")
_WAITING = """
SELECT s.current_run_id AS run_id, COUNT(*) AS n FROM publish_due d
CROSS JOIN partition_state s
WHERE s.source = d.source AND s.customer_id = d.customer_id AND s.query_name = d.query_name
    AND s.logical_date = d.logical_date AND s.status = 'success'
GROUP BY s.current_run_id
"""


@dataclass(frozen=True, slots=True)
class RunActivity:
    """One run that is in progress or has just ended. Counts are partitions."""

    run_id: str
    actor: str
    planned: int
    started_at: datetime
    finished_at: datetime | None
    has_worker: bool  # False if its worker is gone: nobody works on it
    is_cancelling: bool = False
    stage: str | None = None  # of the tasks that were started last
    open: int = 0
    extracted: int = 0
    extract_failed: int = 0  # rejected before there was anything to validate
    accepted: int = 0
    rejected: int = 0
    cancelled: int = 0
    waiting: int = 0  # accepted, and not published yet
    last_minute: int = 0  # accepted or rejected in the last minute

    @property
    def published(self) -> int:
        return max(0, self.accepted - self.waiting)


@dataclass(frozen=True, slots=True)
class RecentError:
    """Attempts of the window that ended with an error of one class: rejected, or cancelled without a verdict."""

    outcome: str
    error_class: str
    attempts: int


@dataclass(frozen=True, slots=True)
class Activity:
    """The work in progress at one moment."""

    at: datetime
    window: timedelta  # of `judged` and `errors`
    runs: Sequence[RunActivity]  # newest first
    judged: int  # partitions that were accepted or rejected in the window
    last_minute: int  # of them, in the last minute
    errors: Sequence[RecentError]
    quotas: Sequence[QuotaWindow]
    orders: Sequence[OrderCount]
    workers: Sequence[WorkerCounts]
    publish_queues: Sequence[PublishQueue]


@dataclass(slots=True)
class _Tally:
    """The attempts of the runs: by outcome, and recent ones."""

    by_run: dict[str, dict[str | None, int]] = field(default_factory=dict)
    extract_failed: dict[str, int] = field(default_factory=dict)  # by run
    last_minute: dict[str, int] = field(default_factory=dict)  # by run
    judged: int = 0
    errors: dict[tuple[str, str], int] = field(default_factory=dict)


class ActivityReader:
    """Reads the work in progress. It changes nothing."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def read(self, now: datetime, window: timedelta, limits: Mapping[str, Sequence[RateLimit]]) -> Activity:
        """The work in progress, and what ended in the window before `now`. `limits` are the counted limits of each
        source."""
        with self._database.snapshot() as connection:
            runs = _recent_runs(connection, now - window)
            tally = _tally(connection, list(runs), now, window)
            stages = _with_stages(connection, runs)
            return Activity(
                now,
                window,
                [_with_counts(run, tally) for run in stages],
                tally.judged,
                sum(tally.last_minute.values()),
                [RecentError(*key, count) for key, count in sorted(tally.errors.items(), key=lambda one: -one[1])],
                quota_windows(connection, limits),
                order_counts(connection),
                worker_counts(connection),
                publish_queues(connection),
            )


def _recent_runs(connection: Connection, since: datetime) -> dict[str, RunActivity]:
    """The runs that are not finished, or finished since a moment, newest first."""
    lives = sa.literal_column(worker_lives(connection.dialect.name, "run.worker_token"), sa.Boolean())
    columns = [_RUN.c[name] for name in ("run_id", "actor", "planned", "started_at", "finished_at")]
    recent = sa.or_(_RUN.c.finished_at.is_(None), _RUN.c.finished_at >= since)
    rows = connection.execute(sa.select(*columns, lives).where(recent).order_by(_RUN.c.run_id.desc()))
    return {row[0]: RunActivity(*row[:5], has_worker=bool(row[5])) for row in rows}


def _tally(connection: Connection, run_ids: Sequence[str], now: datetime, window: timedelta) -> _Tally:
    c, found = _ATTEMPT.c, _Tally()
    groups = (c.run_id, c.outcome, c.stage, c.error_class)
    statement = (
        sa.select(
            *groups,
            sa.func.count(),
            sa.func.count().filter(c.finished_at >= now - window),
            sa.func.count().filter(c.finished_at >= now - _MINUTE),
        )
        .where(c.run_id.in_(run_ids))
        .group_by(*groups)
    )
    for run_id, outcome, stage, error_class, total, recent, last_minute in connection.execute(statement):
        of_run = found.by_run.setdefault(run_id, {})
        of_run[outcome] = of_run.get(outcome, 0) + total
        if (outcome, stage) == (Outcome.FAILED, Stage.EXTRACT):
            found.extract_failed[run_id] = found.extract_failed.get(run_id, 0) + total
        if outcome in (Outcome.SUCCEEDED, Outcome.FAILED):
            found.judged += recent
            found.last_minute[run_id] = found.last_minute.get(run_id, 0) + last_minute
        if error_class is not None and recent:
            found.errors[outcome, error_class] = found.errors.get((outcome, error_class), 0) + recent
    return found


def _with_stages(connection: Connection, runs: Mapping[str, RunActivity]) -> list[RunActivity]:
    """The runs with their stage and the counts that only the ledger and the publication queue have."""
    statement = (
        sa.select(_EVENT.c.run_id, _EVENT.c.type, _EVENT.c.payload)
        .where(_EVENT.c.run_id.in_(list(runs)), _EVENT.c.type.in_(_STAGE_EVENTS))
        .order_by(_EVENT.c.position)
    )
    changes: dict[str, dict[str, Any]] = {run_id: {} for run_id in runs}
    for run_id, kind, payload in connection.execute(statement):
        mine = changes[run_id]
        if kind == "TaskStarted":
            mine["stage"] = payload["stage"]
        elif kind == "SlicesExtracted":
            mine["extracted"] = mine.get("extracted", 0) + count_keys(payload["slices"])
        else:
            mine["is_cancelling"] = True
    for row in connection.execute(sa.text(_WAITING)):
        if row.run_id in changes:
            changes[row.run_id]["waiting"] = row.n
    return [replace(run, **changes[run_id]) for run_id, run in runs.items()]


def _with_counts(run: RunActivity, tally: _Tally) -> RunActivity:
    counts = tally.by_run.get(run.run_id, {})
    return replace(
        run,
        open=counts.get(None, 0),
        accepted=counts.get(Outcome.SUCCEEDED, 0),
        rejected=counts.get(Outcome.FAILED, 0),
        cancelled=counts.get(Outcome.CANCELLED, 0),
        extract_failed=tally.extract_failed.get(run.run_id, 0),
        last_minute=tally.last_minute.get(run.run_id, 0),
    )
