"""Why a partition is stale, worked out when somebody asks: by time, by its inputs, by its code, all reasons at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from enum import StrEnum

import pyarrow as pa


class StaleReason(StrEnum):
    FRESHNESS_POLICY = "FRESHNESS_POLICY"  # older than the policy allows, and it could still become fresher
    UPSTREAM_CHANGED = "UPSTREAM_CHANGED"  # made from runs that are not the trusted ones any more
    CODE_CHANGED = "CODE_CHANGED"  # made by an older version of its definition


@dataclass(frozen=True, slots=True)
class Policy:
    """What staleness is measured by, for one asset."""

    source: str
    query_name: str
    code_version: str
    code_since: datetime | None  # when this version was first used
    max_lag: timedelta | None
    restate_days: int


@dataclass(frozen=True, slots=True)
class Expected:
    """Days of one customer and asset that should exist, and the last day that is over there."""

    source: str
    customer_id: str
    query_name: str
    first: date
    last: date
    over: date


_POLICIES = pa.schema(
    [
        ("source", pa.string()),
        ("query_name", pa.string()),
        ("code_version", pa.string()),
        ("code_since", pa.timestamp("us", tz="UTC")),
        ("max_lag", pa.duration("us")),
        ("restate_days", pa.int32()),
    ]
)
_EXPECTED = pa.schema(
    [
        ("source", pa.string()),
        ("customer_id", pa.string()),
        ("query_name", pa.string()),
        ("first", pa.date32()),
        ("last", pa.date32()),
        ("over", pa.date32()),
    ]
)


def policy_table(policies: Iterable[Policy]) -> pa.Table:
    return _table(
        ((p.source, p.query_name, p.code_version, p.code_since, p.max_lag, p.restate_days) for p in policies), _POLICIES
    )


def expected_table(expected: Iterable[Expected]) -> pa.Table:
    rows = dict.fromkeys((e.source, e.customer_id, e.query_name, e.first, e.last, e.over) for e in expected)
    return _table(rows, _EXPECTED)


def _table(rows: Iterable[tuple[object, ...]], schema: pa.Schema) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.Table.from_arrays([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


_KEY = "source, customer_id, query_name, logical_date"

# An input counts as changed when another run of it is trusted now, or none, unless the rows are the same.
UPSTREAM_SQL = """
SELECT c.source, c.customer_id, c.query_name, c.logical_date,
    min(u.last_materialization_at) AS upstream_since, count(*) AS upstream_changes
FROM consumed c
JOIN said m ON m.source = c.source AND m.customer_id = c.customer_id AND m.query_name = c.query_name
    AND m.logical_date = c.logical_date AND m.last_materialization_run_id = c.run_id
LEFT JOIN said u ON u.source = c.input_source AND u.customer_id = c.input_customer_id
    AND u.query_name = c.input_query_name AND u.logical_date = c.input_logical_date
WHERE u.last_materialization_run_id IS NULL OR NOT u.available
    OR (u.last_materialization_run_id <> c.input_run_id AND u.content_digest <> c.input_content_digest)
GROUP BY c.source, c.customer_id, c.query_name, c.logical_date
"""

# The newest slice of a customer, and slices that their source may still change: only those can become fresher.
NEWEST_SQL = """
SELECT source, customer_id, query_name, max(logical_date) AS newest FROM said
WHERE last_materialization_at IS NOT NULL GROUP BY source, customer_id, query_name
"""

JUDGED_SQL = f"""
WITH flagged AS (
    SELECT s.*, e.over,
        s.last_attempt_outcome = 'FAILED'
            AND (s.last_materialization_at IS NULL OR s.last_attempt_at > s.last_materialization_at) AS last_failed,
        s.last_materialization_at IS NOT NULL AND s.last_materialization_at + p.max_lag < now_
            AND (s.logical_date > e.over - p.restate_days OR s.logical_date = n.newest) AS late,
        s.last_materialization_at IS NOT NULL AND s.last_materialization_code_version <> p.code_version AS outdated,
        u.upstream_changes IS NOT NULL AS overtaken,
        s.last_materialization_at + p.max_lag AS late_since, COALESCE(p.code_since, now_) AS outdated_since,
        COALESCE(u.upstream_since, s.last_materialization_at) AS overtaken_since
    FROM said s
    JOIN expected e ON e.source = s.source AND e.customer_id = s.customer_id AND e.query_name = s.query_name
        AND s.logical_date BETWEEN e.first AND e.last
    LEFT JOIN policies p ON p.source = s.source AND p.query_name = s.query_name
    LEFT JOIN newest n ON n.source = s.source AND n.customer_id = s.customer_id AND n.query_name = s.query_name
    LEFT JOIN overtaken u ON u.source = s.source AND u.customer_id = s.customer_id AND u.query_name = s.query_name
        AND u.logical_date = s.logical_date
    CROSS JOIN moment
)
SELECT {_KEY}, attempt_no, last_attempt_run_id, last_attempt_at, last_attempt_outcome, authority_version, available,
    materialized_version, last_materialization_run_id, last_materialization_at, last_materialization_code_version,
    published_run_id,
    COALESCE(last_failed, false) AS last_failed, COALESCE(late, false) AS late, COALESCE(outdated, false) AS outdated,
    overtaken, available AND COALESCE(published_run_id, '') <> last_materialization_run_id AS unpublished,
    CASE WHEN late THEN late_since WHEN overtaken THEN overtaken_since WHEN outdated THEN outdated_since END
        AS stale_since,
    CASE WHEN late THEN '{StaleReason.FRESHNESS_POLICY}' WHEN overtaken THEN '{StaleReason.UPSTREAM_CHANGED}'
        WHEN outdated THEN '{StaleReason.CODE_CHANGED}' END AS stale_reason_code,
    CASE
        WHEN last_materialization_at IS NULL THEN 'never_materialized'
        WHEN NOT available THEN 'unavailable'
        WHEN last_failed THEN 'materialized_but_last_attempt_failed'
        WHEN late OR overtaken OR outdated THEN 'stale'
        ELSE 'materialized'
    END AS display
FROM flagged
"""
