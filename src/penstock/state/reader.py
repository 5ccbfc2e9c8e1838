"""Whoever only looks gets this: rows of state and attempts, and the expected partitions that have none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Literal

import orjson
import sqlalchemy as sa
from sqlalchemy.engine import Row

from penstock import partition
from penstock.db import schema
from penstock.db.bulk import same_key
from penstock.db.engine import Database
from penstock.db.types import UtcTimestamp
from penstock.errors import ErrorClass
from penstock.expected import ExpectedRange
from penstock.lifecycle import DisplayStatus, Outcome, PartitionStatus, Stage
from penstock.partition import AttemptKey, PartitionKey, RunId
from penstock.state.records import Attempt, Candidate, PartitionControl, PartitionState, PartitionView

if TYPE_CHECKING:
    import pyarrow as pa

# Ranges arrive as one JSON parameter and are unfolded into days by the database: a million pending partitions cost
# no rows, no temporary table and no Python objects.
_DAYS = {
    "sqlite": """
        ranges AS MATERIALIZED (
            SELECT json_extract(value, '$[0]') AS source, json_extract(value, '$[1]') AS customer_id,
                json_extract(value, '$[2]') AS query_name, json_extract(value, '$[3]') AS first_day,
                json_extract(value, '$[4]') AS last_day, json_extract(value, '$[5]') AS over_day,
                json_extract(value, '$[6]') AS utc_offset
            FROM json_each(:ranges)
        ),
        calendar(day) AS (
            SELECT MIN(first_day) FROM ranges
            UNION ALL SELECT date(day, '+1 day') FROM calendar WHERE day < (SELECT MAX(last_day) FROM ranges)
        ),
        expected AS (
            SELECT r.source, r.customer_id, r.query_name, c.day AS logical_date, r.over_day, r.utc_offset
            FROM ranges r JOIN calendar c ON c.day BETWEEN r.first_day AND r.last_day
        )""",
    "postgresql": """
        expected AS (
            SELECT r ->> 0 AS source, r ->> 1 AS customer_id, r ->> 2 AS query_name, day::date AS logical_date,
                (r ->> 5)::date AS over_day, (r ->> 6)::integer AS utc_offset
            FROM jsonb_array_elements(CAST(:ranges AS jsonb)) r,
                generate_series((r ->> 3)::date, (r ->> 4)::date, interval '1 day') day
        )""",
}

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

# One row per expected partition: its state (or none), its newest closed attempt (or none), its open attempt (or none),
# and what the control plane keeps about it (or nothing).
_VIEW = f"""
view AS (
    SELECT e.source, e.customer_id, e.query_name, e.logical_date, e.over_day, e.utc_offset,
        s.source IS NOT NULL AS explicit, COALESCE(s.status, 'pending') AS status, s.current_run_id, s.schema_version,
        s.record_count, s.updated_at, s.error_message, COALESCE(s.attempt_count, 0) AS attempt_count,
        COALESCE(s.authority_version, 0) AS authority_version,
        l.attempt_no AS last_attempt_no, l.run_id AS last_attempt_run_id, l.outcome AS last_attempt_outcome,
        l.error_class AS last_attempt_error_class, l.error_message AS last_attempt_error,
        l.finished_at AS last_attempt_at, o.run_id AS open_run_id,
        {", ".join(f"k.{name}" for name in _CONTROL)},
        CASE
            WHEN s.current_run_id IS NULL THEN 'never_materialized'
            WHEN s.status <> 'success' THEN 'unavailable'
            WHEN l.outcome = 'FAILED' AND l.run_id <> s.current_run_id
                THEN 'materialized_but_last_attempt_failed'
            ELSE 'materialized'
        END AS display
    FROM expected e
    LEFT JOIN partition_state s ON {same_key("s", "e")}
    LEFT JOIN partition_attempt l ON {same_key("l", "e")} AND l.attempt_no = (
        SELECT MAX(m.attempt_no) FROM partition_attempt m WHERE {same_key("m", "e")} AND m.outcome IS NOT NULL)
    LEFT JOIN partition_attempt o ON {same_key("o", "e")} AND o.outcome IS NULL
    LEFT JOIN partition_control k ON {same_key("k", "e")}
)"""

_VIEW_TYPES: dict[str, sa.types.TypeEngine[Any]] = {
    "logical_date": sa.Date(),
    "explicit": sa.Boolean(),
    "updated_at": UtcTimestamp(),
    "last_attempt_at": UtcTimestamp(),
    **{name: UtcTimestamp() for name in _CONTROL if name.endswith(("_at", "_since"))},
}

# Why a partition would be attempted now, or why it is not. An open attempt or a pause comes before everything else.
_REASON = """
CASE
    WHEN open_run_id IS NOT NULL THEN 'open'
    WHEN paused_at IS NOT NULL THEN 'paused'
    WHEN next_run_at > :now AND strategy IN ('quota', 'auth') THEN 'waiting'
    WHEN status = 'pending' AND explicit THEN 'requeued'
    WHEN status = 'pending' THEN 'missing'
    WHEN next_run_at <= :now AND strategy NOT IN ('quota', 'auth') AND (terminal_at IS NULL OR status = 'success')
        THEN 'retry'
    WHEN status = 'success' AND held_at IS NULL AND {restatement_due} THEN 'restate'
    ELSE status
END"""

# When the day reached the age, as a moment: the end of the day where the account lives, and so many days later.
_REACHED = {
    "sqlite": "strftime('%Y-%m-%dT%H:%M:%f000Z', logical_date, printf('%+d days', 1 + {age}),"
    " printf('%+d seconds', -utc_offset))",
    "postgresql": "((logical_date + 1 + {age})::timestamp AT TIME ZONE 'UTC' - make_interval(secs => utc_offset))",
}
_AGE = {
    "sqlite": "CAST(julianday(over_day) - julianday(logical_date) AS INTEGER)",
    "postgresql": "(over_day - logical_date)",
}

_GROUPS = {
    "query": "query_name",
    "customer": "customer_id",
    "date": "CAST(logical_date AS TEXT)",
    "month": "substr(CAST(logical_date AS TEXT), 1, 7)",
    "source": "source",
}


Order = Literal["asset", "newest", "customer"]
_ORDERS: dict[Order, str] = {
    "asset": "source, query_name, customer_id, logical_date",
    "newest": "logical_date DESC, source, query_name, customer_id",
    "customer": "customer_id, source, query_name, logical_date",
}


class StateReader:
    """Questions about partitions, each answered from one snapshot of the database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def views(
        self,
        ranges: Sequence[ExpectedRange],
        *,
        status: PartitionStatus | None = None,
        display: DisplayStatus | None = None,
        explicit: bool = False,
        last_failed: bool = False,
        marked: bool = False,
        after: PartitionKey | None = None,
        limit: int | None = None,
    ) -> list[PartitionView]:
        """The expected partitions of `ranges` in key order; those without a row are implicit pending, unless only
        `explicit` ones are asked for, or only those `marked` by an operator as paused or held."""
        where, parameters = _filters(status, display, explicit, last_failed, after, marked)
        tail = "" if limit is None else f" LIMIT {int(limit)}"
        select = f"SELECT * FROM view{where} ORDER BY source, customer_id, query_name, logical_date{tail}"
        return [_view(row) for row in self._query(select, ranges, parameters, _VIEW_TYPES)]

    def count(
        self,
        ranges: Sequence[ExpectedRange],
        *,
        status: PartitionStatus | None = None,
        display: DisplayStatus | None = None,
        explicit: bool = False,
        last_failed: bool = False,
    ) -> int:
        where, parameters = _filters(status, display, explicit, last_failed, None)
        return int(self._query(f"SELECT COUNT(*) AS n FROM view{where}", ranges, parameters, {})[0].n)

    def counts(
        self, ranges: Sequence[ExpectedRange], by: Sequence[str] = (), *, status: PartitionStatus | None = None
    ) -> list[dict[str, Any]]:
        """How many partitions show each display status, grouped by any of query, customer, date, month, source."""
        groups = "".join(f'{_GROUPS[name]} AS "{name}", ' for name in by)
        numbers = ", ".join(str(index + 1) for index in range(len(by) + 1))
        where, parameters = _filters(status, None, False, False, None)
        select = f"SELECT {groups}display, COUNT(*) AS n FROM view{where} GROUP BY {numbers} ORDER BY {numbers}"
        return [dict(row._mapping) for row in self._query(select, ranges, parameters, {})]

    def reasons(
        self,
        ranges: Sequence[ExpectedRange],
        now: datetime,
        restated: Mapping[str, Sequence[int]],
        status: PartitionStatus | None = None,
    ) -> dict[str, int]:
        """How many partitions would be attempted for which reason.

        Those that are `open`, `paused` or `waiting` (the source asked for a pause) would not; for `success` and
        `failed` nothing is due. `restated` are ages by query.
        """
        where = "" if status is None else f" WHERE status = '{status.value}'"
        select = f"SELECT reason, COUNT(*) AS n FROM ({self._reasoned(restated)}) q{where} GROUP BY 1 ORDER BY 1"
        return {row.reason: row.n for row in self._query(select, ranges, {"now": now}, {})}

    def due_by_day(
        self,
        ranges: Sequence[ExpectedRange],
        reasons: Sequence[str],
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
        reasons: Sequence[str],
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
            " COALESCE(last_attempt_no, 0) AS last_attempt_no, held_at IS NOT NULL AS held"
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
        rows = self._query(select, ranges, parameters, {"logical_date": sa.Date()})
        return [
            Candidate(_key(row), PartitionStatus(row.status), row.reason, row.last_attempt_no, bool(row.held))
            for row in rows
        ]

    def _reasoned(self, restated: Mapping[str, Sequence[int]]) -> str:
        due = _restatement_due(self._database.dialect, restated)
        return f"SELECT *, {_REASON.format(restatement_due=due)} AS reason FROM view"

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

    def left_nothing(self, ranges: Sequence[ExpectedRange]) -> set[PartitionKey]:
        """Failed partitions none of whose attempts left a sealed run or a recorded extraction error."""
        select = f"""
            SELECT v.source, v.customer_id, v.query_name, v.logical_date FROM view v WHERE v.status = 'failed'
            AND NOT EXISTS (SELECT 1 FROM partition_attempt a WHERE {same_key("a", "v")}
                AND (a.payload_digest IS NOT NULL OR (a.stage = 'extract' AND a.outcome = 'FAILED')))"""
        rows = self._query(select, ranges, {}, {"logical_date": sa.Date()})
        return {_key(row) for row in rows}

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
    ) -> Sequence[Row[Any]]:
        with self._database.snapshot() as connection:
            text = f"WITH RECURSIVE {_DAYS[self._database.dialect]}, {_VIEW} {select}"
            moments = [
                sa.bindparam(name, type_=UtcTimestamp())
                for name, value in parameters.items()
                if isinstance(value, datetime)
            ]
            statement = sa.text(text).bindparams(*moments)
            return connection.execute(statement.columns(**types), {"ranges": _as_json(ranges), **parameters}).all()


def _for_reasons(reasons: Sequence[str], status: PartitionStatus | None) -> str:
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
    display: DisplayStatus | None,
    explicit: bool,
    last_failed: bool,
    after: PartitionKey | None,
    marked: bool = False,
) -> tuple[str, dict[str, Any]]:
    conditions, parameters = [], {}
    if status is not None:
        conditions.append("status = :status")
        parameters["status"] = status.value
    if display is not None:
        conditions.append("display = :display")
        parameters["display"] = display.value
    if explicit:
        conditions.append("(explicit OR open_run_id IS NOT NULL)")
    if last_failed:
        conditions.append("(status = 'failed' OR display = 'materialized_but_last_attempt_failed')")
    if marked:
        conditions.append("(paused_at IS NOT NULL OR held_at IS NOT NULL)")
    if after is not None:
        conditions.append("(source, customer_id, query_name, CAST(logical_date AS TEXT)) > (:a1, :a2, :a3, :a4)")
        parameters |= {
            "a1": after.source,
            "a2": after.customer_id,
            "a3": after.query_name,
            "a4": after.logical_date.isoformat(),
        }
    return (" WHERE " + " AND ".join(conditions) if conditions else ""), parameters


def _as_json(ranges: Sequence[ExpectedRange]) -> str:
    rows = [
        [r.source, r.customer_id, r.query_name, r.first, r.last, r.over or r.last, r.utc_offset]
        for r in ranges
        if r.first <= r.last
    ]
    return orjson.dumps(rows).decode()


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
        display=DisplayStatus(row.display),
        explicit=row.explicit,
        last_attempt_no=row.last_attempt_no or 0,
        last_attempt_run_id=row.last_attempt_run_id,
        last_attempt_outcome=_maybe(Outcome, row.last_attempt_outcome),
        last_attempt_error_class=_maybe(ErrorClass, row.last_attempt_error_class),
        last_attempt_error=row.last_attempt_error,
        last_attempt_at=row.last_attempt_at,
        open_run_id=row.open_run_id,
        control=PartitionControl(row.failures or 0, *(getattr(row, name) for name in _CONTROL[1:])),
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
