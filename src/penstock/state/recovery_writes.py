"""Writes a planned recovery to the database: attempts, authority, pointers and events, in the caller's transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.db import schema
from penstock.db.bulk import KEY_COLUMNS, Columns, insert, key_values, same_key, staged, timed
from penstock.db.locks import lock_partitions
from penstock.db.types import UtcTimestamp
from penstock.ledger.append import append
from penstock.ledger.events import AuthorityChanged, Event, PartitionPublished, TaskFinished
from penstock.lifecycle import Act, AttemptReason, Outcome, Stage
from penstock.partition import AttemptKey, PartitionKey, RunId
from penstock.state.recovery import AssetRecovery, Decision, RecoveryRuling

REASON = AttemptReason.RECOVERED
_ATTEMPT_COLUMNS = (
    *schema.KEY, "run_id", "attempt_no", "reason", "contract_fingerprint", "schema_version", "worker_token",
    "lost_count", "issued_at", "stage", "outcome", "error_class", "error_message", "record_count", "payload_digest",
    "payload_bytes", "content_digest", "finished_at", "demoted_at",
)  # fmt: skip
_DECISION: Columns = {
    **KEY_COLUMNS,
    "run_id": sa.Text(),
    "ruling": sa.Text(),
    "takes": sa.Integer(),
    "counts": sa.Integer(),
    "schema_version": sa.Text(),
    "record_count": sa.BigInteger(),
    "payload_digest": sa.Text(),
    "payload_bytes": sa.BigInteger(),
    "content_digest": sa.Text(),
    "authority_version": sa.Integer(),
    "available": sa.Boolean(),
    "table_name": sa.Text(),
    "table_version": sa.BigInteger(),
    "extracted_at": UtcTimestamp(),
}
_SAME_RUN = f"{same_key('a', 'i')} AND a.run_id = i.run_id"
_CLOSE = f"""
UPDATE partition_attempt AS a SET outcome = 'SUCCEEDED', stage = 'validate', record_count = i.record_count,
    payload_digest = i.payload_digest, payload_bytes = i.payload_bytes, content_digest = i.content_digest,
    finished_at = :now, lost_count = 0
FROM incoming_decision i WHERE {_SAME_RUN} AND i.ruling = 'close' AND a.outcome IS NULL
"""
_SUPERSEDE = f"""
UPDATE partition_attempt AS a SET outcome = 'CANCELLED', stage = 'extract', error_class = 'internal',
    finished_at = :now, error_message = 'the database was restored, and a later run of this partition is known'
FROM incoming_raw i WHERE {_SAME_RUN} AND a.outcome IS NULL
"""
_MARK_RAW = f"""
UPDATE partition_attempt AS a SET raw_deleted_at = :now
FROM incoming_raw i WHERE {_SAME_RUN} AND a.raw_deleted_at IS NULL
"""
_APPROVE = f"""
UPDATE partition_attempt AS a SET approved_at = :now
FROM incoming_decision i WHERE {_SAME_RUN} AND i.ruling = 'approve' AND a.approved_at IS NULL
"""
_MOVE = """
INSERT INTO partition_state AS s (source, customer_id, query_name, logical_date, status, current_run_id, schema_version,
    record_count, updated_at, error_message, attempt_count, authority_version)
SELECT i.source, i.customer_id, i.query_name, i.logical_date, 'success', i.run_id, i.schema_version, i.record_count,
    :now, NULL, i.counts, i.authority_version
FROM incoming_decision i WHERE i.takes = 1
ORDER BY i.source, i.customer_id, i.query_name, i.logical_date
ON CONFLICT (source, customer_id, query_name, logical_date) DO UPDATE SET
    status = 'success', current_run_id = excluded.current_run_id, schema_version = excluded.schema_version,
    record_count = excluded.record_count, updated_at = excluded.updated_at, error_message = NULL,
    attempt_count = s.attempt_count + excluded.attempt_count, authority_version = excluded.authority_version
"""
_COUNT = f"""
UPDATE partition_state AS s SET attempt_count = s.attempt_count + i.counts
FROM incoming_decision i WHERE {same_key("s", "i")} AND i.takes = 0 AND i.counts > 0
"""
_POINT = """
INSERT INTO warehouse_pointer (source, customer_id, query_name, logical_date, run_id, schema_version, table_name,
    table_version, available, record_count, loaded_at, hidden_at)
SELECT i.source, i.customer_id, i.query_name, i.logical_date, i.run_id, i.schema_version, i.table_name, i.table_version,
    i.available, i.record_count, :now, NULL
FROM incoming_decision i WHERE true
ORDER BY i.source, i.customer_id, i.query_name, i.logical_date
ON CONFLICT (source, customer_id, query_name, logical_date) DO UPDATE SET
    run_id = excluded.run_id, schema_version = excluded.schema_version, table_name = excluded.table_name,
    table_version = excluded.table_version, available = excluded.available, record_count = excluded.record_count,
    loaded_at = excluded.loaded_at, hidden_at = NULL
"""
_RECORD_LOADS = """
INSERT INTO load_record (source, customer_id, query_name, logical_date, run_id, schema_version, record_count, loaded_at,
    table_name)
SELECT source, customer_id, query_name, logical_date, run_id, schema_version, record_count, :now, table_name
FROM incoming_decision WHERE ruling <> 'conflict'
ON CONFLICT DO NOTHING
"""
_HIDE = f"""
UPDATE warehouse_pointer AS p SET available = false, hidden_at = :now FROM incoming_key k WHERE {same_key("p", "k")}
"""
# An operator rolled back to this run, or approved it: restatement must not overwrite such a choice.
_HOLD = """
INSERT INTO partition_control (source, customer_id, query_name, logical_date, held_at, held_by, held_reason)
SELECT i.source, i.customer_id, i.query_name, i.logical_date, :now, 'recover',
    'an operator chose run ' || i.run_id || ' after the backup'
FROM incoming_decision i WHERE i.takes = 1 AND i.ruling IN ('approve', 'known')
ON CONFLICT (source, customer_id, query_name, logical_date)
DO UPDATE SET held_at = excluded.held_at, held_by = excluded.held_by, held_reason = excluded.held_reason
"""
_WITHDRAW = f"""
UPDATE partition_state AS s SET status = 'failed', updated_at = :now, authority_version = s.authority_version + 1,
    error_message = 'withdrawn after the backup: the lake shows that its rows were demoted or replaced'
FROM incoming_key k WHERE {same_key("s", "k")}
"""
# Rows that are still in a table leave it with the next publication; the others are done.
_WITHDRAWN_DUE = f"""
INSERT INTO publish_due (source, customer_id, query_name, logical_date, authority_version, since)
SELECT s.source, s.customer_id, s.query_name, s.logical_date, s.authority_version, :now
FROM partition_state s JOIN incoming_key k ON {same_key("s", "k")} WHERE true
ON CONFLICT (source, customer_id, query_name, logical_date)
DO UPDATE SET authority_version = excluded.authority_version, since = excluded.since
"""
_MARK_DEMOTED = f"""
UPDATE partition_attempt AS a SET demoted_at = :now
FROM incoming_key k JOIN partition_state s ON {same_key("s", "k")}
WHERE {same_key("a", "k")} AND a.run_id = s.current_run_id AND a.demoted_at IS NULL
"""
_WITHDRAWN = f"""
SELECT s.source, s.customer_id, s.query_name, s.logical_date, s.current_run_id, s.authority_version
FROM partition_state s JOIN incoming_key k ON {same_key("s", "k")}
"""
# The run of the pointer is published; every other trusted run is due.
_NOT_DUE = f"""
DELETE FROM publish_due AS d WHERE EXISTS (SELECT 1 FROM incoming_decision i JOIN partition_state s ON
    {same_key("s", "i")} WHERE {same_key("d", "i")} AND s.status = 'success' AND s.current_run_id = i.run_id)
"""
_DUE = f"""
INSERT INTO publish_due (source, customer_id, query_name, logical_date, authority_version, since)
SELECT s.source, s.customer_id, s.query_name, s.logical_date, s.authority_version, :now
FROM incoming_decision i JOIN partition_state s ON {same_key("s", "i")}
WHERE s.authority_version > 0 AND NOT (s.status = 'success' AND s.current_run_id = i.run_id)
ON CONFLICT (source, customer_id, query_name, logical_date) DO NOTHING
"""
_NO_FAILURES = f"""
UPDATE partition_control AS c SET failures = 0, failing_since = NULL, next_run_at = NULL, strategy = NULL
FROM incoming_decision i WHERE {same_key("c", "i")} AND i.takes = 1
"""
_NO_RETRY = f"""
DELETE FROM retry_due AS d WHERE EXISTS (
    SELECT 1 FROM incoming_decision i WHERE {same_key("d", "i")} AND i.takes = 1)
"""


def apply_recovery(
    connection: Connection,
    recovery: AssetRecovery,
    versions: Mapping[str, int],
    batch_id: str,
    worker_token: str,
    now: datetime,
) -> None:
    """Write the decisions: attempts, authority, pointers, events. The caller writes the heads `versions` in the same
    transaction. An asset with ambiguous rows gets no pointers: its tables are rebuilt from raw afterwards."""
    _for_attempts(connection, _SUPERSEDE, [attempt for attempt, _ in recovery.superseded], now)
    _insert_attempts(connection, recovery, worker_token, now)
    mark_raw_deleted(connection, recovery.raw_gone, now)
    verdicts = Counter(run.attempt.partition for run, _ in recovery.sealed if run.outcome != Outcome.CANCELLED)
    rows = [_row(d, versions, verdicts[d.run.attempt.partition]) for d in recovery.decisions]
    with staged(connection, "incoming_decision", _DECISION, rows):
        lock_partitions(connection, "partition_state", "incoming_decision")
        for statement in (_CLOSE, _APPROVE, _MOVE):
            connection.execute(timed(statement), {"now": now})
        connection.execute(sa.text(_COUNT))
        if not recovery.is_rebuilt:
            connection.execute(timed(_POINT), {"now": now})
            connection.execute(timed(_RECORD_LOADS), {"now": now})
            connection.execute(sa.text(_NOT_DUE))
        connection.execute(timed(_DUE), {"now": now})
        connection.execute(timed(_HOLD), {"now": now})
        connection.execute(sa.text(_NO_FAILURES))
        connection.execute(sa.text(_NO_RETRY))
    events = [event for d in recovery.decisions for event in _events(d, versions, batch_id, recovery.is_rebuilt)]
    events += [
        TaskFinished(
            attempt.run_id, attempt.partition, known.attempt_no, Stage.EXTRACT, Outcome.CANCELLED, "internal",
            known.contract_fingerprint, None,
        )
        for attempt, known in recovery.superseded
    ]  # fmt: skip
    events += _withdraw(connection, recovery, now)
    append(connection, events, "recover", now)


def mark_raw_deleted(connection: Connection, attempts: Sequence[AttemptKey], now: datetime) -> None:
    """Record that these raw runs are deleted: no act returns to them."""
    _for_attempts(connection, _MARK_RAW, attempts, now)


def _for_attempts(connection: Connection, statement: str, attempts: Sequence[AttemptKey], now: datetime) -> None:
    rows = [(*key_values(attempt.partition), attempt.run_id) for attempt in attempts]
    with staged(connection, "incoming_raw", {**KEY_COLUMNS, "run_id": sa.Text()}, rows):
        connection.execute(timed(statement), {"now": now})


def _insert_attempts(connection: Connection, recovery: AssetRecovery, worker_token: str, now: datetime) -> None:
    rows = []
    for d in recovery.decisions:
        run = d.run
        if d.ruling is RecoveryRuling.INSERT:
            verdict: tuple[Outcome, str | None, str | None] = (Outcome.SUCCEEDED, None, None)
        elif d.ruling is RecoveryRuling.WITHDRAWN:  # the insert skips attempts that the database has
            verdict = (Outcome.CANCELLED, "internal", "demoted, by an exported event of the ledger")
        else:
            continue
        rows.append(
            (
                *key_values(run.attempt.partition), run.attempt.run_id, d.attempt_no, REASON,
                run.contract_fingerprint, run.schema_version, worker_token, 0, run.extracted_at, Stage.VALIDATE,
                *verdict, run.record_count, run.payload_digest, run.payload_bytes, run.content_digest, now, None,
            )
        )  # fmt: skip
    for sealed, number in recovery.sealed:
        accepted = sealed.outcome == Outcome.SUCCEEDED
        message = None if accepted else "found sealed in the lake by a recovery: the reason of its verdict is lost"
        rows.append(
            (
                *key_values(sealed.attempt.partition), sealed.attempt.run_id, number, REASON,
                sealed.contract_fingerprint, sealed.schema_version, worker_token, 0, sealed.extracted_at,
                Stage.VALIDATE, sealed.outcome, None if accepted else sealed.error_class, message,
                sealed.record_count, sealed.payload_digest, sealed.payload_bytes, sealed.content_digest, now,
                now if sealed.demoted else None,
            )
        )  # fmt: skip
    insert(connection, schema.partition_attempt, _ATTEMPT_COLUMNS, rows)


def _row(d: Decision, versions: Mapping[str, int], verdicts: int) -> tuple[Any, ...]:
    run = d.run
    counts = 1 + verdicts if d.ruling in (RecoveryRuling.INSERT, RecoveryRuling.CLOSE) else 0
    return (
        *key_values(run.attempt.partition), run.attempt.run_id, str(d.ruling), int(d.takes_authority), counts,
        run.schema_version, run.record_count, run.payload_digest, run.payload_bytes, run.content_digest,
        d.authority_version, d.available, run.table, versions[run.table], run.extracted_at,
    )  # fmt: skip


def _events(d: Decision, versions: Mapping[str, int], batch_id: str, ambiguous: bool) -> Iterable[Event]:
    run, (key, run_id) = d.run, d.run.attempt
    if d.ruling in (RecoveryRuling.INSERT, RecoveryRuling.CLOSE):
        yield TaskFinished(
            run_id, key, d.attempt_no, Stage.VALIDATE, Outcome.SUCCEEDED, None, run.contract_fingerprint,
            run.record_count,
        )  # fmt: skip
    if d.takes_authority:
        act = {RecoveryRuling.APPROVE: Act.APPROVE, RecoveryRuling.KNOWN: Act.ROLLBACK}.get(d.ruling, Act.ACCEPT)
        yield AuthorityChanged(run_id, key, d.authority_version, act, run.contract_fingerprint, run.content_digest)
    if d.available and not ambiguous:
        yield PartitionPublished(run_id, key, batch_id, run.table, versions[run.table], run.record_count)


def _withdraw(connection: Connection, recovery: AssetRecovery, now: datetime) -> list[Event]:
    """Delete pointers whose rows left the tables: readers would find nothing."""
    if not recovery.is_rebuilt:  # else the rebuild hides them
        gone = [key_values(key) for key in (*recovery.withdrawn, *recovery.hidden)]
        with staged(connection, "incoming_key", KEY_COLUMNS, gone):
            connection.execute(timed(_HIDE), {"now": now})
    overtaken = [key_values(key) for key in recovery.overtaken]
    with staged(connection, "incoming_key", KEY_COLUMNS, overtaken):
        connection.execute(timed(_WITHDRAW), {"now": now})
        connection.execute(timed(_WITHDRAWN_DUE), {"now": now})
        fallen = connection.execute(sa.text(_WITHDRAWN).columns(logical_date=sa.Date())).all()
    demoted = [key_values(key) for key in (*recovery.withdrawn, *recovery.demoted)]
    with staged(connection, "incoming_key", KEY_COLUMNS, demoted):
        connection.execute(timed(_MARK_DEMOTED), {"now": now})
        connection.execute(timed(_WITHDRAW), {"now": now})
        connection.execute(timed(_WITHDRAWN_DUE), {"now": now})
        rows = connection.execute(sa.text(_WITHDRAWN).columns(logical_date=sa.Date())).all()
    return [
        AuthorityChanged(
            RunId(row.current_run_id),
            PartitionKey(row.source, row.customer_id, row.query_name, row.logical_date),
            row.authority_version,
            Act.DEMOTE,
        )
        for row in (*fallen, *rows)
    ]
