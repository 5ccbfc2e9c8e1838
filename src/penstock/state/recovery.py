"""Bringing the state of an asset forward to what its tables in the lake show, after the database was lost or restored.

The tables are evidence: a run whose rows are in the newest version of a table was accepted. `plan_recovery` decides,
`apply_recovery` writes; both see the same rows inside one transaction, so a preview and its execution agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.db import schema
from penstock.db.bulk import KEY_COLUMNS, Columns, insert, key_values, same_key, staged, timed
from penstock.db.locks import lock_partitions
from penstock.db.types import UtcTimestamp
from penstock.digests import comparable, may_be_of_first_algorithm
from penstock.ledger.append import append
from penstock.ledger.events import AuthorityChanged, Event, PartitionPublished, TaskFinished
from penstock.lifecycle import Act, Outcome, Stage
from penstock.partition import AttemptKey, PartitionKey, RunId

REASON = "recovered"


class FoundRun(NamedTuple):
    """A run whose rows are in the newest version of a table, with what its seal and its rows say."""

    attempt: AttemptKey
    table: str
    schema_version: str
    record_count: int
    payload_digest: str
    payload_bytes: int
    content_digest: str
    contract_fingerprint: str
    extracted_at: datetime
    demoted: bool = False  # by an event in an exported segment of the ledger
    usable: bool = True  # False: its raw run is missing or does not fit, so nothing vouches for the rows


class SealedRun(NamedTuple):
    """A run that is sealed in the raw sink, is in no table, and is not known to the database."""

    attempt: AttemptKey
    schema_version: str
    record_count: int
    payload_digest: str
    payload_bytes: int
    contract_fingerprint: str
    extracted_at: datetime
    outcome: str = Outcome.CANCELLED  # unless an event in an exported segment says otherwise
    error_class: str | None = "internal"
    content_digest: str | None = None
    demoted: bool = False


class Ruling(StrEnum):
    INSERT = "insert"  # the database does not know the attempt: it was accepted after the backup
    CLOSE = "close"  # the attempt is open in the database: it was accepted after the backup
    APPROVE = "approve"  # the attempt is rejected in the database: it was approved after the backup
    KNOWN = "known"  # the database knows it as accepted
    WITHDRAWN = "withdrawn"  # it was demoted: its rows are in the table and stay hidden
    CONFLICT = "conflict"  # nothing vouches for it, or the database closed it without a verdict: it stays hidden


@dataclass(frozen=True, slots=True)
class KnownAttempt:
    attempt_no: int
    outcome: str | None
    approved: bool
    demoted: bool
    contract_fingerprint: str
    has_raw: bool  # as far as the database knows
    finished_at: datetime | None
    record_count: int | None
    content_digest: str | None


@dataclass(frozen=True, slots=True)
class KnownState:
    status: str
    current_run_id: str | None
    authority_version: int
    record_count: int | None


@dataclass(frozen=True, slots=True)
class KnownPointer:
    run_id: str
    record_count: int
    is_hidden: bool


@dataclass(frozen=True, slots=True)
class AssetRows:
    """What the database knows about one asset."""

    attempts: Mapping[PartitionKey, Mapping[str, KnownAttempt]]
    states: Mapping[PartitionKey, KnownState]
    pointers: Mapping[PartitionKey, KnownPointer]


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of one run that a table shows."""

    run: FoundRun
    ruling: Ruling
    attempt_no: int
    takes_authority: bool
    authority_version: int  # after the recovery
    available: bool


@dataclass(frozen=True, slots=True)
class AssetRecovery:
    """What a recovery changes for one asset."""

    source: str
    query_name: str
    decisions: Sequence[Decision] = ()
    sealed: Sequence[tuple[SealedRun, int]] = ()  # with the attempt number that each gets
    withdrawn: Sequence[PartitionKey] = ()  # their rows left the tables after the backup: demoted
    demoted: Sequence[PartitionKey] = ()  # an exported event says so: demoted, their rows are still in the tables
    overtaken: Sequence[PartitionKey] = ()  # a later run than the trusted one was demoted: nothing is trusted now
    hidden: Sequence[PartitionKey] = ()  # their rows left the tables, and another run waits to be published
    superseded: Sequence[tuple[AttemptKey, KnownAttempt]] = ()  # open at the backup, and a later run is known now
    raw_gone: Sequence[AttemptKey] = ()  # their raw runs were deleted after the backup
    ambiguous: Sequence[PartitionKey] = field(default_factory=tuple)  # rows of several runs, or not of the verdict
    damaged: bool = False  # files of its tables cannot be read

    @property
    def asset(self) -> str:
        return f"{self.source}.{self.query_name}"

    @property
    def is_rebuilt(self) -> bool:
        """Whether the tables cannot be taken as they are: only the state is restored, and they are rebuilt from raw."""
        return bool(self.ambiguous) or self.damaged

    @property
    def is_nothing(self) -> bool:
        return not (self.decisions or self.sealed or self.withdrawn or self.hidden or self.raw_gone)

    @property
    def restored(self) -> list[Decision]:
        """The decisions that teach the database an acceptance."""
        return [d for d in self.decisions if d.ruling in (Ruling.INSERT, Ruling.CLOSE, Ruling.APPROVE)]

    @property
    def conflicts(self) -> list[Decision]:
        return [d for d in self.decisions if d.ruling is Ruling.CONFLICT]


def read_asset(connection: Connection, source: str, query_name: str) -> AssetRows:
    """Everything that a recovery of this asset has to know."""

    def rows(table: sa.Table, *names: str) -> Iterable[tuple[PartitionKey, Any]]:
        columns = [table.c[name] for name in (*schema.KEY, *names)]
        statement = sa.select(*columns).where(table.c.source == source, table.c.query_name == query_name)
        for row in connection.execute(statement):
            yield PartitionKey(*row[:4]), row

    attempts: dict[PartitionKey, dict[str, KnownAttempt]] = {}
    names = ("run_id", "attempt_no", "outcome", "approved_at", "demoted_at", "contract_fingerprint", "payload_digest",
             "raw_deleted_at", "finished_at", "record_count", "content_digest")  # fmt: skip
    for key, row in rows(schema.partition_attempt, *names):
        attempts.setdefault(key, {})[row.run_id] = KnownAttempt(
            row.attempt_no,
            row.outcome,
            row.approved_at is not None,
            row.demoted_at is not None,
            row.contract_fingerprint,
            row.payload_digest is not None and row.raw_deleted_at is None,
            row.finished_at,
            row.record_count,
            row.content_digest,
        )
    states = {
        key: KnownState(row.status, row.current_run_id, row.authority_version, row.record_count)
        for key, row in rows(schema.partition_state, "status", "current_run_id", "authority_version", "record_count")
    }
    pointers = {
        key: KnownPointer(row.run_id, row.record_count, row.hidden_at is not None)
        for key, row in rows(schema.warehouse_pointer, "run_id", "record_count", "hidden_at")
    }
    return AssetRows(attempts, states, pointers)


def plan_recovery(
    source: str,
    query_name: str,
    known: AssetRows,
    found: Sequence[FoundRun],
    sealed: Sequence[SealedRun],
    in_raw: Collection[AttemptKey],
    published_at: datetime | None = None,
    damaged: bool = False,
) -> AssetRecovery:
    """Decide about every run that the tables of an asset show, about sealed runs that nobody knows, and about raw runs
    that are not `in_raw` any more. `published_at` is the moment of the newest publication that the database does not
    know: whatever was accepted before it was published by it. With `damaged` files the tables are rebuilt."""
    by_key: dict[PartitionKey, list[FoundRun]] = {}
    for run in found:
        by_key.setdefault(run.attempt.partition, []).append(run)
    ambiguous = sorted(key for key, runs in by_key.items() if len(runs) > 1 or _differs(runs[0], known))
    newest = [max(runs, key=lambda run: run.attempt.run_id) for _, runs in sorted(by_key.items())]
    unknown = [run for run in sealed if run.attempt.run_id not in known.attempts.get(run.attempt.partition, {})]
    # A run that nothing vouches for gets no attempt, and so no number.
    there = [run for run in newest if run.usable or run.attempt.run_id in known.attempts.get(run.attempt.partition, {})]
    numbers = _attempt_numbers(known, [*(run.attempt for run in there), *(run.attempt for run in unknown)])
    decisions = [_decide(run, known, numbers) for run in newest]
    withdrawn, hidden = list[PartitionKey](), list[PartitionKey]()
    for key, pointer in sorted(known.pointers.items()):
        if key in by_key or pointer.is_hidden or not pointer.record_count:
            continue
        state = known.states.get(key)
        trusted = state is not None and state.status == "success" and state.current_run_id == pointer.run_id
        (withdrawn if trusted else hidden).append(key)
    waiting = {key for key in known.states if _was_published(key, known, published_at)} - set(by_key)
    withdrawn = sorted({*withdrawn, *waiting})
    demoted = [d.run.attempt.partition for d in decisions if d.run.demoted and _is_trusted(d.run.attempt, known)]
    overtaken = [d.run.attempt.partition for d in decisions if d.run.demoted and _is_overtaken(d.run.attempt, known)]
    judged = {d.run.attempt.partition for d in decisions if d.ruling in (Ruling.INSERT, Ruling.CLOSE)}
    return AssetRecovery(
        source,
        query_name,
        decisions,
        [(_without_verdict(run, judged), numbers[run.attempt]) for run in unknown],
        withdrawn,
        demoted,
        overtaken,
        hidden,
        _superseded(known, decisions, unknown),
        deleted_raw(known, in_raw, decisions, gone=(*withdrawn, *demoted, *hidden)),
        ambiguous,
        damaged,
    )


def _was_published(key: PartitionKey, known: AssetRows, published_at: datetime | None) -> bool:
    """Whether the trusted run waited at the backup, and a later publication took it: it is in no table any more."""
    state, pointer = known.states[key], known.pointers.get(key)
    if published_at is None or state.status != "success" or state.current_run_id is None or not state.record_count:
        return False
    if pointer is not None and pointer.run_id == state.current_run_id:
        return False
    finished = known.attempts[key][state.current_run_id].finished_at
    return finished is not None and finished < published_at


def _superseded(
    known: AssetRows, decisions: Sequence[Decision], unknown: Sequence[SealedRun]
) -> list[tuple[AttemptKey, KnownAttempt]]:
    """Open attempts of partitions that get a later one: nobody could close them any more."""
    later = {run.attempt.partition for run in unknown}
    later |= {d.run.attempt.partition for d in decisions if d.ruling in (Ruling.INSERT, Ruling.WITHDRAWN)}
    accepted = {d.run.attempt for d in decisions if d.ruling is Ruling.CLOSE}
    return [
        (AttemptKey(key, RunId(run_id)), attempt)
        for key in sorted(later)
        for run_id, attempt in known.attempts.get(key, {}).items()
        if attempt.outcome is None and AttemptKey(key, RunId(run_id)) not in accepted
    ]


def deleted_raw(
    known: AssetRows,
    in_raw: Collection[AttemptKey],
    decisions: Sequence[Decision] = (),
    gone: Collection[PartitionKey] = (),
) -> list[AttemptKey]:
    """Closed attempts whose raw runs are not there, though the database does not know of a deletion. The runs that are
    trusted or served after the recovery are not among them: garbage collection never takes those, so they are lost.
    `gone` are the partitions whose rows left the tables."""
    decided = {d.run.attempt.partition: d for d in decisions}
    needed = {d.run.attempt for d in decisions}
    for key, state in known.states.items():
        taken = key in decided and decided[key].takes_authority
        if state.status == "success" and state.current_run_id and not taken and key not in gone:
            needed.add(AttemptKey(key, RunId(state.current_run_id)))
    for key, pointer in known.pointers.items():
        if key not in decided and key not in gone and not pointer.is_hidden:
            needed.add(AttemptKey(key, RunId(pointer.run_id)))
    return [
        attempt
        for key, runs in sorted(known.attempts.items())
        for run_id, one in sorted(runs.items())
        if one.outcome is not None and one.has_raw
        if (attempt := AttemptKey(key, RunId(run_id))) not in in_raw and attempt not in needed
    ]


def _is_trusted(attempt: AttemptKey, known: AssetRows) -> bool:
    state = known.states.get(attempt.partition)
    return state is not None and state.status == "success" and state.current_run_id == attempt.run_id


def _is_overtaken(attempt: AttemptKey, known: AssetRows) -> bool:
    """Whether the trusted run is older than this one, so that it was replaced before this one was demoted."""
    state = known.states.get(attempt.partition)
    return state is not None and state.status == "success" and str(state.current_run_id) < attempt.run_id


def _without_verdict(run: SealedRun, judged: Collection[PartitionKey]) -> SealedRun:
    """A verdict counts in the partition's state. Where the recovery writes no state, the run stays without one."""
    if run.attempt.partition in judged or run.outcome == Outcome.CANCELLED:
        return run
    return run._replace(outcome=Outcome.CANCELLED, error_class="internal", demoted=False)


def _differs(run: FoundRun, known: AssetRows) -> bool:
    """Whether the rows are not those of the verdict that the database knows: doubled, incomplete or changed."""
    attempt = known.attempts.get(run.attempt.partition, {}).get(run.attempt.run_id)
    if attempt is None or attempt.content_digest is None:
        return False
    same = comparable(attempt.content_digest) == comparable(run.content_digest)
    return attempt.record_count != run.record_count or not (same or may_be_of_first_algorithm(attempt.content_digest))


def _attempt_numbers(known: AssetRows, attempts: Iterable[AttemptKey]) -> dict[AttemptKey, int]:
    """The number of each attempt: the one it has, or the next ones of its partition in the order of runs."""
    numbers: dict[AttemptKey, int] = {}
    last: dict[PartitionKey, int] = {}
    for attempt in sorted(set(attempts)):
        mine = known.attempts.get(attempt.partition, {})
        if attempt.run_id in mine:
            numbers[attempt] = mine[attempt.run_id].attempt_no
            continue
        start = max((one.attempt_no for one in mine.values()), default=0)
        last[attempt.partition] = last.get(attempt.partition, start) + 1
        numbers[attempt] = last[attempt.partition]
    return numbers


def _decide(run: FoundRun, known: AssetRows, numbers: Mapping[AttemptKey, int]) -> Decision:
    key, run_id = run.attempt
    state, pointer = known.states.get(key), known.pointers.get(key)
    ruling = _ruling(run, known.attempts.get(key, {}).get(run_id))
    trusted = state is not None and state.status == "success"
    match ruling:
        case Ruling.INSERT | Ruling.CLOSE | Ruling.APPROVE:
            takes = not trusted or state is None or str(state.current_run_id) < run_id
        case Ruling.KNOWN:
            # The table moved on to this run after the backup: an operator returned to it.
            moved = pointer is None or pointer.run_id != run_id
            takes = moved and not _is_trusted(run.attempt, known) and not _waits(key, run_id, known)
        case _:
            takes = False
    version = (state.authority_version if state else 0) + takes
    vouched = ruling not in (Ruling.WITHDRAWN, Ruling.CONFLICT)
    return Decision(run, ruling, numbers.get(run.attempt, 0), takes, version, vouched and (takes or trusted))


def _waits(key: PartitionKey, run_id: str, known: AssetRows) -> bool:
    """Whether a later run than this one is trusted and was not published yet: it keeps authority."""
    state, pointer = known.states.get(key), known.pointers.get(key)
    if state is None or state.status != "success" or state.current_run_id is None:
        return False
    if pointer is not None and pointer.run_id == state.current_run_id:
        return False
    runs = known.attempts.get(key, {})
    return runs[state.current_run_id].attempt_no > runs[run_id].attempt_no


def _ruling(run: FoundRun, attempt: KnownAttempt | None) -> Ruling:
    if run.demoted or (attempt is not None and attempt.demoted):
        return Ruling.WITHDRAWN
    if attempt is not None and (attempt.outcome == Outcome.SUCCEEDED or attempt.approved):
        return Ruling.KNOWN
    if not run.usable:
        return Ruling.CONFLICT
    if attempt is None:
        return Ruling.INSERT
    if attempt.outcome is None:
        return Ruling.CLOSE
    return Ruling.APPROVE if attempt.outcome == Outcome.FAILED else Ruling.CONFLICT


# --- writing ----------------------------------------------------------------------------------------------------------

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
# Somebody returned to this run, or approved it: such a choice is not overwritten by the next restatement.
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
# Rows that are still in a table leave it with the next publication; the others are settled by it.
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
# What the pointer says is published; everything else that is trusted waits.
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
    """Write what was decided: attempts, authority, pointers, events. The caller writes the heads `versions` in the same
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
    """Record that these raw runs are gone: no act returns to them."""
    _for_attempts(connection, _MARK_RAW, attempts, now)


def _for_attempts(connection: Connection, statement: str, attempts: Sequence[AttemptKey], now: datetime) -> None:
    rows = [(*key_values(attempt.partition), attempt.run_id) for attempt in attempts]
    with staged(connection, "incoming_raw", {**KEY_COLUMNS, "run_id": sa.Text()}, rows):
        connection.execute(timed(statement), {"now": now})


def _insert_attempts(connection: Connection, recovery: AssetRecovery, worker_token: str, now: datetime) -> None:
    rows = []
    for d in recovery.decisions:
        run = d.run
        if d.ruling is Ruling.INSERT:
            verdict: tuple[Outcome, str | None, str | None] = (Outcome.SUCCEEDED, None, None)
        elif d.ruling is Ruling.WITHDRAWN:  # the insert leaves out what the database knows
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
        message = None if accepted else "found sealed in the lake by a recovery: the words of its verdict are lost"
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
    counts = 1 + verdicts if d.ruling in (Ruling.INSERT, Ruling.CLOSE) else 0
    return (
        *key_values(run.attempt.partition), run.attempt.run_id, str(d.ruling), int(d.takes_authority), counts,
        run.schema_version, run.record_count, run.payload_digest, run.payload_bytes, run.content_digest,
        d.authority_version, d.available, run.table, versions[run.table], run.extracted_at,
    )  # fmt: skip


def _events(d: Decision, versions: Mapping[str, int], batch_id: str, ambiguous: bool) -> Iterable[Event]:
    run, (key, run_id) = d.run, d.run.attempt
    if d.ruling in (Ruling.INSERT, Ruling.CLOSE):
        yield TaskFinished(
            run_id, key, d.attempt_no, Stage.VALIDATE, Outcome.SUCCEEDED, None, run.contract_fingerprint,
            run.record_count,
        )  # fmt: skip
    if d.takes_authority:
        act = {Ruling.APPROVE: Act.APPROVE, Ruling.KNOWN: Act.ROLLBACK}.get(d.ruling, Act.ACCEPT)
        yield AuthorityChanged(run_id, key, d.authority_version, act, run.contract_fingerprint, run.content_digest)
    if d.available and not ambiguous:
        yield PartitionPublished(run_id, key, batch_id, run.table, versions[run.table], run.record_count)


def _withdraw(connection: Connection, recovery: AssetRecovery, now: datetime) -> list[Event]:
    """Pointers whose rows left the tables: nothing of them is there to be read."""
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
