"""Whoever only looks gets this: rows of state and attempts, and the expected partitions that have none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.engine import Row

from penstock.db import schema
from penstock.db.bulk import same_key
from penstock.db.engine import Database
from penstock.db.types import UtcTimestamp
from penstock.errors import ErrorClass
from penstock.lifecycle import DisplayStatus, Outcome, PartitionStatus, Stage
from penstock.partition import PartitionKey, RunId
from penstock.state.records import Attempt, ExpectedRange, PartitionState, PartitionView

# Ranges arrive as one JSON parameter and are unfolded into days by the database: a million pending partitions cost
# no rows, no temporary table and no Python objects.
_DAYS = {
    "sqlite": """
        ranges AS MATERIALIZED (
            SELECT json_extract(value, '$[0]') AS source, json_extract(value, '$[1]') AS customer_id,
                json_extract(value, '$[2]') AS query_name, json_extract(value, '$[3]') AS first_day,
                json_extract(value, '$[4]') AS last_day
            FROM json_each(:ranges)
        ),
        calendar(day) AS (
            SELECT MIN(first_day) FROM ranges
            UNION ALL SELECT date(day, '+1 day') FROM calendar WHERE day < (SELECT MAX(last_day) FROM ranges)
        ),
        expected AS (
            SELECT r.source, r.customer_id, r.query_name, c.day AS logical_date
            FROM ranges r JOIN calendar c ON c.day BETWEEN r.first_day AND r.last_day
        )""",
    "postgresql": """
        expected AS (
            SELECT r ->> 0 AS source, r ->> 1 AS customer_id, r ->> 2 AS query_name, day::date AS logical_date
            FROM jsonb_array_elements(CAST(:ranges AS jsonb)) r,
                generate_series((r ->> 3)::date, (r ->> 4)::date, interval '1 day') day
        )""",
}

# One row per expected partition: its state (or none), its newest closed attempt (or none), its open attempt (or none).
_VIEW = f"""
view AS (
    SELECT e.source, e.customer_id, e.query_name, e.logical_date,
        s.source IS NOT NULL AS explicit, COALESCE(s.status, 'pending') AS status, s.current_run_id, s.schema_version,
        s.record_count, s.updated_at, s.error_message, COALESCE(s.attempt_count, 0) AS attempt_count,
        COALESCE(s.authority_version, 0) AS authority_version,
        l.attempt_no AS last_attempt_no, l.run_id AS last_attempt_run_id, l.outcome AS last_attempt_outcome,
        l.error_class AS last_attempt_error_class, l.error_message AS last_attempt_error,
        l.finished_at AS last_attempt_at, o.run_id AS open_run_id,
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
)"""

_VIEW_TYPES: dict[str, sa.types.TypeEngine[Any]] = {
    "logical_date": sa.Date(),
    "explicit": sa.Boolean(),
    "updated_at": UtcTimestamp(),
    "last_attempt_at": UtcTimestamp(),
}

_GROUPS = {
    "query": "query_name",
    "customer": "customer_id",
    "date": "CAST(logical_date AS TEXT)",
    "month": "substr(CAST(logical_date AS TEXT), 1, 7)",
    "source": "source",
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
        after: PartitionKey | None = None,
        limit: int | None = None,
    ) -> list[PartitionView]:
        """The expected partitions of `ranges` in key order; those without a row are implicit pending, unless only
        `explicit` ones are asked for."""
        where, parameters = _filters(status, display, explicit, last_failed, after)
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

    def candidates(self, ranges: Sequence[ExpectedRange], statuses: Sequence[PartitionStatus]) -> list[tuple[Any, ...]]:
        """(source, customer, query, date, status, explicit, last attempt number) of partitions free to be attempted."""
        marks = ", ".join(f"'{status}'" for status in statuses)
        select = (
            "SELECT source, customer_id, query_name, logical_date, status, explicit, COALESCE(last_attempt_no, 0)"
            f" FROM view WHERE status IN ({marks}) AND open_run_id IS NULL"
            " ORDER BY source, query_name, customer_id, logical_date"
        )
        return [tuple(row) for row in self._query(select, ranges, {}, _VIEW_TYPES)]

    def held(self, ranges: Sequence[ExpectedRange]) -> int:
        """How many of these partitions have an open attempt: somebody is working on them."""
        return int(self._query("SELECT COUNT(*) AS n FROM view WHERE open_run_id IS NOT NULL", ranges, {}, {})[0].n)

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

    def audit(self, limit: int | None = None) -> Iterator[dict[str, Any]]:
        """The manual acts, newest first."""
        with self._database.snapshot() as connection:
            rows = connection.execute(
                sa.select(schema.audit).order_by(schema.audit.c.audit_id.desc()).limit(limit)
            ).all()
        return (dict(row._mapping) for row in rows)

    def _query(
        self,
        select: str,
        ranges: Sequence[ExpectedRange],
        parameters: dict[str, Any],
        types: dict[str, sa.types.TypeEngine[Any]],
    ) -> Sequence[Row[Any]]:
        with self._database.snapshot() as connection:
            return connection.execute(
                sa.text(f"WITH RECURSIVE {_DAYS[self._database.dialect]}, {_VIEW} {select}").columns(**types),
                {"ranges": _as_json(ranges), **parameters},
            ).all()


def _filters(
    status: PartitionStatus | None,
    display: DisplayStatus | None,
    explicit: bool,
    last_failed: bool,
    after: PartitionKey | None,
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
    return orjson.dumps(
        [[r.source, r.customer_id, r.query_name, r.first, r.last] for r in ranges if r.first <= r.last]
    ).decode()


def _is(table: sa.Table, key: PartitionKey) -> list[sa.ColumnElement[bool]]:
    return [table.c[name] == getattr(key, name) for name in schema.KEY]


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
    )


def _maybe(kind: Any, value: str | None) -> Any:
    return None if value is None else kind(value)
