"""Counts missing partitions by the state that keeps them from readers: one statement for all days of a table."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from penstock.db import schema
from penstock.db.bulk import same_key
from penstock.db.engine import Database
from penstock.db.expected_days import EXPECTED_DAYS, ranges_json
from penstock.db.schema import KEY
from penstock.db.types import UtcTimestamp
from penstock.expected import ExpectedRange
from penstock.partition import PartitionKey, RunId
from penstock.state import view_sql
from penstock.state.reader import StateReader
from penstock.state.row_records import key_of
from penstock.warehouse.readiness import WITHDRAWN, keys_json
from penstock.warehouse.withdrawn import not_ready


class MissingState(StrEnum):
    """The state of a partition that readers do not get, by the database alone: the first that applies."""

    OPEN = "open"  # a run works on it
    UNPUBLISHED = "unpublished"  # accepted, and not published
    WITHDRAWN = "withdrawn"  # derived from a demoted run
    TERMINAL = "terminal"  # failed, and no policy retries it
    REJECTED = "rejected"  # failed, and not retried automatically
    PAUSED = "paused"  # by an operator
    QUOTA = "quota"  # postponed, because its source asked for a pause
    AUTH = "auth"  # postponed, because its source refused the credentials
    RETRY = "retry"  # failed, with a time for the next attempt
    DUE = "due"  # the next run attempts it
    FROZEN = "frozen"  # its source no longer serves the day; not a state of the database


@dataclass(frozen=True, slots=True)
class MissingCount:
    """The missing partitions of one day with the same state: their number, the first of them, and when the last of
    their waits ends."""

    day: date
    state: MissingState
    count: int
    example: PartitionKey
    until: datetime | None = None
    run_id: RunId | None = None  # of OPEN ones


@dataclass(frozen=True, slots=True)
class RunProgress:
    """The partitions of a run, those with a verdict, and its start."""

    planned: int
    closed: int
    started_at: datetime


# The rule of `control.retry.next_retry` for a partition that is not exhausted.
_RETRY_AT = """CASE WHEN strategy IN ('quota', 'auth') AND status <> 'pending' AND COALESCE(failures, 0) = 0
    AND last_backfill_id IS NOT NULL THEN NULL ELSE next_run_at END"""
_STATE = f"""
CASE
    WHEN open_run_id IS NOT NULL THEN '{MissingState.OPEN}'
    WHEN status = 'success' AND is_withdrawn THEN '{MissingState.WITHDRAWN}'
    WHEN status = 'success' THEN '{MissingState.UNPUBLISHED}'
    WHEN status = 'failed' AND (terminal_at IS NOT NULL OR {{exhausted}}) THEN '{MissingState.TERMINAL}'
    WHEN status = 'failed' AND retry_at IS NULL THEN '{MissingState.REJECTED}'
    WHEN paused_at IS NOT NULL THEN '{MissingState.PAUSED}'
    WHEN retry_at > :now AND strategy = 'quota' THEN '{MissingState.QUOTA}'
    WHEN retry_at > :now AND strategy = 'auth' THEN '{MissingState.AUTH}'
    WHEN status = 'failed' THEN '{MissingState.RETRY}'
    ELSE '{MissingState.DUE}'
END"""
# Only missing partitions are joined with their states: most partitions are published.
_MISSING = f"""
missing AS MATERIALIZED (
    SELECT e.* FROM expected e WHERE NOT EXISTS (
        SELECT 1 FROM warehouse_pointer p WHERE {same_key("p", "e")} AND p.available
            AND NOT EXISTS (SELECT 1 FROM withdrawn w WHERE {same_key("w", "p")}))
)"""
_STATED = f"""
(
    SELECT *, {_STATE} AS state FROM (
        SELECT *, {_RETRY_AT} AS retry_at,
            EXISTS (SELECT 1 FROM withdrawn w WHERE {same_key("w", "view")}) AS is_withdrawn
        FROM view
    ) facts
) stated"""
_COUNTS = f"""
SELECT source, query_name, logical_date, state, open_run_id, COUNT(*) AS n, MIN(customer_id) AS customer_id,
    MAX(CASE WHEN state IN ('{MissingState.QUOTA}', '{MissingState.AUTH}', '{MissingState.RETRY}')
        THEN retry_at END) AS until
FROM {_STATED} GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5"""

_UNUSABLE = f"""
WHERE NOT EXISTS (
    SELECT 1 FROM warehouse_pointer p JOIN partition_state s ON {same_key("s", "p")}
    WHERE {same_key("p", "e")} AND p.available AND s.status = 'success' AND s.current_run_id = p.run_id
        AND NOT EXISTS (SELECT 1 FROM withdrawn w WHERE {same_key("w", "p")}))"""


class MissingReader:
    """Queries about partitions that readers do not get. A derived partition with a demoted input counts as missing."""

    def __init__(self, database: Database, state: StateReader) -> None:
        self._database = database
        self._state = state

    def counts(self, ranges: Sequence[ExpectedRange], now: datetime) -> list[MissingCount]:
        """Count the missing partitions of `ranges` at `now`, by table, day and state."""
        rows = self._rows(_COUNTS, ranges, now, {"until": UtcTimestamp()})
        return [
            MissingCount(
                row.logical_date,
                MissingState(row.state),
                row.n,
                PartitionKey(row.source, row.customer_id, row.query_name, row.logical_date),
                row.until,
                None if row.open_run_id is None else RunId(row.open_run_id),
            )
            for row in rows
        ]

    def keys(
        self, ranges: Sequence[ExpectedRange], states: Sequence[MissingState], now: datetime
    ) -> list[PartitionKey]:
        """The missing partitions of `ranges` that are in one of these states at `now`, in key order."""
        marks = ", ".join(f"'{state}'" for state in states)
        key = ", ".join(KEY)
        select = f"SELECT {key} FROM {_STATED} WHERE state IN ({marks}) ORDER BY {key}"
        return [key_of(row) for row in self._rows(select, ranges, now, {})]

    def _rows(
        self,
        select: str,
        ranges: Sequence[ExpectedRange],
        now: datetime,
        types: Mapping[str, sa.types.TypeEngine[Any]],
    ) -> Sequence[sa.Row[Any]]:
        common = f"{WITHDRAWN[self._database.dialect]}, {_MISSING}, {view_sql.view_over('missing')}"
        with self._database.snapshot() as connection:
            parameters = {"now": now, "withdrawn": keys_json(not_ready(connection, ranges))}
            statement = select.format(exhausted=self._state.exhausted())
            return self._state.query(
                statement, ranges, parameters, {"logical_date": sa.Date(), **types}, connection, common
            )

    def run_progress(self, run_ids: Collection[RunId]) -> dict[RunId, RunProgress]:
        """The progress of these runs."""
        run, attempt = schema.run.c, schema.partition_attempt.c
        statement = (
            sa.select(run.run_id, run.planned, run.started_at, sa.func.count(attempt.outcome), sa.func.count())
            .join(schema.partition_attempt, attempt.run_id == run.run_id)
            .where(run.run_id.in_(run_ids))
            .group_by(run.run_id, run.planned, run.started_at)
        )
        with self._database.snapshot() as connection:
            rows = connection.execute(statement).all() if run_ids else []
        return {RunId(row[0]): RunProgress(max(row[1], row[4]), row[3], row[2]) for row in rows}

    def unusable(self, ranges: Sequence[ExpectedRange]) -> list[PartitionKey]:
        """The partitions of `ranges` that a model may not read: their authoritative run is not published, or it was
        derived from a demoted run."""
        dialect = self._database.dialect
        key = ", ".join(f"e.{name}" for name in KEY)
        statement = (
            f"WITH RECURSIVE {EXPECTED_DAYS[dialect]}, {WITHDRAWN[dialect]} SELECT {key} FROM expected e{_UNUSABLE}"
        )
        with self._database.snapshot() as connection:
            parameters = {"ranges": ranges_json(ranges), "withdrawn": keys_json(not_ready(connection, ranges))}
            found = connection.execute(sa.text(statement).columns(logical_date=sa.Date()), parameters)
            return [PartitionKey(*row) for row in found]
