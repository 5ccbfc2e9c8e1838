"""SQL of the partition view: one row per expected partition, with the reason for which it would be attempted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

import sqlalchemy as sa

from penstock import partition
from penstock.db.bulk import same_key
from penstock.db.types import UtcTimestamp
from penstock.lifecycle import PartitionStatus, PlanReason
from penstock.partition import PartitionKey

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
CONTROL_COLUMNS = ("failures", "failing_since", "next_run_at", "strategy", *_MARKS)
# A partition is paused by its own mark, or by the selector that applies to it.
_PAUSED = {
    "paused_at": "COALESCE(k.paused_at, q.since)",
    "paused_by": "COALESCE(k.paused_by, q.actor)",
    "paused_reason": "CASE WHEN k.paused_at IS NULL THEN q.reason ELSE k.paused_reason END",
}

_VIEW = f"""
view AS (
    SELECT e.source, e.customer_id, e.query_name, e.logical_date, e.over_day, e.utc_offset, e.max_attempts, e.max_age,
        s.source IS NOT NULL AS explicit, COALESCE(s.status, 'pending') AS status, s.current_run_id, s.schema_version,
        s.record_count, s.updated_at, s.error_message, COALESCE(s.attempt_count, 0) AS attempt_count,
        COALESCE(s.authority_version, 0) AS authority_version,
        l.attempt_no AS last_attempt_no, l.run_id AS last_attempt_run_id, l.outcome AS last_attempt_outcome,
        l.error_class AS last_attempt_error_class, l.error_message AS last_attempt_error,
        l.finished_at AS last_attempt_at, l.backfill_id AS last_backfill_id, o.run_id AS open_run_id,
        {", ".join(f"{_PAUSED.get(name, f'k.{name}')} AS {name}" for name in CONTROL_COLUMNS)},
        -- nothing that came after the failure has settled it: no acceptance, no rollback, no approval
        COALESCE(l.outcome = 'FAILED' AND l.attempt_no > COALESCE(k.cleared_attempt_no, 0)
            AND l.run_id <> s.current_run_id, false) AS refetch_failed
    FROM {{rows}} e
    LEFT JOIN partition_state s ON {same_key("s", "e")}
    LEFT JOIN partition_attempt l ON {same_key("l", "e")} AND l.attempt_no = (
        SELECT MAX(m.attempt_no) FROM partition_attempt m WHERE {same_key("m", "e")} AND m.outcome IS NOT NULL)
    LEFT JOIN partition_attempt o ON {same_key("o", "e")} AND o.outcome IS NULL
    LEFT JOIN partition_control k ON {same_key("k", "e")}
    LEFT JOIN pause_selector q ON q.selector_no = e.pause_no
)"""


def view_over(rows: str = "expected") -> str:
    """The table expression `view`: one row for each of these expected partitions, with its state, its newest closed
    attempt, its open attempt and its control metadata, each of which may be missing."""
    return _VIEW.format(rows=rows)


# Expected partitions whose first attempt is open: they have no state yet.
COUNT_FIRST_ATTEMPTS = f"""
SELECT COUNT(*) FROM partition_attempt o JOIN ranges r ON o.source = r.source AND o.customer_id = r.customer_id
    AND o.query_name = r.query_name AND o.logical_date BETWEEN r.first_day AND r.last_day
WHERE o.outcome IS NULL AND NOT EXISTS (SELECT 1 FROM partition_state s WHERE {same_key("s", "o")})"""

VIEW_TYPES: dict[str, sa.types.TypeEngine[Any]] = {
    "logical_date": sa.Date(),
    "explicit": sa.Boolean(),
    "updated_at": UtcTimestamp(),
    "last_attempt_at": UtcTimestamp(),
    "expires_at": UtcTimestamp(),
    **{name: UtcTimestamp() for name in CONTROL_COLUMNS if name.endswith(("_at", "_since"))},
}

# The reason why a partition would be attempted now, or is not. An open attempt or a pause comes first. A re-fetch of a
# success partition that was postponed by its source is a retry when the pause ends, unless it belongs to a backfill,
# which attempts it again by itself.
REASON = f"""
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

# When the day reached the age, as a timestamp: the end of the day in the account's time zone, plus the age in days.
_REACHED = {
    "sqlite": "strftime('%Y-%m-%dT%H:%M:%f000Z', logical_date, printf('%+d days', 1 + {age}),"
    " printf('%+d seconds', -utc_offset))",
    "postgresql": "((logical_date + 1 + {age})::timestamp AT TIME ZONE 'UTC' - make_interval(secs => utc_offset))",
}
# When the age of the day ends its retries; NULL without a policy.
EXPIRES_AT = {
    "sqlite": "CASE WHEN max_age IS NOT NULL THEN strftime('%Y-%m-%dT%H:%M:%f000Z', logical_date, '+1 days',"
    " printf('%+d seconds', max_age - utc_offset)) END",
    "postgresql": "((logical_date + 1)::timestamp AT TIME ZONE 'UTC' + make_interval(secs => max_age - utc_offset))",
}
_AGE = {
    "sqlite": "CAST(julianday(over_day) - julianday(logical_date) AS INTEGER)",
    "postgresql": "(over_day - logical_date)",
}

_NUMBER = "ROW_NUMBER() OVER (PARTITION BY source, customer_id, query_name ORDER BY logical_date)"
ISLAND = {  # equal for consecutive days
    "sqlite": f"CAST(julianday(logical_date) AS INTEGER) - {_NUMBER}",
    "postgresql": f"logical_date - CAST({_NUMBER} AS INTEGER)",
}

# An attempt that left a sealed run, or a recorded error of the extraction.
HAS_EVIDENCE = "(a.payload_digest IS NOT NULL OR (a.stage = 'extract' AND a.outcome = 'FAILED'))"

Order = Literal["asset", "newest"]
ORDERS: dict[Order, str] = {
    "asset": "source, query_name, customer_id, logical_date",
    "newest": "logical_date DESC, source, query_name, customer_id",
}


def count_states(condition: str) -> str:
    """The statement that counts the states of expected partitions. CROSS JOIN makes SQLite start with the ranges."""
    return f"""
        SELECT COUNT(*) FROM ranges r CROSS JOIN partition_state s WHERE s.source = r.source
        AND s.customer_id = r.customer_id AND s.query_name = r.query_name
        AND s.logical_date BETWEEN r.first_day AND r.last_day AND {condition}"""


def for_reasons(reasons: Sequence[PlanReason], status: PartitionStatus | None) -> str:
    """The condition that a partition would be attempted for one of these reasons, and has this status."""
    marks = ", ".join(f"'{reason}'" for reason in reasons)
    return f"reason IN ({marks})" + ("" if status is None else f" AND status = '{status.value}'")


def restatement_due(dialect: str, restated: Mapping[str, Sequence[int]]) -> str:
    """The SQL condition that the last verdict is older than the last age at which the day was due for restatement."""
    if not restated:
        return "false"
    cases = []
    for name, ages in sorted(restated.items()):
        steps = " ".join(f"WHEN {_AGE[dialect]} >= {int(age)} THEN {int(age)}" for age in sorted(ages, reverse=True))
        cases.append(f"WHEN '{partition.name(name)}' THEN CASE {steps} END")
    age = f"CASE query_name {' '.join(cases)} END"
    return f"(({age}) IS NOT NULL AND {judged_at('view')} < {_REACHED[dialect].format(age=f'({age})')})"


def judged_at(table: str) -> str:
    """The SQL expression for the issue time of the newest attempt with a verdict."""
    return (
        f"(SELECT MAX(j.issued_at) FROM partition_attempt j WHERE {same_key('j', table)}"
        " AND j.outcome IN ('SUCCEEDED', 'FAILED'))"
    )


def filters(
    status: PartitionStatus | None,
    explicit: bool,
    last_failed: bool,
    after: PartitionKey | None,
    marked: bool = False,
    paused: bool | None = None,
    at_a_moment: tuple[str, datetime] | None = None,  # a further condition, and the value of its `:now`
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
