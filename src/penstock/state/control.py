"""The control plane's store: issues attempts, cancels them without a verdict, and requeues failed partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from penstock.clock import Clock
from penstock.db import schema
from penstock.db.bulk import KEY_COLUMNS, insert, key_values, same_key, staged, timed
from penstock.db.engine import Database
from penstock.db.lease import LEASE_SECONDS, seconds_ago
from penstock.db.locks import lock_partitions
from penstock.db.types import Json, UtcTimestamp
from penstock.errors import ActRefused, LeaseLost
from penstock.ledger.append import append
from penstock.ledger.events import Event, PlanCreated, RunCancelRequested, RunFinished, TasksDropped, TaskStarted
from penstock.lifecycle import AttemptReason, Stage
from penstock.partition import AttemptKey, PartitionKey, RunId
from penstock.partition_set import compact_ranges
from penstock.state.audited import AuditedAct
from penstock.state.closing import close
from penstock.state.order_claims import OrderClaim, name_run
from penstock.state.pause_scope import PauseSelectors
from penstock.state.pause_selectors import read_selectors
from penstock.state.records import Cancelled, ClosingResult, Issued, Planned, Refused

_PLANNED = {
    **KEY_COLUMNS,
    "seen_attempt_no": sa.Integer(),
    "reason": sa.Text(),
    "contract_fingerprint": sa.Text(),
    "schema_version": sa.Text(),
    "backfill_id": sa.Text(),
    "max_attempts": sa.Integer(),
    "expires_at": UtcTimestamp(),
    "refusal": sa.Text(),
    "paused": sa.Boolean(),  # by a selector
}

TAKEN = "another run took this partition first"

# Operators may act between planning and issuing. A retry needs `next_run_at`: whatever cleared it (a rollback, an
# approval, a terminal mark) withdrew the retry. A `next_run_at` set after a rollback or an approval belongs to an
# attempt that an operator asked for, so a hold does not block it; a hold blocks restatement only.
_REFUSE = f"""
UPDATE incoming_planned AS p SET refusal = CASE
    WHEN p.paused OR EXISTS (SELECT 1 FROM partition_control k WHERE {same_key("k", "p")} AND k.paused_at IS NOT NULL)
        THEN 'an operator paused it'
    WHEN p.reason = '{AttemptReason.RESTATE}' AND EXISTS (
        SELECT 1 FROM partition_control k WHERE {same_key("k", "p")} AND k.held_at IS NOT NULL)
        THEN 'an operator chose its run, so it is not fetched again before it is resumed'
    WHEN p.reason = '{AttemptReason.RETRY}' AND EXISTS (
        SELECT 1 FROM partition_state s WHERE {same_key("s", "p")} AND s.status <> 'pending')
        AND NOT EXISTS (SELECT 1 FROM partition_control k WHERE {same_key("k", "p")} AND k.next_run_at IS NOT NULL)
        THEN 'its retry was withdrawn'
    WHEN p.reason = '{AttemptReason.RETRY}' AND EXISTS (
        SELECT 1 FROM partition_control k JOIN partition_state s ON {same_key("s", "k")}
        WHERE {same_key("k", "p")} AND k.terminal_at IS NOT NULL AND s.status = 'failed')
        THEN 'an operator gave it up'
    WHEN p.reason = '{AttemptReason.RETRY}' AND EXISTS (
        SELECT 1 FROM partition_control k WHERE {same_key("k", "p")} AND k.failures >= p.max_attempts)
        THEN 'its retry policy allows no further attempt'
    WHEN p.reason = '{AttemptReason.RETRY}' AND p.expires_at <= :now
        THEN 'its day is older than its retry policy allows'
END
"""

# Unique constraints decide races: if the number is taken or the partition has an open attempt, no row is inserted.
_ISSUE = f"""
INSERT INTO partition_attempt (source, customer_id, query_name, logical_date, run_id, attempt_no, reason,
    contract_fingerprint, schema_version, worker_token, backfill_id, lost_count, issued_at)
SELECT p.source, p.customer_id, p.query_name, p.logical_date, :run_id, p.seen_attempt_no + 1, p.reason,
    p.contract_fingerprint, p.schema_version, :worker_token, p.backfill_id,
    COALESCE((SELECT b.lost_count FROM partition_attempt b
              WHERE {same_key("b", "p")} AND b.attempt_no = p.seen_attempt_no), 0), :now
FROM incoming_planned p
WHERE NOT EXISTS (SELECT 1 FROM partition_attempt a WHERE {same_key("a", "p")}
                  AND (a.outcome IS NULL OR a.attempt_no > p.seen_attempt_no))
AND (p.seen_attempt_no = 0 OR EXISTS (SELECT 1 FROM partition_attempt b
                                      WHERE {same_key("b", "p")} AND b.attempt_no = p.seen_attempt_no))
AND p.refusal IS NULL
ORDER BY p.source, p.customer_id, p.query_name, p.logical_date
ON CONFLICT DO NOTHING
"""

_ISSUED = f"""
SELECT p.source, p.customer_id, p.query_name, p.logical_date, p.refusal, a.attempt_no, a.contract_fingerprint,
    a.lost_count, s.record_count AS previous_record_count, t.measures AS previous_measures
FROM incoming_planned p
LEFT JOIN partition_attempt a ON {same_key("a", "p")} AND a.run_id = :run_id AND a.outcome IS NULL
    AND a.worker_token = :worker_token
LEFT JOIN partition_state s ON {same_key("s", "p")} AND s.status = 'success'
LEFT JOIN partition_attempt t ON {same_key("t", "s")} AND t.run_id = s.current_run_id
ORDER BY p.source, p.query_name, p.customer_id, p.logical_date
"""

_ADOPTED = f"""
SELECT a.source, a.customer_id, a.query_name, a.logical_date, a.attempt_no, a.contract_fingerprint, a.lost_count,
    s.record_count AS previous_record_count, t.measures AS previous_measures
FROM partition_attempt a
LEFT JOIN partition_state s ON {same_key("s", "a")} AND s.status = 'success'
LEFT JOIN partition_attempt t ON {same_key("t", "s")} AND t.run_id = s.current_run_id
WHERE a.run_id = :run_id AND a.outcome IS NULL
"""

_ISSUED_TYPES: dict[str, sa.types.TypeEngine[Any]] = {"logical_date": sa.Date(), "previous_measures": Json()}

_REQUEUE = f"""
UPDATE partition_state AS s SET status = 'pending', updated_at = :now, error_message = NULL
FROM incoming_key k WHERE {same_key("s", "k")} AND s.status = 'failed'
"""

# A requeue by an operator resets the failure count: verdicts count from here on.
_RESET_FAILURES = f"""
INSERT INTO partition_control (source, customer_id, query_name, logical_date, cleared_attempt_no)
SELECT s.source, s.customer_id, s.query_name, s.logical_date,
    COALESCE((SELECT MAX(a.attempt_no) FROM partition_attempt a WHERE {same_key("a", "s")}), 0)
FROM partition_state s JOIN incoming_key k ON {same_key("s", "k")} WHERE s.status = 'failed'
ORDER BY s.source, s.customer_id, s.query_name, s.logical_date
ON CONFLICT (source, customer_id, query_name, logical_date) DO UPDATE SET
    failures = 0, failing_since = NULL, cleared_attempt_no = excluded.cleared_attempt_no
"""

_CLEAR_NEXT_RUN = f"""
UPDATE partition_control AS c SET next_run_at = NULL, strategy = NULL
FROM incoming_key k WHERE {same_key("c", "k")} AND c.next_run_at IS NOT NULL
"""

# An operator's requeue replaces pending decisions of the retry policy.
DELETE_RETRY_DUE = f"""
DELETE FROM retry_due AS d WHERE EXISTS (SELECT 1 FROM incoming_key k WHERE {same_key("k", "d")})
"""

_POSTPONE = """
INSERT INTO partition_control AS k (source, customer_id, query_name, logical_date, next_run_at, strategy)
SELECT p.source, p.customer_id, p.query_name, p.logical_date, p.next_run_at, p.strategy
FROM incoming_postponed p WHERE true
ORDER BY p.source, p.customer_id, p.query_name, p.logical_date
ON CONFLICT (source, customer_id, query_name, logical_date)
DO UPDATE SET next_run_at = excluded.next_run_at, strategy = excluded.strategy
"""

# A retry by policy moves failed -> pending in the transaction that issues it; the actor is the control plane. The
# expression around `status` keeps SQLite from reading all failed partitions by the index on status.
_REQUEUE_ISSUED = f"""
UPDATE partition_state AS s SET status = 'pending', updated_at = :now, error_message = NULL
FROM incoming_planned p WHERE {same_key("s", "p")} AND s.status || '' = 'failed'
AND p.reason = '{AttemptReason.RETRY}' AND EXISTS (
    SELECT 1 FROM partition_attempt a WHERE {same_key("a", "p")} AND a.run_id = :run_id AND a.outcome IS NULL)
"""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One entry of the audit log. Raises if `AuditedAct` does not list the act."""

    actor: str
    command: AuditedAct
    filters: Mapping[str, Any]
    flags: Mapping[str, Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "command", AuditedAct(self.command))


class ControlStore:
    """Issues attempts and records who asked for them. It cannot accept or reject."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def start_run(
        self,
        run_id: RunId,
        worker_token: str,
        actor: str,
        filters: Mapping[str, Any],
        planned: int,
        plan: PlanCreated | None = None,
        order: OrderClaim | None = None,
    ) -> None:
        """Insert the run and its plan in one transaction, and record it in the order for which it starts. Raises
        LeaseLost if the claim of the order is lost; nothing starts then."""
        now = self._clock()
        row = {
            "run_id": run_id,
            "worker_token": worker_token,
            "actor": actor,
            "filters": dict(filters),
            "planned": planned,
            "started_at": now,
        }

        def work(connection: Connection) -> None:
            if order is not None:
                name_run(connection, order, run_id)
            connection.execute(sa.insert(schema.run), row)
            append(connection, [plan] if plan else [], "control", now)

        self._database.transact(work)

    def record_event(self, run_id: RunId, worker_token: str, event: Event) -> None:
        """Append an event about the run that changes no state: tasks started, partitions fetched."""

        def work(connection: Connection) -> None:
            _check_lease(connection, run_id, worker_token)
            append(connection, [event], "control", self._clock())

        self._database.transact(work)

    def adopt(self, run_id: RunId, worker_token: str) -> list[Issued]:
        """Take over the open attempts of a run whose worker is gone. Raises ActRefused if the worker is alive or the
        run is over."""
        return self._database.transact(lambda connection: self._adopt(connection, run_id, worker_token))

    def request_cancel(self, run_id: RunId, entry: AuditEntry, *, even_if_over: bool = False) -> bool:
        """Request cancellation of a run. The run checks for it before it issues more attempts and when it ends: no
        further run of the same command starts. Returns False if the run is over; nothing is recorded then, unless
        `even_if_over`."""
        now, run = self._clock(), schema.run

        def work(connection: Connection) -> bool:
            # The row is locked, here and by `finish_run`: one of the two comes first.
            ended = sa.select(run.c.finished_at).where(run.c.run_id == run_id).with_for_update()
            if connection.scalar(ended) is not None and not even_if_over:
                return False
            appended = append(connection, [RunCancelRequested(run_id, entry.actor)], "control", now)
            record_audit(connection, entry, appended, "done" if appended else "asked for before", now)
            return True

        return self._database.transact(work)

    def finish_run(self, run_id: RunId, worker_token: str, counts: Mapping[str, int], end: str = "done") -> str | None:
        """Record the end of the run; `end` is done, cancelled, broken or abandoned. Returns the recorded end: a run
        that is done is recorded as cancelled if cancellation was requested before. Returns None if the run was over
        before, or another worker holds it."""
        now, run, event = self._clock(), schema.run, schema.event
        asked = sa.select(event.c.position).where(event.c.run_id == run_id, event.c.type == RunCancelRequested.type)

        def work(connection: Connection) -> str | None:
            mine = sa.and_(run.c.run_id == run_id, run.c.worker_token == worker_token, run.c.finished_at.is_(None))
            if not connection.execute(sa.update(run).where(mine).values(finished_at=now)).rowcount:
                return None
            recorded = "cancelled" if end == "done" and connection.scalar(asked) is not None else end
            append(connection, [RunFinished(run_id, recorded, counts)], "control", now)
            return recorded

        return self._database.transact(work)

    def store_contracts(self, contracts: Sequence[tuple[str, str, str, str, Mapping[str, Any]]]) -> None:
        """Store contract bodies (fingerprint, source, query, schema_version, body) before attempts refer to them."""
        now = self._clock()
        columns = ("fingerprint", "source", "query_name", "schema_version", "body", "first_used_at")
        rows = [(*contract, now) for contract in contracts]
        self._database.transact(lambda connection: insert(connection, schema.contract, columns, rows))

    def issue(
        self, run_id: RunId, worker_token: str, batch: int | str, planned: Sequence[Planned]
    ) -> tuple[list[Issued], list[Refused]]:
        """Open an attempt for each planned partition that no other run has taken since planning. The name of a batch is
        unique in a run."""
        return self._database.transact(lambda connection: self._issue(connection, run_id, worker_token, batch, planned))

    def cancel(self, closings: Sequence[Cancelled]) -> ClosingResult:
        """Close attempts without a verdict: they do not count as failures of the partition."""
        if not closings:
            return ClosingResult()
        return self._database.transact(lambda connection: close(connection, closings, "control", self._clock()))

    def postpone(self, until: Mapping[PartitionKey, datetime], why: str = "quota") -> None:
        """Set `next_run_at` of these partitions, because the source accepts no requests for them before."""
        rows = [(*key_values(key), moment, why) for key, moment in until.items()]
        columns = {**KEY_COLUMNS, "next_run_at": UtcTimestamp(), "strategy": sa.Text()}

        def work(connection: Connection) -> None:
            with staged(connection, "incoming_postponed", columns, rows):
                connection.execute(sa.text(_POSTPONE))

        if rows:
            self._database.transact(work)

    def requeue(self, keys: Sequence[PartitionKey], entry: AuditEntry | None = None) -> int:
        """Move these keys failed -> pending and return how many moved. Without `entry`, the call is one page of an act
        whose audit entry exists."""
        now = self._clock()

        def work(connection: Connection) -> int:
            with staged(connection, "incoming_key", KEY_COLUMNS, [key_values(key) for key in keys]):
                lock_partitions(connection, "partition_state", "incoming_key")
                connection.execute(sa.text(_RESET_FAILURES))
                moved = connection.execute(timed(_REQUEUE), {"now": now}).rowcount
                connection.execute(sa.text(_CLEAR_NEXT_RUN))
                connection.execute(sa.text(DELETE_RETRY_DUE))
            if entry is not None:
                record_audit(connection, entry, moved, "done", now)
            return moved

        return self._database.transact(work)

    def note(self, entry: AuditEntry, affected: int, outcome: str) -> None:
        """Write an audit entry for an act that changed nothing in this store."""
        now = self._clock()
        self._database.transact(lambda connection: record_audit(connection, entry, affected, outcome, now))

    def _issue(
        self, connection: Connection, run_id: RunId, worker_token: str, batch: int | str, planned: Sequence[Planned]
    ) -> tuple[list[Issued], list[Refused]]:
        _check_lease(connection, run_id, worker_token)
        now = self._clock()
        each_once = {p.key: p for p in planned}.values()
        pauses = PauseSelectors(read_selectors(connection)).pauses
        rows = [
            (
                *key_values(p.key), p.seen_attempt_no, p.reason, p.contract_fingerprint, p.schema_version,
                p.backfill_id, p.max_attempts, p.expires_at, None, pauses(p.key),
            )
            for p in each_once
        ]  # fmt: skip
        with staged(connection, "incoming_planned", _PLANNED, rows):
            # A concurrent act of an operator waits for this transaction, or this transaction for it.
            lock_partitions(connection, "partition_state", "incoming_planned")
            connection.execute(timed(_REFUSE), {"now": now})
            connection.execute(timed(_ISSUE), {"run_id": run_id, "worker_token": worker_token, "now": now})
            connection.execute(timed(_REQUEUE_ISSUED), {"run_id": run_id, "now": now})
            found = connection.execute(
                sa.text(_ISSUED).columns(**_ISSUED_TYPES), {"run_id": run_id, "worker_token": worker_token}
            ).all()
        issued: list[Issued] = []
        refused: list[Refused] = []
        for row in found:
            attempt = AttemptKey(PartitionKey(row.source, row.customer_id, row.query_name, row.logical_date), run_id)
            if row.attempt_no is None:
                refused.append(Refused(attempt, row.refusal or TAKEN))
                continue
            issued.append(_issued(attempt, row))
        append(connection, _issue_events(run_id, str(batch), issued, refused), "control", now)
        return issued, refused

    def _adopt(self, connection: Connection, run_id: RunId, worker_token: str) -> list[Issued]:
        run, worker, attempt = schema.run, schema.worker, schema.partition_attempt
        row = connection.execute(sa.select(run).where(run.c.run_id == run_id).with_for_update()).one_or_none()
        if row is None:
            raise ActRefused(f"there is no run {run_id}: `penstock runs list` shows them")
        if row.finished_at is not None:
            raise ActRefused(f"run {run_id} is over: nothing is left to resume")
        alive = sa.and_(
            worker.c.token == row.worker_token,
            worker.c.stopped_at.is_(None),
            worker.c.heartbeat_at >= seconds_ago(self._database.dialect, LEASE_SECONDS),
        )
        if connection.execute(sa.select(worker.c.host, worker.c.process).where(alive)).one_or_none() is not None:
            raise ActRefused(f"run {run_id} is being worked on; `penstock runs cancel {run_id}` stops it")
        mine = sa.and_(attempt.c.run_id == run_id, attempt.c.outcome.is_(None))
        connection.execute(sa.update(attempt).where(mine).values(worker_token=worker_token))
        connection.execute(sa.update(run).where(run.c.run_id == run_id).values(worker_token=worker_token))
        found = connection.execute(sa.text(_ADOPTED).columns(**_ISSUED_TYPES), {"run_id": run_id}).all()
        return [
            _issued(AttemptKey(PartitionKey(r.source, r.customer_id, r.query_name, r.logical_date), run_id), r)
            for r in found
        ]


def _issued(attempt: AttemptKey, row: Row[Any]) -> Issued:
    return Issued(
        attempt,
        row.attempt_no,
        row.contract_fingerprint,
        row.previous_record_count,
        row.lost_count,
        row.previous_measures,
    )


def _check_lease(connection: Connection, run_id: RunId, worker_token: str) -> None:
    """Raise LeaseLost if the run was taken over by another worker or ended."""
    run = schema.run
    query = sa.select(run.c.worker_token, run.c.finished_at).where(run.c.run_id == run_id).with_for_update(read=True)
    row = connection.execute(query).one_or_none()
    if row is not None and (row.worker_token != worker_token or row.finished_at is not None):
        raise LeaseLost(f"run {run_id} was taken over by another worker, or ended, while this one was paused")


def _issue_events(run_id: RunId, batch: str, issued: Sequence[Issued], refused: Sequence[Refused]) -> list[Event]:
    events: list[Event] = []
    if issued:
        slices = compact_ranges(item.attempt.partition for item in issued)
        events.append(TaskStarted(run_id, Stage.EXTRACT, slices, 1, f"{Stage.EXTRACT}/{batch}"))
    for number, why in enumerate(dict.fromkeys(item.why for item in refused)):
        slices = compact_ranges(item.attempt.partition for item in refused if item.why == why)
        dispatch = f"{Stage.EXTRACT}/{batch}" + (f"/{number}" if number else "")
        events.append(TasksDropped(run_id, Stage.EXTRACT, slices, 1, why, dispatch))
    return events


def record_audit(connection: Connection, entry: AuditEntry, affected: int, outcome: str, now: datetime) -> None:
    """Write one audit entry, in the transaction of the act it describes."""
    connection.execute(
        sa.insert(schema.audit).inline(),  # without RETURNING: some database roles may insert here but not select
        {
            "at": now,
            "actor": entry.actor,
            "command": entry.command,
            "filters": dict(entry.filters),
            "flags": dict(entry.flags),
            "affected": affected,
            "outcome": outcome,
        },
    )
