"""Recovery of the state of an asset from its tables in the lake, after the database was lost or restored.

The tables are evidence: a run whose rows are in the newest version of a table was accepted. `plan_recovery` decides and
`recovery_writes.apply_recovery` writes. Both read the same rows in one transaction, so a preview matches its execution.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.db import schema
from penstock.digests import comparable, may_be_of_first_algorithm
from penstock.lifecycle import Outcome
from penstock.partition import AttemptKey, PartitionKey, RunId


class FoundRun(NamedTuple):
    """A run whose rows are in the newest version of a table, with the facts of its seal and its rows."""

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
    usable: bool = True  # False: its raw run is missing or does not fit, so the rows cannot be verified


class SealedRun(NamedTuple):
    """A run that is sealed in the raw sink, in no table, and unknown to the database."""

    attempt: AttemptKey
    schema_version: str
    record_count: int
    payload_digest: str
    payload_bytes: int
    contract_fingerprint: str
    extracted_at: datetime
    outcome: str = Outcome.CANCELLED  # unless an event in an exported segment proves otherwise
    error_class: str | None = "internal"
    content_digest: str | None = None
    demoted: bool = False


class RecoveryRuling(StrEnum):
    INSERT = "insert"  # the database does not know the attempt: it was accepted after the backup
    CLOSE = "close"  # the attempt is open in the database: it was accepted after the backup
    APPROVE = "approve"  # the attempt is rejected in the database: it was approved after the backup
    KNOWN = "known"  # the database knows it as accepted
    WITHDRAWN = "withdrawn"  # it was demoted: its rows are in the table and stay hidden
    CONFLICT = "conflict"  # nothing proves it, or the database closed it without a verdict: it stays hidden


@dataclass(frozen=True, slots=True)
class KnownAttempt:
    attempt_no: int
    outcome: str | None
    approved: bool
    demoted: bool
    contract_fingerprint: str
    has_raw: bool  # according to the database
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
    """The rows of the database about one asset."""

    attempts: Mapping[PartitionKey, Mapping[str, KnownAttempt]]
    states: Mapping[PartitionKey, KnownState]
    pointers: Mapping[PartitionKey, KnownPointer]


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about one run found in a table."""

    run: FoundRun
    ruling: RecoveryRuling
    attempt_no: int
    takes_authority: bool
    authority_version: int  # after the recovery
    available: bool


@dataclass(frozen=True, slots=True)
class AssetRecovery:
    """The changes of a recovery for one asset."""

    source: str
    query_name: str
    decisions: Sequence[Decision] = ()
    sealed: Sequence[tuple[SealedRun, int]] = ()  # with the attempt number that each gets
    withdrawn: Sequence[PartitionKey] = ()  # their rows left the tables after the backup: demoted
    demoted: Sequence[PartitionKey] = ()  # an exported event proves it: demoted, their rows are still in the tables
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
        """Whether the tables cannot be used as they are: only the state is restored, and they are rebuilt from raw."""
        return bool(self.ambiguous) or self.damaged

    @property
    def is_nothing(self) -> bool:
        return not (self.decisions or self.sealed or self.withdrawn or self.hidden or self.raw_gone)

    @property
    def restored(self) -> list[Decision]:
        """The decisions that add an acceptance to the database."""
        return [
            d
            for d in self.decisions
            if d.ruling in (RecoveryRuling.INSERT, RecoveryRuling.CLOSE, RecoveryRuling.APPROVE)
        ]

    @property
    def conflicts(self) -> list[Decision]:
        return [d for d in self.decisions if d.ruling is RecoveryRuling.CONFLICT]


def read_asset(connection: Connection, source: str, query_name: str) -> AssetRows:
    """Read all rows that a recovery of this asset depends on."""

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
    """Decide about every run found in the tables of an asset, about sealed runs unknown to the database, and about raw
    runs that are not `in_raw` any more. `published_at` is the time of the newest publication unknown to the database:
    it published every run accepted before it. With `damaged` files the tables are rebuilt."""
    by_key: dict[PartitionKey, list[FoundRun]] = {}
    for run in found:
        by_key.setdefault(run.attempt.partition, []).append(run)
    ambiguous = sorted(key for key, runs in by_key.items() if len(runs) > 1 or _differs(runs[0], known))
    newest = [max(runs, key=lambda run: run.attempt.run_id) for _, runs in sorted(by_key.items())]
    unknown = [run for run in sealed if run.attempt.run_id not in known.attempts.get(run.attempt.partition, {})]
    # A run without proof gets no attempt, so it gets no number.
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
    judged = {d.run.attempt.partition for d in decisions if d.ruling in (RecoveryRuling.INSERT, RecoveryRuling.CLOSE)}
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
    """Whether the trusted run was due at the backup, and a later publication took it: it is in no table any more."""
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
    """Open attempts of partitions that get a later one: no worker could close them any more."""
    later = {run.attempt.partition for run in unknown}
    later |= {
        d.run.attempt.partition for d in decisions if d.ruling in (RecoveryRuling.INSERT, RecoveryRuling.WITHDRAWN)
    }
    accepted = {d.run.attempt for d in decisions if d.ruling is RecoveryRuling.CLOSE}
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
    """Return closed attempts whose raw runs are missing although the database records no deletion. Runs that are
    trusted or served after the recovery are left out: garbage collection never deletes those, so they are lost. `gone`
    are the partitions whose rows left the tables."""
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
    """Whether the trusted run is older than this one: it was replaced before this one was demoted."""
    state = known.states.get(attempt.partition)
    return state is not None and state.status == "success" and str(state.current_run_id) < attempt.run_id


def _without_verdict(run: SealedRun, judged: Collection[PartitionKey]) -> SealedRun:
    """Drop the verdict of a run for whose partition the recovery writes no state: a verdict counts in the state."""
    if run.attempt.partition in judged or run.outcome == Outcome.CANCELLED:
        return run
    return run._replace(outcome=Outcome.CANCELLED, error_class="internal", demoted=False)


def _differs(run: FoundRun, known: AssetRows) -> bool:
    """Whether the rows differ from those of the verdict in the database: doubled, incomplete or changed."""
    attempt = known.attempts.get(run.attempt.partition, {}).get(run.attempt.run_id)
    if attempt is None or attempt.content_digest is None:
        return False
    same = comparable(attempt.content_digest) == comparable(run.content_digest)
    return attempt.record_count != run.record_count or not (same or may_be_of_first_algorithm(attempt.content_digest))


def _attempt_numbers(known: AssetRows, attempts: Iterable[AttemptKey]) -> dict[AttemptKey, int]:
    """Return the number of each attempt: its own, or the next numbers of its partition in the order of runs."""
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
        case RecoveryRuling.INSERT | RecoveryRuling.CLOSE | RecoveryRuling.APPROVE:
            takes = not trusted or state is None or str(state.current_run_id) < run_id
        case RecoveryRuling.KNOWN:
            # The table changed to this run after the backup: an operator rolled back to it.
            moved = pointer is None or pointer.run_id != run_id
            takes = moved and not _is_trusted(run.attempt, known) and not _waits(key, run_id, known)
        case _:
            takes = False
    version = (state.authority_version if state else 0) + takes
    vouched = ruling not in (RecoveryRuling.WITHDRAWN, RecoveryRuling.CONFLICT)
    return Decision(run, ruling, numbers.get(run.attempt, 0), takes, version, vouched and (takes or trusted))


def _waits(key: PartitionKey, run_id: str, known: AssetRows) -> bool:
    """Whether a later run than this one is trusted and not published yet: it keeps authority."""
    state, pointer = known.states.get(key), known.pointers.get(key)
    if state is None or state.status != "success" or state.current_run_id is None:
        return False
    if pointer is not None and pointer.run_id == state.current_run_id:
        return False
    runs = known.attempts.get(key, {})
    return runs[state.current_run_id].attempt_no > runs[run_id].attempt_no


def _ruling(run: FoundRun, attempt: KnownAttempt | None) -> RecoveryRuling:
    if run.demoted or (attempt is not None and attempt.demoted):
        return RecoveryRuling.WITHDRAWN
    if attempt is not None and (attempt.outcome == Outcome.SUCCEEDED or attempt.approved):
        return RecoveryRuling.KNOWN
    if not run.usable:
        return RecoveryRuling.CONFLICT
    if attempt is None:
        return RecoveryRuling.INSERT
    if attempt.outcome is None:
        return RecoveryRuling.CLOSE
    return RecoveryRuling.APPROVE if attempt.outcome == Outcome.FAILED else RecoveryRuling.CONFLICT
