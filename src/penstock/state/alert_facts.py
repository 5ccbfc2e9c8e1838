"""Bulk queries behind the rules of alerts: terminal partitions by cause, waiting publications, finished backfills."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import orjson
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.db import schema
from penstock.db.bulk import same_key
from penstock.db.engine import Database
from penstock.db.expected_days import EXPECTED_RANGES
from penstock.db.types import UtcTimestamp
from penstock.expected import ExpectedRange
from penstock.state import view_sql
from penstock.state.records import RetryLimits

# CROSS JOIN makes SQLite begin with the ranges, and search the failed partitions of each by the index of the status.
_TERMINAL = f"""
SELECT source, query_name, error_class, error_message, COUNT(*) AS partitions, MIN(updated_at) AS since,
    MIN(source || '/' || customer_id || '/' || query_name || '/' || CAST(logical_date AS TEXT)) AS example
FROM (
    SELECT s.source, s.customer_id, s.query_name, s.logical_date, s.error_message, s.updated_at, r.utc_offset,
        r.max_attempts, r.max_age, k.failures, k.terminal_at,
        (SELECT a.error_class FROM partition_attempt a WHERE {same_key("a", "s")} AND a.outcome = 'FAILED'
         ORDER BY a.attempt_no DESC LIMIT 1) AS error_class
    FROM ranges r CROSS JOIN partition_state s
    LEFT JOIN partition_control k ON {same_key("k", "s")}
    WHERE s.status = 'failed' AND r.source = s.source AND r.customer_id = s.customer_id
        AND r.query_name = s.query_name AND s.logical_date BETWEEN r.first_day AND r.last_day
) f
WHERE terminal_at IS NOT NULL OR COALESCE(failures >= max_attempts OR {{expires_at}} <= :now, false)
GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
"""


@dataclass(frozen=True, slots=True)
class TerminalFailures:
    """Terminal partitions of one query with the same error."""

    source: str
    query_name: str
    error_class: str | None
    error_message: str
    partitions: int
    since: datetime
    example: str


@dataclass(frozen=True, slots=True)
class WaitingPublications:
    """Partitions of one query whose pointers are behind their authority."""

    source: str
    query_name: str
    partitions: int
    since: datetime


@dataclass(frozen=True, slots=True)
class FinishedBackfill:
    """A backfill that ended."""

    backfill_id: str
    total: int
    created_by: str
    finished_at: datetime


class AlertFacts:
    """Answers each question with one statement on one snapshot, whatever the number of partitions."""

    def __init__(self, database: Database, limits: Mapping[str, RetryLimits]) -> None:
        """`limits` are the retry policies by query or model."""
        self._database = database
        self._limits = limits

    def terminal(self, ranges: Sequence[ExpectedRange], now: datetime) -> list[TerminalFailures]:
        """The expected partitions that are terminal, as `penstock state terminal` lists them, by their error."""
        dialect = self._database.dialect
        text = f"WITH {EXPECTED_RANGES[dialect]} {_TERMINAL.format(expires_at=view_sql.EXPIRES_AT[dialect])}"
        statement = sa.text(text).bindparams(sa.bindparam("now", type_=UtcTimestamp())).columns(since=UtcTimestamp())
        with self._database.snapshot() as connection:
            failing = _with_failures(connection)
            spans = [r for r in ranges if (r.source, r.customer_id, r.query_name) in failing]
            if not spans:
                return []
            rows = connection.execute(statement, {"ranges": self._as_json(spans), "now": now})
            return [TerminalFailures(*row) for row in rows]

    def publications(self, before: datetime) -> list[WaitingPublications]:
        """The partitions that have waited for publication since `before`, by query."""
        due = schema.publish_due
        statement = (
            sa.select(
                due.c.source,
                due.c.query_name,
                sa.func.count().label("partitions"),
                sa.type_coerce(sa.func.min(due.c.since), UtcTimestamp).label("since"),
            )
            .where(due.c.since <= before)
            .group_by(due.c.source, due.c.query_name)
            .order_by(due.c.source, due.c.query_name)
        )
        with self._database.snapshot() as connection:
            return [WaitingPublications(**row._mapping) for row in connection.execute(statement)]

    def finished_backfills(self, since: datetime) -> list[FinishedBackfill]:
        """The backfills that ended at `since` or later, and were not cancelled."""
        table = schema.backfill
        columns = [table.c[name] for name in ("backfill_id", "total", "created_by", "finished_at")]
        statement = sa.select(*columns).where(table.c.status == "finished", table.c.finished_at >= since)
        with self._database.snapshot() as connection:
            return [FinishedBackfill(**row._mapping) for row in connection.execute(statement.order_by("backfill_id"))]

    def _as_json(self, ranges: Sequence[ExpectedRange]) -> str:
        ends = {name: (limit.max_attempts, int(limit.max_age.total_seconds())) for name, limit in self._limits.items()}
        rows = [
            (
                *(r.source, r.customer_id, r.query_name, r.first, r.last, r.over or r.last, r.utc_offset),
                *ends.get(r.query_name, (None, None)),
                None,
            )
            for r in ranges
            if r.first <= r.last
        ]
        return orjson.dumps(rows).decode()


def _with_failures(connection: Connection) -> set[tuple[str, str, str]]:
    """The customers and queries with a failed partition."""
    state = schema.partition_state
    columns = (state.c.source, state.c.customer_id, state.c.query_name)
    return {(*row,) for row in connection.execute(sa.select(*columns).where(state.c.status == "failed").distinct())}
