"""Whoever only looks gets this: rows of state and attempts, and the expected partitions that have none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Literal

import orjson
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from penstock import partition
from penstock.db import schema
from penstock.db.bulk import same_key
from penstock.db.engine import Database
from penstock.db.expected_days import EXPECTED_DAYS
from penstock.db.types import UtcTimestamp
from penstock.errors import ErrorClass
from penstock.expected import ExpectedRange
from penstock.lifecycle import Outcome, PartitionStatus, PlanReason, Stage
from penstock.partition import AttemptKey, PartitionKey, RunId
from penstock.state.pause_scope import PauseSelectors
from penstock.state.pause_selectors import read_selectors
from penstock.state.records import (
    Attempt,
    Candidate,
    FailedPartition,
    PartitionControl,
    PartitionState,
    PartitionView,
    RetryLimits,
)

if TYPE_CHECKING:
    import pyarrow as pa

_MARKS = (
    "terminal_at",
    "terminal_by",
    "terminal_reason",
    "paused_at",
    "paused_by",
    "paused_reason",
    "held_at",
    "held_by",
    "held_reason",
)
_CONTROL = ("failures", "failing_since", "next_run_at", "strategy", *_MARKS)
# A partition is paused by its own mark, or by the selector that decides about it.
_PAUSED = {
    "paused_at": "COALESCE(k.paused_at, q.since)",
    "paused_by": "COALESCE(k.paused_by, q.actor)",
    "paused_reason": "CASE WHEN k.paused_at IS NULL THEN q.reason ELSE k.paused_reason END",
}

# One row per expected partition: its state (or none), its newest closed attempt (or none), its open attempt (or none),
# and what the control plane keeps about it (or nothing).
_VIEW = f"""
view AS (
    SELECT e.source, e.customer_id, e.query_name, e.logical_date, e.over_day, e.utc_offset, e.max_attempts, e.max_age,
        s.source IS NOT NULL AS explicit, COALESCE(s.status, 'pending') AS status, s.current_run_id, s.schema_version,
        s.record_count, s.updated_at, s.error_message, COALESCE(s.attempt_count, 0) AS attempt_count,
        COALESCE(s.authority_version, 0) AS authority_version,
        l.attempt_no AS last_attempt_no, l.run_id AS last_attempt_run_id, l.outcome AS last_attempt_outcome,
        l.error_class AS last_attempt_error_class, l.error_message AS last_attempt_error,
        l.finished_at AS last_attempt_at, l.backfill_id AS last_backfill_id, o.run_id AS open_run_id,
        {", ".join(f"{_PAUSED.get(name, f'k.{name}')} AS {name}" for name in _CONTROL)},
        -- nothing that came after the failure has settled it: no acceptance, no rollback, no approval
        COALESCE(l.outcome = 'FAILED' AND l.attempt_no > COALESCE(k.cleared_attempt_no, 0)
            AND l.run_id <> s.current_run_id, false) AS refetch_failed
    FROM expected e
    LEFT JOIN partition_state s ON {same_key("s", "e")}
    LEFT JOIN partition_attempt l ON {same_key("l", "e")} AND l.attempt_no = (
        SELECT MAX(m.attempt_no) FROM partition_attempt m WHERE {same_key("m", "e")} AND m.outcome IS NOT NULL)
    LEFT JOIN partition_attempt o ON {same_key("o", "e")} AND o.outcome IS NULL
    LEFT JOIN partition_control k ON {same_key("k", "e")}
    LEFT JOIN pause_selector q ON q.selector_no = e.pause_no
)"""

_VIEW_TYPES: dict[str, sa.types.TypeEngine[Any]] = {
    "logical_date": sa.Date(),
    "explicit": sa.Boolean(),
    "updated_at": UtcTimestamp(),
    "last_attempt_at": UtcTimestamp(),
    "expires_at": UtcTimestamp(),
    **{name: UtcTimestamp() for name in _CONTROL if name.endswith(("_at", "_since"))},
}

# Why a partition would be attempted now, or why it is not. An open attempt or a pause comes before everything else. A
# re-fetch of a success partition that met a pause of its source is a retry when the pause ends, unless it is part of a
# backfill, which attempts it again by itself.
_REASON = f"""
CASE
    WHEN open_run_id IS NOT NULL THEN '{PlanReason.OPEN}'
    WHEN paused_at IS NOT NULL THEN '{PlanReason.PAUSED}'
    WHEN next_run_at > :now AND strategy IN ('quota', 'auth') THEN '{PlanReason.WAITING}'
    WHEN status = 'pending' AND explicit THEN '{PlanReason.REQUEUED}'
    WHEN status = 'pending' THEN '{PlanReason.MISSING}'
    WHEN next_run_at <= :now
        AND (strategy NOT IN ('quota', 'auth') OR (status = 'success' AND (failures > 0 OR last_backfill_id IS NULL)))
        AND (terminal_at IS NULL OR status = 'success') AND NOT {{exhausted}} THEN '{PlanReason.RETRY}'
    WHEN status = 'success' AND held_at IS NULL AND {{restatement_due}} THEN '{PlanReason.RESTATE}'
    WHEN status = 'success' THEN '{PlanReason.SUCCESS}'
    ELSE '{PlanReason.FAILED}'
END"""

# When the day reached the age, as a moment: the end of the day where the account lives, and so many days later.
_REACHED = {
    "sqlite": "strftime('%Y-%m-%dT%H:%M:%f000Z', logical_date, printf('%+d days', 1 + {age}),"
    " printf('%+d seconds', -utc_offset))",
    "postgresql": "((logical_date + 1 + {age})::timestamp AT TIME ZONE 'UTC' - make_interval(secs => utc_offset))",
}
# When the age of the day ends its retries; nothing without a policy.
_EXPIRES = {
    "sqlite": "CASE WHEN max_age IS NOT NULL THEN strftime('%Y-%m-%dT%H:%M:%f000Z', logical_date, '+1 days',"
    " printf('%+d seconds', max_age - utc_offset)) END",
    "postgresql": "((logical_date + 1)::timestamp AT TIME ZONE 'UTC' + make_interval(secs => max_age - utc_offset))",
}
_AGE = {
    "sqlite": "CAST(julianday(over_day) - julianday(logical_date) AS INTEGER)",
    "postgresql": "(over_day - logical_date)",
}

_NUMBER = "ROW_NUMBER() OVER (PARTITION BY source, customer_id, query_name ORDER BY logical_date)"
_ISLAND = {  # the same for days that follow each other
    "sqlite": f"CAST(julianday(logical_date) AS INTEGER) - {_NUMBER}",
    "postgresql": f"logical_date - CAST({_NUMBER} AS INTEGER)",
}

# An attempt that left a sealed run, or a recorded error of the extraction.
_LEFT_SOMETHING = "(a.payload_digest IS NOT NULL OR (a.stage = 'extract' AND a.outcome = 'FAILED'))"

Order = Literal["asset", "newest", "customer"]
_ORDERS: dict[Order, str] = {
    "asset": "source, query_name, customer_id, logical_date",
    "newest": "logical_date DESC, source, query_name, customer_id",
    "customer": "customer_id, source, query_name, logical_date",
}


class StateReader:
    """Questions about partitions, each answered from one snapshot of the database."""

    def __init__(self, database: Database, limits: Mapping[str, RetryLimits] | None = None) -> None:
        """`limits` are the retry policies by query or model; without one nothing ends the retries of a partition."""
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
        """The expected partitions of `ranges` in key order; those without a row are implicit pending, unless only
        `explicit` ones are asked for, or only those `marked` by an operator as paused or held, or only failed ones that
        are terminal at a moment."""
        terminal = self._terminal(terminal_at)
        where, parameters = _filters(status, explicit, last_failed, after, marked, paused, terminal)
        tail = "" if limit is None else f" LIMIT {int(limit)}"
        expires = _EXPIRES[self._database.dialect]
        order = "source, customer_id, query_name, logical_date"
        select = f"SELECT *, {expires} AS expires_at FROM view{where} ORDER BY {order}{tail}"
        return [_view(row) for row in self._query(select, ranges, parameters, _VIEW_TYPES)]

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
        """How many partitions `views` would list; `within` a transaction as that sees them."""
        terminal = self._terminal(terminal_at)
        where, parameters = _filters(status, explicit, last_failed, None, marked, paused, terminal)
        return int(self._query(f"SELECT COUNT(*) AS n FROM view{where}", ranges, parameters, {}, within)[0].n)

    def day_ranges(
        self,
        ranges: Sequence[ExpectedRange],
        *,
        status: PartitionStatus | None = None,
        marked: bool = False,
        paused: bool | None = None,
    ) -> list[ExpectedRange]:
        """The partitions that `views` would list, with days that follow each other as one range."""
        where, parameters = _filters(status, False, False, None, marked, paused)
        island = _ISLAND[self._database.dialect]
        select = f"""
            SELECT source, customer_id, query_name, MIN(logical_date) AS first_day, MAX(logical_date) AS last_day
            FROM (SELECT *, {island} AS island FROM view{where}) d
            GROUP BY source, customer_id, query_name, island
            ORDER BY source, customer_id, query_name, first_day"""
        rows = self._query(select, ranges, parameters, {"first_day": sa.Date(), "last_day": sa.Date()})
        return [ExpectedRange(r.source, r.customer_id, r.query_name, r.first_day, r.last_day) for r in rows]

    def reasons(
        self,
        ranges: Sequence[ExpectedRange],
        now: datetime,
        restated: Mapping[str, Sequence[int]],
        status: PartitionStatus | None = None,
    ) -> dict[PlanReason, int]:
        """How many partitions have which reason to be attempted, or not to be. `restated` are ages by query."""
        where = "" if status is None else f" WHERE status = '{status.value}'"
        select = f"SELECT reason, COUNT(*) AS n FROM ({self._reasoned(restated)}) q{where} GROUP BY 1 ORDER BY 1"
        return {PlanReason(row.reason): row.n for row in self._query(select, ranges, {"now": now}, {})}

    def due_by_day(
        self,
        ranges: Sequence[ExpectedRange],
        reasons: Sequence[PlanReason],
        now: datetime,
        restated: Mapping[str, Sequence[int]],
        status: PartitionStatus | None = None,
    ) -> dict[tuple[str, date], int]:
        """How many partitions of each source and day would be attempted for these reasons."""
        select = (
            f"SELECT source, logical_date, COUNT(*) AS n FROM ({self._reasoned(restated)}) q"
            f" WHERE {_for_reasons(reasons, status)} GROUP BY 1, 2"
        )
        rows = self._query(select, ranges, {"now": now}, {"logical_date": sa.Date()})
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
        after_customer: str | None = None,
        limit: int | None = None,
    ) -> list[Candidate]:
        """The partitions that would be attempted for these reasons. With `schema_version`, only those whose trusted run
        is of that version; with `after_customer`, only those of customers that come later."""
        tail = "" if limit is None else f" LIMIT {int(limit)}"
        old_enough = (
            f" AND (status <> 'success' OR {_judged_at('q')} < :judged_before)" if judged_before is not None else ""
        )
        of_version = "" if schema_version is None else " AND schema_version = :schema_version"
        later = "" if after_customer is None else " AND customer_id > :after_customer"
        select = (
            "SELECT source, customer_id, query_name, logical_date, status, reason,"
            " COALESCE(last_attempt_no, 0) AS last_attempt_no, held_at IS NOT NULL AS held, max_attempts,"
            f" CASE WHEN reason = '{PlanReason.RETRY}' THEN {_EXPIRES[self._database.dialect]} END AS expires_at"
            f" FROM ({self._reasoned(restated)}) q"
            f" WHERE {_for_reasons(reasons, status)}{old_enough}{of_version}{later} ORDER BY {_ORDERS[order]}{tail}"
        )
        parameters: dict[str, Any] = {"now": now}
        if judged_before is not None:
            parameters["judged_before"] = judged_before
        if schema_version is not None:
            parameters["schema_version"] = schema_version
        if after_customer is not None:
            parameters["after_customer"] = after_customer
        rows = self._query(select, ranges, parameters, {"logical_date": sa.Date(), "expires_at": UtcTimestamp()})
        return [
            Candidate(
                _key(row),
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
        due = _restatement_due(self._database.dialect, restated)
        return f"SELECT *, {_REASON.format(restatement_due=due, exhausted=self._exhausted())} AS reason FROM view"

    def _terminal(self, moment: datetime | None) -> tuple[str, datetime] | None:
        """The SQL condition that a partition is terminal, as `control.retry.terminal` says it; and the moment."""
        condition = f"status = 'failed' AND (terminal_at IS NOT NULL OR {self._exhausted()})"
        return None if moment is None else (condition, moment)

    def _exhausted(self) -> str:
        """The SQL condition that the policy retries the partition no more at `:now`, as `control.retry` says it."""
        return f"COALESCE(failures >= max_attempts OR {_EXPIRES[self._database.dialect]} <= :now, false)"

    def versions(self, ranges: Sequence[ExpectedRange]) -> dict[str, int]:
        """How many trusted runs are of which schema version."""
        select = "SELECT schema_version, COUNT(*) AS n FROM view WHERE status = 'success' GROUP BY 1"
        return {row.schema_version: row.n for row in self._query(select, ranges, {}, {})}

    def keys_in(self, ranges: Sequence[ExpectedRange], status: PartitionStatus) -> pa.Table:
        """The expected partitions with this status, as a table of their keys."""
        select = "SELECT source, customer_id, query_name, logical_date FROM view WHERE status = :status"
        return _keys(self._query(select, ranges, {"status": status.value}, {"logical_date": sa.Date()}))

    def requeued(self) -> pa.Table:
        """Partitions that failed once and wait to be tried again, as a table of their keys."""
        table = schema.partition_state
        statement = sa.select(*(table.c[n] for n in schema.KEY)).where(table.c.status == PartitionStatus.PENDING)
        with self._database.snapshot() as connection:
            return _keys(connection.execute(statement).all())

    def trusted(self, ranges: Sequence[ExpectedRange]) -> list[tuple[AttemptKey, str, int]]:
        """The trusted run of every success partition, with its schema version and the size of its payload."""
        select = f"""
            SELECT v.source, v.customer_id, v.query_name, v.logical_date, a.run_id, a.schema_version,
                a.payload_bytes
            FROM view v JOIN partition_attempt a ON {same_key("a", "v")} AND a.run_id = v.current_run_id
            WHERE v.status = 'success' ORDER BY v.source, v.query_name, v.customer_id, v.logical_date"""
        rows = self._query(select, ranges, {}, {"logical_date": sa.Date()})
        return [(AttemptKey(_key(row), RunId(row.run_id)), row.schema_version, row.payload_bytes) for row in rows]

    def state(self, key: PartitionKey) -> PartitionState | None:
        with self._database.snapshot() as connection:
            table = schema.partition_state
            row = connection.execute(sa.select(table).where(*_is(table, key))).one_or_none()
            return None if row is None else _state(row)

    def attempts(self, key: PartitionKey) -> list[Attempt]:
        """Every attempt of a partition, newest first."""
        with self._database.snapshot() as connection:
            table = schema.partition_attempt
            rows = connection.execute(sa.select(table).where(*_is(table, key)).order_by(table.c.attempt_no.desc()))
            return [_attempt(row) for row in rows]

    def failed(self, ranges: Sequence[ExpectedRange], until: datetime | None = None) -> list[FailedPartition]:
        """The failed partitions of `ranges` in key order, with what an operator's retry asks about each. With `until`,
        only those whose last attempt ended no later."""
        in_time = "" if until is None else " AND (v.last_attempt_at IS NULL OR v.last_attempt_at <= :until)"
        select = f"""
            SELECT v.source, v.customer_id, v.query_name, v.logical_date, v.terminal_at IS NOT NULL AS marked,
                NOT EXISTS (SELECT 1 FROM partition_attempt a WHERE {same_key("a", "v")} AND {_LEFT_SOMETHING})
                    AS left_nothing
            FROM view v WHERE v.status = 'failed'{in_time}
            ORDER BY v.source, v.customer_id, v.query_name, v.logical_date"""
        parameters = {} if until is None else {"until": until}
        rows = self._query(select, ranges, parameters, {"logical_date": sa.Date()})
        return [FailedPartition(_key(row), bool(row.marked), bool(row.left_nothing)) for row in rows]

    def run(self, run_id: str) -> Row[Any] | None:
        with self._database.snapshot() as connection:
            return connection.execute(sa.select(schema.run).where(schema.run.c.run_id == run_id)).one_or_none()

    def open_attempts(self, run_id: str) -> list[PartitionKey]:
        """The partitions that a run works on now."""
        attempt = schema.partition_attempt
        key = [attempt.c[name] for name in schema.KEY]
        statement = sa.select(*key).where(attempt.c.run_id == run_id, attempt.c.outcome.is_(None)).order_by(*key)
        with self._database.snapshot() as connection:
            return [PartitionKey(*row) for row in connection.execute(statement)]

    def ended_reprocess_runs(self) -> list[Row[Any]]:
        """Runs that were asked to fetch success partitions again and are over, oldest first: with `end`, and whether
        somebody asked for them to stop (`cancelled`). Runs whose events left the database are not among them."""
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
        """Partitions with a verdict on an attempt that was issued at this moment or later."""
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
        """Every contract that an attempt was ever issued under, oldest first."""
        with self._database.snapshot() as connection:
            return list(connection.execute(sa.select(schema.contract).order_by(schema.contract.c.first_used_at)))

    def pauses(self, limit: int | None = None, *, after: int | None = None) -> tuple[list[dict[str, Any]], int]:
        """The pauses by selector that are in force, newest first, and how many there are; those that are older than the
        entry `after`, if it is given."""
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
        """The manual acts, newest first; those that are older than the entry `after`, if it is given."""
        table = schema.audit
        select = sa.select(table).order_by(table.c.audit_id.desc()).limit(limit)
        if after is not None:
            select = select.where(table.c.audit_id < after)
        with self._database.snapshot() as connection:
            return [dict(row._mapping) for row in connection.execute(select)]

    def audit_count(self) -> int:
        """How many manual acts are recorded."""
        with self._database.snapshot() as connection:
            return connection.scalar(sa.select(sa.func.count()).select_from(schema.audit)) or 0

    def _query(
        self,
        select: str,
        ranges: Sequence[ExpectedRange],
        parameters: dict[str, Any],
        types: dict[str, sa.types.TypeEngine[Any]],
        within: Connection | None = None,
    ) -> Sequence[Row[Any]]:
        with self._database.snapshot() if within is None else nullcontext(within) as connection:
            selectors = PauseSelectors(read_selectors(connection))
            text = f"WITH RECURSIVE {EXPECTED_DAYS[self._database.dialect]}, {_VIEW} {select}"
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
        """The parameter `:ranges`, with the limits of retries and the pauses, which split ranges."""
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


def _for_reasons(reasons: Sequence[PlanReason], status: PartitionStatus | None) -> str:
    """The condition that a partition would be attempted for one of these reasons, and has this status."""
    marks = ", ".join(f"'{reason}'" for reason in reasons)
    return f"reason IN ({marks})" + ("" if status is None else f" AND status = '{status.value}'")


def _restatement_due(dialect: str, restated: Mapping[str, Sequence[int]]) -> str:
    """The SQL condition that the last verdict is older than the last age at which the day was to be fetched again."""
    if not restated:
        return "false"
    cases = []
    for name, ages in sorted(restated.items()):
        steps = " ".join(f"WHEN {_AGE[dialect]} >= {int(age)} THEN {int(age)}" for age in sorted(ages, reverse=True))
        cases.append(f"WHEN '{partition.name(name)}' THEN CASE {steps} END")
    age = f"CASE query_name {' '.join(cases)} END"
    return f"(({age}) IS NOT NULL AND {_judged_at('view')} < {_REACHED[dialect].format(age=f'({age})')})"


def _judged_at(table: str) -> str:
    """When the attempt of the last verdict was issued; what nobody judged does not count."""
    return (
        f"(SELECT MAX(j.issued_at) FROM partition_attempt j WHERE {same_key('j', table)}"
        " AND j.outcome IN ('SUCCEEDED', 'FAILED'))"
    )


def _filters(
    status: PartitionStatus | None,
    explicit: bool,
    last_failed: bool,
    after: PartitionKey | None,
    marked: bool = False,
    paused: bool | None = None,
    at_a_moment: tuple[str, datetime] | None = None,  # a further condition, and the moment that it calls `:now`
) -> tuple[str, dict[str, Any]]:
    conditions, parameters = [], dict[str, Any]()
    if at_a_moment is not None:
        conditions.append(at_a_moment[0])
        parameters["now"] = at_a_moment[1]
    if status is not None:
        conditions.append("status = :status")
        parameters["status"] = status.value
    if explicit:
        conditions.append("(explicit OR open_run_id IS NOT NULL)")
    if last_failed:
        conditions.append("(status = 'failed' OR (status = 'success' AND refetch_failed))")
    if marked:
        conditions.append("(paused_at IS NOT NULL OR held_at IS NOT NULL)")
    if paused is not None:
        conditions.append(f"paused_at IS {'NOT ' if paused else ''}NULL")
    if after is not None:
        conditions.append("(source, customer_id, query_name, CAST(logical_date AS TEXT)) > (:a1, :a2, :a3, :a4)")
        parameters |= {
            "a1": after.source,
            "a2": after.customer_id,
            "a3": after.query_name,
            "a4": after.logical_date.isoformat(),
        }
    return (" WHERE " + " AND ".join(conditions) if conditions else ""), parameters


def _is(table: sa.Table, key: PartitionKey) -> list[sa.ColumnElement[bool]]:
    return [table.c[name] == getattr(key, name) for name in schema.KEY]


def _keys(rows: Sequence[Row[Any]]) -> pa.Table:
    import pyarrow as pa

    columns = list(zip(*rows, strict=True)) or [()] * len(schema.KEY)
    kinds = (pa.string(), pa.string(), pa.string(), pa.date32())
    return pa.table({n: pa.array(c, k) for n, c, k in zip(schema.KEY, columns, kinds, strict=True)})


def _key(row: Any) -> PartitionKey:
    return PartitionKey(row.source, row.customer_id, row.query_name, row.logical_date)


def _state(row: Any) -> PartitionState:
    return PartitionState(
        _key(row),
        PartitionStatus(row.status),
        row.current_run_id,
        row.schema_version,
        row.record_count,
        row.updated_at,
        row.error_message,
        row.attempt_count,
        row.authority_version,
    )


def _view(row: Any) -> PartitionView:
    return PartitionView(
        state=_state(row),
        explicit=row.explicit,
        last_attempt_no=row.last_attempt_no or 0,
        last_attempt_run_id=row.last_attempt_run_id,
        last_attempt_outcome=_maybe(Outcome, row.last_attempt_outcome),
        last_attempt_error_class=_maybe(ErrorClass, row.last_attempt_error_class),
        last_attempt_error=row.last_attempt_error,
        last_attempt_at=row.last_attempt_at,
        last_backfill_id=row.last_backfill_id,
        open_run_id=row.open_run_id,
        control=PartitionControl(row.failures or 0, *(getattr(row, name) for name in _CONTROL[1:])),
        expires_at=row.expires_at,
    )


def _attempt(row: Any) -> Attempt:
    return Attempt(
        key=_key(row),
        run_id=RunId(row.run_id),
        attempt_no=row.attempt_no,
        reason=row.reason,
        contract_fingerprint=row.contract_fingerprint,
        schema_version=row.schema_version,
        worker_token=row.worker_token,
        lost_count=row.lost_count,
        issued_at=row.issued_at,
        stage=_maybe(Stage, row.stage),
        outcome=_maybe(Outcome, row.outcome),
        error_class=_maybe(ErrorClass, row.error_class),
        error_message=row.error_message,
        complaints=row.complaints,
        record_count=row.record_count,
        payload_digest=row.payload_digest,
        payload_bytes=row.payload_bytes,
        content_digest=row.content_digest,
        finished_at=row.finished_at,
        raw_deleted_at=row.raw_deleted_at,
        approved_at=row.approved_at,
        demoted_at=row.demoted_at,
        measures=row.measures,
    )


def _maybe(kind: Any, value: str | None) -> Any:
    return None if value is None else kind(value)
