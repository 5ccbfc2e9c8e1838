"""Read-only queries on partition state: rows of state and attempts, and the expected partitions that have none."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from datetime import date, datetime
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from penstock.db import schema
from penstock.db.bulk import key_values, same_key
from penstock.db.engine import Database
from penstock.db.expected_days import DAY_BOUNDS, EXPECTED_DAYS, growing_parts, ranges_json
from penstock.db.lease import worker_lives
from penstock.db.types import UtcTimestamp
from penstock.expected import ExpectedRange
from penstock.lifecycle import Outcome, PartitionStatus, PlanReason
from penstock.partition import AttemptKey, PartitionKey, RunId
from penstock.state import view_sql
from penstock.state.pause_scope import PauseSelectors
from penstock.state.pause_selectors import read_selectors
from penstock.state.records import (
    Attempt,
    Candidate,
    FailedPartition,
    PartitionState,
    PartitionView,
    RetryLimits,
)
from penstock.state.row_records import attempt_of, key_of, state_of, view_of
from penstock.state.view_sql import Order


class StateReader:
    """Queries about partitions, each answered from one snapshot of the database."""

    def __init__(self, database: Database, limits: Mapping[str, RetryLimits] | None = None) -> None:
        """`limits` are the retry policies by query or model; without one, retries never end."""
        self._database = database
        self.limits = limits or {}

    def views(
        self,
        ranges: Sequence[ExpectedRange],
        *,
        status: PartitionStatus | None = None,
        explicit: bool = False,
        last_failed: bool = False,
        marked: bool = False,
        terminal_at: datetime | None = None,
        paused: bool | None = None,
        after: PartitionKey | None = None,
        limit: int | None = None,
    ) -> list[PartitionView]:
        """Return the expected partitions of `ranges` in key order; those without a row are implicitly pending. Filters:
        only `explicit` ones (with a row or an open attempt), only those `marked` by an operator as paused or held, only
        failed ones that are terminal at a moment."""
        terminal = self._terminal(terminal_at)
        where, parameters = view_sql.filters(status, explicit, last_failed, after, marked, paused, terminal)
        tail = "" if limit is None else f" LIMIT {int(limit)}"
        expires = view_sql.EXPIRES_AT[self._database.dialect]
        order = "source, customer_id, query_name, logical_date"
        select = f"SELECT *, {expires} AS expires_at FROM view{where} ORDER BY {order}{tail}"
        if limit is None:
            return [view_of(row) for row in self.query(select, ranges, parameters, view_sql.VIEW_TYPES)]
        found: list[PartitionView] = []
        with self._database.snapshot() as connection:
            for part in growing_parts(ranges, after, 4 * limit):
                rows = self.query(select, part, parameters, view_sql.VIEW_TYPES, connection)
                found += [view_of(row) for row in rows]
                if len(found) >= limit:
                    break
        return found[:limit]

    def count(
        self,
        ranges: Sequence[ExpectedRange],
        *,
        status: PartitionStatus | None = None,
        explicit: bool = False,
        last_failed: bool = False,
        marked: bool = False,
        terminal_at: datetime | None = None,
        paused: bool | None = None,
        within: Connection | None = None,
    ) -> int:
        """Return how many partitions `views` would return; with `within`, as seen by that transaction."""
        if not last_failed and not marked and terminal_at is None and paused is None:
            return self._count_states(ranges, status, explicit, within)
        terminal = self._terminal(terminal_at)
        where, parameters = view_sql.filters(status, explicit, last_failed, None, marked, paused, terminal)
        return int(self.query(f"SELECT COUNT(*) AS n FROM view{where}", ranges, parameters, {}, within)[0].n)

    def _count_states(
        self,
        ranges: Sequence[ExpectedRange],
        status: PartitionStatus | None,
        explicit: bool,
        within: Connection | None,
    ) -> int:
        """Count by an index of the states, without the view: a partition without a row is pending, and explicit if it
        has an open attempt."""
        total = sum(len(span) for span in ranges)
        if status is None and not explicit:
            return total
        with self._database.snapshot() if within is None else nullcontext(within) as connection:
            parameters = {"ranges": ranges_json(ranges)}

            def counted(statement: str) -> int:
                text = f"WITH {DAY_BOUNDS[self._database.dialect]} {statement}"
                return int(connection.scalar(sa.text(text), parameters) or 0)

            if status is PartitionStatus.PENDING and not explicit:
                return total - counted(view_sql.count_states("s.status <> 'pending'"))
            states = counted(view_sql.count_states("true" if status is None else f"s.status = '{status.value}'"))
            if not explicit or status not in (None, PartitionStatus.PENDING):
                return states
            return states + counted(view_sql.COUNT_FIRST_ATTEMPTS)

    def day_ranges(
        self,
        ranges: Sequence[ExpectedRange],
        *,
        status: PartitionStatus | None = None,
        marked: bool = False,
        paused: bool | None = None,
    ) -> list[ExpectedRange]:
        """Return the partitions of `views`, with consecutive days as one range."""
        where, parameters = view_sql.filters(status, False, False, None, marked, paused)
        return self._islands(f"view{where}", ranges, parameters)

    def trusted_ranges(self, ranges: Sequence[ExpectedRange], schema_version: str) -> list[ExpectedRange]:
        """Return the partitions of `trusted` with this schema version, with consecutive days as one range."""
        where = "WHERE status = 'success' AND schema_version = :schema_version"
        return self._islands(f"view {where}", ranges, {"schema_version": schema_version})

    def due_ranges(
        self,
        ranges: Sequence[ExpectedRange],
        reasons: Sequence[PlanReason],
        now: datetime,
        restated: Mapping[str, Sequence[int]],
        status: PartitionStatus | None = None,
    ) -> list[ExpectedRange]:
        """Return the partitions that would be attempted for these reasons, with consecutive days as one range."""
        due = f"({self._reasoned(restated)}) q WHERE {view_sql.for_reasons(reasons, status)}"
        return self._islands(due, ranges, {"now": now})

    def _islands(self, rows: str, ranges: Sequence[ExpectedRange], parameters: dict[str, Any]) -> list[ExpectedRange]:
        """Consecutive days of the partitions of a FROM clause as ranges, in key order."""
        island = view_sql.ISLAND[self._database.dialect]
        select = f"""
            SELECT source, customer_id, query_name, MIN(logical_date) AS first_day, MAX(logical_date) AS last_day
            FROM (SELECT *, {island} AS island FROM {rows}) d
            GROUP BY source, customer_id, query_name, island
            ORDER BY source, customer_id, query_name, first_day"""
        found = self.query(select, ranges, parameters, {"first_day": sa.Date(), "last_day": sa.Date()})
        return [ExpectedRange(r.source, r.customer_id, r.query_name, r.first_day, r.last_day) for r in found]

    def reasons(
        self,
        ranges: Sequence[ExpectedRange],
        now: datetime,
        restated: Mapping[str, Sequence[int]],
        status: PartitionStatus | None = None,
    ) -> dict[PlanReason, int]:
        """Count the partitions by the reason for which they would be attempted.

        Partitions with the reason `open`, `paused` or `waiting` (the source asked for a pause) would not be attempted;
        for `success` and `failed` nothing is due. `restated` are ages by query.
        """
        where = "" if status is None else f" WHERE status = '{status.value}'"
        select = f"SELECT reason, COUNT(*) AS n FROM ({self._reasoned(restated)}) q{where} GROUP BY 1 ORDER BY 1"
        return {PlanReason(row.reason): row.n for row in self.query(select, ranges, {"now": now}, {})}

    def due_by_day(
        self,
        ranges: Sequence[ExpectedRange],
        reasons: Sequence[PlanReason],
        now: datetime,
        restated: Mapping[str, Sequence[int]],
        status: PartitionStatus | None = None,
    ) -> dict[tuple[str, date], int]:
        """Count the partitions of each source and day that would be attempted for these reasons."""
        select = (
            f"SELECT source, logical_date, COUNT(*) AS n FROM ({self._reasoned(restated)}) q"
            f" WHERE {view_sql.for_reasons(reasons, status)} GROUP BY 1, 2"
        )
        rows = self.query(select, ranges, {"now": now}, {"logical_date": sa.Date()})
        return {(row.source, row.logical_date): row.n for row in rows}

    def candidates(
        self,
        ranges: Sequence[ExpectedRange],
        reasons: Sequence[PlanReason],
        now: datetime,
        restated: Mapping[str, Sequence[int]],
        *,
        status: PartitionStatus | None = None,
        judged_before: datetime | None = None,
        schema_version: str | None = None,
        order: Order = "asset",
        limit: int | None = None,
    ) -> list[Candidate]:
        """Return the partitions that would be attempted for these reasons. With `schema_version`, only those whose
        trusted run has that version."""
        tail = "" if limit is None else f" LIMIT {int(limit)}"
        old_enough = (
            f" AND (status <> 'success' OR {view_sql.judged_at('q')} < :judged_before)"
            if judged_before is not None
            else ""
        )
        of_version = "" if schema_version is None else " AND schema_version = :schema_version"
        select = (
            "SELECT source, customer_id, query_name, logical_date, status, reason,"
            " COALESCE(last_attempt_no, 0) AS last_attempt_no, held_at IS NOT NULL AS held, max_attempts,"
            f" CASE WHEN reason = '{PlanReason.RETRY}' THEN {view_sql.EXPIRES_AT[self._database.dialect]} END"
            " AS expires_at"
            f" FROM ({self._reasoned(restated)}) q"
            f" WHERE {view_sql.for_reasons(reasons, status)}{old_enough}{of_version}"
            f" ORDER BY {view_sql.ORDERS[order]}{tail}"
        )
        parameters: dict[str, Any] = {"now": now}
        if judged_before is not None:
            parameters["judged_before"] = judged_before
        if schema_version is not None:
            parameters["schema_version"] = schema_version
        rows = self.query(select, ranges, parameters, {"logical_date": sa.Date(), "expires_at": UtcTimestamp()})
        return [
            Candidate(
                key_of(row),
                PartitionStatus(row.status),
                PlanReason(row.reason),
                row.last_attempt_no,
                bool(row.held),
                row.max_attempts,
                row.expires_at,
            )
            for row in rows
        ]

    def _reasoned(self, restated: Mapping[str, Sequence[int]]) -> str:
        due = view_sql.restatement_due(self._database.dialect, restated)
        return (
            f"SELECT *, {view_sql.REASON.format(restatement_due=due, exhausted=self.exhausted())} AS reason FROM view"
        )

    def _terminal(self, moment: datetime | None) -> tuple[str, datetime] | None:
        """The SQL condition that a partition is terminal, the same as `control.retry.terminal`; and the moment."""
        condition = f"status = 'failed' AND (terminal_at IS NOT NULL OR {self.exhausted()})"
        return None if moment is None else (condition, moment)

    def exhausted(self) -> str:
        """The SQL condition that the policy allows no further retry at `:now`, the same as in `control.retry`."""
        return f"COALESCE(failures >= max_attempts OR {view_sql.EXPIRES_AT[self._database.dialect]} <= :now, false)"

    def versions(self, ranges: Sequence[ExpectedRange]) -> dict[str, int]:
        """Count the trusted runs by schema version."""
        select = "SELECT schema_version, COUNT(*) AS n FROM view WHERE status = 'success' GROUP BY 1"
        return {row.schema_version: row.n for row in self.query(select, ranges, {}, {})}

    def keys_in(self, ranges: Sequence[ExpectedRange], status: PartitionStatus) -> list[tuple[Any, ...]]:
        """The keys of the expected partitions with this status, as tuples of their four parts."""
        select = "SELECT source, customer_id, query_name, logical_date FROM view WHERE status = :status"
        return list(map(tuple, self.query(select, ranges, {"status": status.value}, {"logical_date": sa.Date()})))

    def requeued(self) -> list[tuple[Any, ...]]:
        """Return the keys of partitions that were requeued and have no attempt since, as tuples of their four parts."""
        table = schema.partition_state
        statement = sa.select(*(table.c[n] for n in schema.KEY)).where(table.c.status == PartitionStatus.PENDING)
        with self._database.snapshot() as connection:
            return list(map(tuple, connection.execute(statement)))

    def trusted(self, ranges: Sequence[ExpectedRange]) -> list[tuple[AttemptKey, str, int]]:
        """The trusted run of every success partition, with its schema version and the size of its payload."""
        select = f"""
            SELECT v.source, v.customer_id, v.query_name, v.logical_date, a.run_id, a.schema_version,
                a.payload_bytes
            FROM view v JOIN partition_attempt a ON {same_key("a", "v")} AND a.run_id = v.current_run_id
            WHERE v.status = 'success' ORDER BY v.source, v.query_name, v.customer_id, v.logical_date"""
        rows = self.query(select, ranges, {}, {"logical_date": sa.Date()})
        return [(AttemptKey(key_of(row), RunId(row.run_id)), row.schema_version, row.payload_bytes) for row in rows]

    def state(self, key: PartitionKey) -> PartitionState | None:
        with self._database.snapshot() as connection:
            table = schema.partition_state
            row = connection.execute(sa.select(table).where(*_is(table, key))).one_or_none()
            return None if row is None else state_of(row)

    def attempts(self, key: PartitionKey) -> list[Attempt]:
        """Every attempt of a partition, newest first."""
        with self._database.snapshot() as connection:
            table = schema.partition_attempt
            rows = connection.execute(sa.select(table).where(*_is(table, key)).order_by(table.c.attempt_no.desc()))
            return [attempt_of(row) for row in rows]

    def run_filters(self, run_ids: Collection[str]) -> dict[str, Mapping[str, Any]]:
        """What these runs were started with; unknown runs are left out."""
        run = schema.run
        statement = sa.select(run.c.run_id, run.c.filters).where(run.c.run_id.in_(run_ids))
        with self._database.snapshot() as connection:
            return {row.run_id: row.filters for row in connection.execute(statement)}

    def failed(self, ranges: Sequence[ExpectedRange], until: datetime | None = None) -> list[FailedPartition]:
        """Return the failed partitions of `ranges` in key order, with the facts that a manual retry depends on. With
        `until`, only those whose last attempt ended at or before it."""
        in_time = "" if until is None else " AND (v.last_attempt_at IS NULL OR v.last_attempt_at <= :until)"
        select = f"""
            SELECT v.source, v.customer_id, v.query_name, v.logical_date, v.terminal_at IS NOT NULL AS marked,
                NOT EXISTS (SELECT 1 FROM partition_attempt a WHERE {same_key("a", "v")} AND {view_sql.HAS_EVIDENCE})
                    AS left_nothing
            FROM view v WHERE v.status = 'failed'{in_time}
            ORDER BY v.source, v.customer_id, v.query_name, v.logical_date"""
        parameters = {} if until is None else {"until": until}
        rows = self.query(select, ranges, parameters, {"logical_date": sa.Date()})
        return [FailedPartition(key_of(row), bool(row.marked), bool(row.left_nothing)) for row in rows]

    def run(self, run_id: str) -> Row[Any] | None:
        with self._database.snapshot() as connection:
            return connection.execute(sa.select(schema.run).where(schema.run.c.run_id == run_id)).one_or_none()

    def open_attempts(self, run_id: str) -> list[PartitionKey]:
        """Return the partitions that a run works on now."""
        attempt = schema.partition_attempt
        key = [attempt.c[name] for name in schema.KEY]
        statement = sa.select(*key).where(attempt.c.run_id == run_id, attempt.c.outcome.is_(None)).order_by(*key)
        with self._database.snapshot() as connection:
            return [PartitionKey(*row) for row in connection.execute(statement)]

    def is_worked_on(self, run_id: str) -> bool:
        """Return whether a live worker works on an unfinished run."""
        run = schema.run
        lives: sa.ColumnElement[bool] = sa.literal_column(
            worker_lives(self._database.dialect, "run.worker_token"), sa.Boolean
        )
        statement = sa.select(run.c.run_id).where(run.c.run_id == run_id, run.c.finished_at.is_(None), lives)
        with self._database.snapshot() as connection:
            return connection.scalar(statement) is not None

    def errors_of_run(self, run_id: str, keys: Sequence[PartitionKey]) -> dict[PartitionKey, str]:
        """Return the error messages of the attempts of a run on these partitions."""
        attempt = schema.partition_attempt
        key = [attempt.c[name] for name in schema.KEY]
        statement = sa.select(*key, attempt.c.error_message).where(
            attempt.c.run_id == run_id,
            attempt.c.error_message.is_not(None),
            sa.tuple_(*key).in_([key_values(one) for one in keys]),
        )
        with self._database.snapshot() as connection:
            return {PartitionKey(*row[:4]): row[4] for row in connection.execute(statement)} if keys else {}

    def ended_reprocess_runs(self) -> list[Row[Any]]:
        """Return the ended runs that re-fetched success partitions, oldest first, with `end` and with `cancelled`
        (whether cancellation was requested). Runs whose events were exported from the database are left out."""
        run, event = schema.run, schema.event
        finished = sa.and_(event.c.run_id == run.c.run_id, event.c.type == "RunFinished")
        asked = schema.event.alias("asked")
        cancelled = sa.exists().where(asked.c.run_id == run.c.run_id, asked.c.type == "RunCancelRequested")
        statement = (
            sa.select(run, event.c.payload, cancelled.label("cancelled"))
            .join(event, finished)
            .where(sa.cast(run.c.filters, sa.Text).like("%reprocess%"))  # narrows; the caller reads the filters
            .order_by(run.c.run_id)
        )
        with self._database.snapshot() as connection:
            return [row for row in connection.execute(statement) if row.filters.get("reprocess")]

    def judged_since(self, moment: datetime) -> set[PartitionKey]:
        """Return partitions with a verdict on an attempt that was issued at this moment or later."""
        attempt = schema.partition_attempt
        judged = attempt.c.outcome.in_((Outcome.SUCCEEDED, Outcome.FAILED))
        statement = sa.select(*(attempt.c[name] for name in schema.KEY)).where(attempt.c.issued_at >= moment, judged)
        with self._database.snapshot() as connection:
            return {PartitionKey(*row) for row in connection.execute(statement)}

    def contract(self, fingerprint: str) -> dict[str, Any] | None:
        with self._database.snapshot() as connection:
            body: dict[str, Any] | None = connection.scalar(
                sa.select(schema.contract.c.body).where(schema.contract.c.fingerprint == fingerprint)
            )
            return body

    def contracts(self) -> list[Row[Any]]:
        """Return every contract that an attempt was ever issued under, oldest first."""
        with self._database.snapshot() as connection:
            return list(connection.execute(sa.select(schema.contract).order_by(schema.contract.c.first_used_at)))

    def pauses(self, limit: int | None = None, *, after: int | None = None) -> tuple[list[dict[str, Any]], int]:
        """Return the pause selectors in force, newest first, and their total count; with `after`, only those older than
        that entry."""
        table = schema.pause_selector
        in_force = table.c.ended_at.is_(None)
        others = [column for column in table.c if column.name not in ("selector_no", "ended_at")]
        columns = [table.c.selector_no.label("pause_id"), *others]
        select = sa.select(*columns).where(in_force).order_by(table.c.selector_no.desc()).limit(limit)
        if after is not None:
            select = select.where(table.c.selector_no < after)
        with self._database.snapshot() as connection:
            total = connection.scalar(sa.select(sa.func.count()).select_from(table).where(in_force)) or 0
            return [dict(row._mapping) for row in connection.execute(select)], total

    def audit(self, limit: int | None = None, *, after: int | None = None) -> list[dict[str, Any]]:
        """Return the audit entries, newest first; with `after`, only those older than that entry."""
        table = schema.audit
        select = sa.select(table).order_by(table.c.audit_id.desc()).limit(limit)
        if after is not None:
            select = select.where(table.c.audit_id < after)
        with self._database.snapshot() as connection:
            return [dict(row._mapping) for row in connection.execute(select)]

    def audit_count(self) -> int:
        """Return the number of audit entries."""
        with self._database.snapshot() as connection:
            return connection.scalar(sa.select(sa.func.count()).select_from(schema.audit)) or 0

    def query(
        self,
        select: str,
        ranges: Sequence[ExpectedRange],
        parameters: dict[str, Any],
        types: dict[str, sa.types.TypeEngine[Any]],
        within: Connection | None = None,
        common: str | None = None,
    ) -> Sequence[Row[Any]]:
        """Return the rows of a statement over `view`, the expected partitions of `ranges`. `common` are other table
        expressions that end with `view`."""
        with self._database.snapshot() if within is None else nullcontext(within) as connection:
            selectors = PauseSelectors(read_selectors(connection))
            text = f"WITH RECURSIVE {EXPECTED_DAYS[self._database.dialect]}, {common or view_sql.view_over()} {select}"
            moments = [
                sa.bindparam(name, type_=UtcTimestamp())
                for name, value in parameters.items()
                if isinstance(value, datetime)
            ]
            statement = sa.text(text).bindparams(*moments)
            return connection.execute(
                statement.columns(**types), {"ranges": self._as_json(ranges, selectors), **parameters}
            ).all()

    def _as_json(self, ranges: Sequence[ExpectedRange], selectors: PauseSelectors) -> str:
        """The parameter `:ranges`, with retry limits and pauses. A range that is paused in parts is split."""
        ends = {name: (limit.max_attempts, int(limit.max_age.total_seconds())) for name, limit in self.limits.items()}
        rows = [
            (
                *(r.source, r.customer_id, r.query_name, first, last, r.over or r.last, r.utc_offset),
                *ends.get(r.query_name, (None, None)),
                pause_no,
            )
            for r in ranges
            if r.first <= r.last
            for first, last, pause_no in selectors.pieces(r)
        ]
        return orjson.dumps(rows).decode()


def _is(table: sa.Table, key: PartitionKey) -> list[sa.ColumnElement[bool]]:
    return [table.c[name] == getattr(key, name) for name in schema.KEY]
