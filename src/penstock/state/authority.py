"""The operator's acts on authority: demote the trusted run, roll back to an older one, approve a rejected one.

Each act is one transaction: state, pointers, marks, event and audit entry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.clock import Clock
from penstock.db import schema
from penstock.db.engine import Database
from penstock.errors import ActRefused, PlanOutdated
from penstock.ledger.append import append
from penstock.ledger.events import AuthorityChanged
from penstock.lifecycle import Act, Outcome
from penstock.partition import PartitionKey, RunId
from penstock.state.control import AuditEntry, record_audit
from penstock.warehouse.withdrawn import DemotedRun, demoted_inputs

_STATE, _ATTEMPT, _POINTER = schema.partition_state, schema.partition_attempt, schema.warehouse_pointer


@dataclass(frozen=True, slots=True)
class AuthorityStore:
    """Changes one partition per call, each with a reason. Repeating a call changes nothing.

    With `rehearsal` it raises the same errors and returns the same results, and changes nothing.
    """

    database: Database
    clock: Clock
    rehearsal: bool = False
    expected_version: int | None = None  # of the authority that the operator saw; None: any

    def demote(self, key: PartitionKey, reason: str, entry: AuditEntry) -> bool:
        """Withdraw the trusted run. Readers lose its rows in the same transaction."""
        return self.database.transact(lambda connection: self._demote(connection, key, reason, entry))

    def rollback(self, key: PartitionKey, to: RunId, entry: AuditEntry, reason: str | None = None) -> bool:
        """Trust an earlier accepted run again. Readers lose the rows of the current run in the same transaction."""
        return self.database.transact(
            lambda connection: self._restore(connection, key, to, Act.ROLLBACK, reason, entry)
        )

    def approve(self, key: PartitionKey, run_id: RunId, reason: str, entry: AuditEntry) -> bool:
        """Trust a run that only guards rejected. The caller has verified that no other check rejected it."""
        return self.database.transact(
            lambda connection: self._restore(connection, key, run_id, Act.APPROVE, reason, entry)
        )

    def _demote(self, connection: Connection, key: PartitionKey, reason: str, entry: AuditEntry) -> bool:
        now = self.clock()
        state = self._locked_state(connection, key)
        if state is None or state.current_run_id is None or state.status == "pending":
            raise ActRefused(f"{key} cannot be demoted: no run of it is trusted")
        if state.status == "failed":
            return False
        if self.rehearsal:
            return True
        version = state.authority_version + 1
        _update_state(
            connection,
            key,
            status="failed",
            error_message=f"demoted by {entry.actor}: {reason}",
            authority_version=version,
            updated_at=now,
        )
        connection.execute(
            sa.update(_ATTEMPT)
            .where(*_is(_ATTEMPT, key), _ATTEMPT.c.run_id == state.current_run_id, _ATTEMPT.c.demoted_at.is_(None))
            .values(demoted_at=now)
        )
        _publish_due(connection, key, version, now)
        append(connection, [AuthorityChanged(state.current_run_id, key, version, Act.DEMOTE)], "operator", now)
        record_audit(connection, entry, 1, "done", now)
        return True

    def _restore(
        self, connection: Connection, key: PartitionKey, to: RunId, act: Act, reason: str | None, entry: AuditEntry
    ) -> bool:
        now = self.clock()
        state = self._locked_state(connection, key)
        attempts = {row.run_id: row for row in connection.execute(sa.select(_ATTEMPT).where(*_is(_ATTEMPT, key)))}
        target = attempts.get(to)
        if target is None:
            known = ", ".join(sorted(attempts)) or "none"
            raise ActRefused(f"{key} has no attempt in run {to} (runs: {known})")
        if state is not None and state.status == "success" and state.current_run_id == to:
            return False
        request = AuthorityRequest(key, act, state, target, attempts, demoted_inputs(connection, key, to))
        if (refused := refusal(request)) is not None:
            raise ActRefused(refused)
        if self.rehearsal:
            return True
        version = state.authority_version + 1
        values = {
            "status": "success",
            "current_run_id": to,
            "schema_version": target.schema_version,
            "record_count": target.record_count,
            "error_message": None,
            "authority_version": version,
            "updated_at": now,
        }
        _update_state(connection, key, **values)
        if act is Act.APPROVE:
            connection.execute(
                sa.update(_ATTEMPT)
                .where(*_is(_ATTEMPT, key), _ATTEMPT.c.run_id == to, _ATTEMPT.c.approved_at.is_(None))
                .values(approved_at=now)
            )
        else:  # readers must not see the replaced run until the older one is published again
            connection.execute(
                sa.update(_POINTER).where(*_is(_POINTER, key), _POINTER.c.run_id != to).values(available=False)
            )
        last = max(row.attempt_no for row in attempts.values())
        _hold(connection, key, last, entry.actor, reason or f"{act} to {to}", now)
        _publish_due(connection, key, version, now)
        changed = AuthorityChanged(to, key, version, act, target.contract_fingerprint, target.content_digest)
        append(connection, [changed], "operator", now)
        record_audit(connection, entry, 1, "done", now)
        return True

    def _locked_state(self, connection: Connection, key: PartitionKey) -> Any:
        """The row of the partition, locked. Raises PlanOutdated if its authority is not the one that was seen."""
        state = connection.execute(sa.select(_STATE).where(*_is(_STATE, key)).with_for_update()).one_or_none()
        found = 0 if state is None else state.authority_version
        if self.expected_version is not None and found != self.expected_version:
            raise PlanOutdated(f"{key}: its authority changed since the preview: preview the action again")
        return state


@dataclass(frozen=True, slots=True)
class AuthorityRequest:
    """A request to give authority to a run, by rollback or approval. Accepts database rows and the records of
    `penstock.state.records` alike."""

    key: PartitionKey
    act: Act
    state: Any
    target: Any  # its attempt
    attempts: Mapping[str, Any]  # of the partition, by run
    demoted_inputs: Sequence[DemotedRun] = ()  # that went into the target, if it is derived

    @property
    def holder(self) -> Any:
        """The attempt that holds authority. A demoted run holds none."""
        if self.state is None or self.state.status != "success":
            return None
        return self.attempts.get(self.state.current_run_id)


def refusal(request: AuthorityRequest) -> str | None:
    """Return why a run must not get authority, or None if it may. Rollback and approval share the rules."""
    found = (rule(request) for rule in _REFUSALS)
    return next((f"{request.key}: {reason}" for reason in found if reason), None)


def _never_judged(request: AuthorityRequest) -> str | None:
    return "no attempt of it has a verdict yet: there is no run to give authority to" if request.state is None else None


def _attempt_is_open(request: AuthorityRequest) -> str | None:
    for row in request.attempts.values():
        if row.outcome is None:
            return f"run {row.run_id} works on it: wait for its verdict"
    return None


def _never_accepted(request: AuthorityRequest) -> str | None:
    target = request.target
    if request.act is not Act.ROLLBACK or target.outcome == Outcome.SUCCEEDED or target.approved_at is not None:
        return None
    runs = sorted(request.attempts.items())
    trusted = [run for run, row in runs if row.outcome == Outcome.SUCCEEDED or row.approved_at]
    return f"run {target.run_id} was never accepted ({target.outcome}); accepted ones: {', '.join(trusted) or 'none'}"


def _not_held_back(request: AuthorityRequest) -> str | None:
    target = request.target
    if request.act is not Act.APPROVE:
        return None
    if target.outcome == Outcome.FAILED and target.payload_digest is not None and target.content_digest is not None:
        return None
    return f"run {target.run_id} was not held back by a guard ({target.outcome})"


def _was_demoted(request: AuthorityRequest) -> str | None:
    target = request.target
    if target.demoted_at is None:
        return None
    return (
        f"run {target.run_id} was demoted at {target.demoted_at:%Y-%m-%d %H:%M} UTC, and a demoted run never regains"
        f" authority: choose another run, or fetch it again with `penstock run {request.key} --reprocess`"
    )


def _made_from_a_demoted_run(request: AuthorityRequest) -> str | None:
    if not request.demoted_inputs:
        return None
    return f"run {request.target.run_id} was derived from {request.demoted_inputs[0]}: choose another run"


def _raw_is_deleted(request: AuthorityRequest) -> str | None:
    deleted = request.target.raw_deleted_at
    return None if deleted is None else f"the raw data of run {request.target.run_id} was deleted at {deleted:%Y-%m-%d}"


def _newer_holds_authority(request: AuthorityRequest) -> str | None:
    holder, target = request.holder, request.target
    if request.act is not Act.APPROVE or holder is None or holder.attempt_no < target.attempt_no:
        return None
    return (
        f"attempt {holder.attempt_no} holds authority and is newer than attempt {target.attempt_no};"
        " an older run never takes it away"
    )


def _other_schema_version(request: AuthorityRequest) -> str | None:
    """A rollback stays inside the schema version. An approval may move the partition to a newer one, as acceptance
    does, but never back."""
    state, target = request.state, request.target
    if state.schema_version in (None, target.schema_version):
        return None
    current = request.attempts.get(state.current_run_id)
    if request.act is Act.APPROVE and (current is None or current.attempt_no < target.attempt_no):
        return None
    return (
        f"run {target.run_id} is of schema version {target.schema_version}, the partition of"
        f" {state.schema_version}: fetch it again with `penstock run {request.key} --reprocess`"
    )


_REFUSALS = (
    _never_judged,
    _attempt_is_open,
    _never_accepted,
    _not_held_back,
    _was_demoted,
    _made_from_a_demoted_run,
    _raw_is_deleted,
    _newer_holds_authority,
    _other_schema_version,
)


def _update_state(connection: Connection, key: PartitionKey, **values: Any) -> None:
    connection.execute(sa.update(_STATE).where(*_is(_STATE, key)).values(**values))


def _hold(connection: Connection, key: PartitionKey, last: int, actor: str, reason: str, now: datetime) -> None:
    """Protect an operator's choice from the next restatement and from retries of earlier failures: failures count from
    the `last` attempt on."""
    values: dict[str, Any] = {"held_at": now, "held_by": actor, "held_reason": reason}
    values |= {"failures": 0, "cleared_attempt_no": last}
    cleared = ("failing_since", "next_run_at", "strategy", "terminal_at", "terminal_by", "terminal_reason")
    _upsert(connection, schema.partition_control, key, values | dict.fromkeys(cleared))
    due = schema.retry_due
    connection.execute(sa.delete(due).where(*_is(due, key)))


def _publish_due(connection: Connection, key: PartitionKey, version: int, now: datetime) -> None:
    _upsert(connection, schema.publish_due, key, {"authority_version": version, "since": now})


def _upsert(connection: Connection, table: sa.Table, key: PartitionKey, values: dict[str, Any]) -> None:
    dialect: Any = import_module(f"sqlalchemy.dialects.{connection.dialect.name}")
    statement = dialect.insert(table).values(**key._asdict(), **values)
    connection.execute(statement.on_conflict_do_update(index_elements=list(schema.KEY), set_=values))


def _is(table: sa.Table, key: PartitionKey) -> list[sa.ColumnElement[bool]]:
    return [table.c[name] == getattr(key, name) for name in schema.KEY]
