"""Stored retry decisions: what the policy decided about each failed attempt, kept beside the state and not in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.db.bulk import KEY_COLUMNS, key_values, same_key, staged
from penstock.db.engine import Database
from penstock.db.locks import lock_partitions
from penstock.db.types import UtcTimestamp
from penstock.errors import ErrorClass
from penstock.partition import PartitionKey

# Failures in a row: since the last acceptance, and since an operator last cleared the partition.
_IN_A_ROW = f"""
FROM partition_attempt f WHERE {same_key("f", "d")} AND f.outcome = 'FAILED'
AND f.attempt_no > COALESCE(k.cleared_attempt_no, 0)
AND f.attempt_no > COALESCE((SELECT MAX(g.attempt_no) FROM partition_attempt g
    WHERE {same_key("g", "d")} AND (g.outcome = 'SUCCEEDED' OR g.approved_at IS NOT NULL)), 0)
"""

_UNDECIDED = f"""
SELECT d.source, d.customer_id, d.query_name, d.logical_date, d.attempt_no, a.error_class, a.finished_at,
    (SELECT COUNT(*) {_IN_A_ROW}) AS failures, (SELECT MIN(f.issued_at) {_IN_A_ROW}) AS failing_since
FROM retry_due d
JOIN partition_attempt a ON {same_key("a", "d")} AND a.attempt_no = d.attempt_no
LEFT JOIN partition_control k ON {same_key("k", "d")}
ORDER BY d.source, d.customer_id, d.query_name, d.logical_date
LIMIT :limit
"""

# If another process was faster, or a newer attempt failed, the decision is obsolete.
_LEAVE_OUT = f"""
DELETE FROM incoming_decision AS i WHERE NOT EXISTS (SELECT 1 FROM retry_due d
    WHERE {same_key("d", "i")} AND d.attempt_no = i.attempt_no)
"""

_DECIDE = """
INSERT INTO partition_control AS k (source, customer_id, query_name, logical_date, failures, failing_since, next_run_at,
    strategy)
SELECT i.source, i.customer_id, i.query_name, i.logical_date, i.failures, i.failing_since, i.next_run_at, i.strategy
FROM incoming_decision i WHERE true
ORDER BY i.source, i.customer_id, i.query_name, i.logical_date
ON CONFLICT (source, customer_id, query_name, logical_date) DO UPDATE SET failures = excluded.failures,
    failing_since = excluded.failing_since, next_run_at = excluded.next_run_at, strategy = excluded.strategy
"""

_FORGET = f"""
DELETE FROM retry_due AS d WHERE EXISTS (SELECT 1 FROM incoming_decision i
    WHERE {same_key("i", "d")} AND i.attempt_no = d.attempt_no)
"""

_COLUMNS = {
    **KEY_COLUMNS,
    "attempt_no": sa.Integer(),
    "failures": sa.Integer(),
    "failing_since": UtcTimestamp(),
    "next_run_at": UtcTimestamp(),
    "strategy": sa.Text(),
}


@dataclass(frozen=True, slots=True)
class Undecided:
    """A failed attempt that waits for a decision of the retry policy."""

    key: PartitionKey
    attempt_no: int
    error_class: ErrorClass
    finished_at: datetime
    failures: int
    failing_since: datetime


@dataclass(frozen=True, slots=True)
class Decided:
    """The decision of the retry policy about a failed attempt."""

    about: Undecided
    next_run_at: datetime | None
    strategy: str


class RetryStore:
    """Reads failed attempts without a decision, and stores decisions. A decision lost in a crash is made again."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def undecided(self, limit: int) -> list[Undecided]:
        types: dict[str, sa.types.TypeEngine[Any]] = {
            "logical_date": sa.Date(),
            "finished_at": UtcTimestamp(),
            "failing_since": UtcTimestamp(),
        }
        with self._database.snapshot() as connection:
            rows = connection.execute(sa.text(_UNDECIDED).columns(**types), {"limit": limit}).all()
        return [
            Undecided(
                PartitionKey(r.source, r.customer_id, r.query_name, r.logical_date),
                r.attempt_no,
                ErrorClass(r.error_class),
                r.finished_at,
                r.failures,
                r.failing_since or r.finished_at,
            )
            for r in rows
        ]

    def decide(self, decisions: Sequence[Decided]) -> None:
        """Store the decisions that are about the last attempt of their partition."""
        if decisions:
            self._database.transact(lambda connection: self._decide(connection, decisions))

    def _decide(self, connection: Connection, decisions: Sequence[Decided]) -> None:
        rows = [
            (
                *key_values(d.about.key), d.about.attempt_no, d.about.failures, d.about.failing_since,
                d.next_run_at, d.strategy,
            )
            for d in decisions
        ]  # fmt: skip
        with staged(connection, "incoming_decision", _COLUMNS, rows):
            # A concurrent acceptance waits for this decision, or this decision for it.
            lock_partitions(connection, "retry_due", "incoming_decision")
            connection.execute(sa.text(_LEAVE_OUT))
            connection.execute(sa.text(_DECIDE))
            connection.execute(sa.text(_FORGET))
