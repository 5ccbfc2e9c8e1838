"""The operator's acts on authority: withdraw the trusted run, return to an older one, approve one that was held back.

Each is one transaction: the state, what readers may see, the marks, the event and the line in the audit log.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from penstock.clock import Clock
from penstock.db import schema
from penstock.db.engine import Database
from penstock.errors import ActRefused
from penstock.ledger.append import append
from penstock.ledger.events import AuthorityChanged
from penstock.lifecycle import Act, Outcome
from penstock.partition import PartitionKey, RunId
from penstock.state.control import AuditEntry, record_audit

_STATE, _ATTEMPT, _POINTER = schema.partition_state, schema.partition_attempt, schema.warehouse_pointer


@dataclass(frozen=True, slots=True)
class AuthorityStore:
    """One partition at a time, each with a reason. What was done before is done once: repeating changes nothing.

    As a `rehearsal` it refuses what it would refuse and says what it would do, and changes nothing.
    """

    database: Database
    clock: Clock
    rehearsal: bool = False

    def demote(self, key: PartitionKey, reason: str, entry: AuditEntry) -> bool:
        """Withdraw the trusted run: its rows are gone from readers before the failure shows."""
        return self.database.transact(lambda connection: self._demote(connection, key, reason, entry))

    def rollback(self, key: PartitionKey, to: RunId, entry: AuditEntry) -> bool:
        """Trust an earlier accepted run again. The abandoned one is gone from readers at once."""
        return self.database.transact(
            lambda connection: self._return_to(connection, key, to, Act.ROLLBACK, None, entry)
        )

    def approve(self, key: PartitionKey, run_id: RunId, reason: str, entry: AuditEntry) -> bool:
        """Trust a run that only the shrink guard held back; the caller has made sure that it was only that."""
        return self.database.transact(
            lambda connection: self._return_to(connection, key, run_id, Act.APPROVE, reason, entry)
        )

    def _demote(self, connection: Connection, key: PartitionKey, reason: str, entry: AuditEntry) -> bool:
        now = self.clock()
        state = _locked_state(connection, key)
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
            .where(*_is(_ATTEMPT, key), _ATTEMPT.c.run_id == state.current_run_id)
            .values(demoted_at=now)
        )
        _publish_due(connection, key, version, now)
        append(connection, [AuthorityChanged(state.current_run_id, key, version, Act.DEMOTE)], "operator", now)
        record_audit(connection, entry, 1, "done", now)
        return True

    def _return_to(
        self, connection: Connection, key: PartitionKey, to: RunId, act: Act, reason: str | None, entry: AuditEntry
    ) -> bool:
        now = self.clock()
        state = _locked_state(connection, key)
        attempts = {row.run_id: row for row in connection.execute(sa.select(_ATTEMPT).where(*_is(_ATTEMPT, key)))}
        target = attempts.get(to)
        if target is None:
            known = ", ".join(sorted(attempts)) or "none"
            raise ActRefused(f"{key} has no attempt in run {to} (runs: {known})")
        if state is not None and state.status == "success" and state.current_run_id == to:
            return False
        _refuse_while_open(key, attempts)
        refuse = _refuse_rollback if act is Act.ROLLBACK else _refuse_approval
        refuse(key, state, target, attempts)
        if self.rehearsal:
            return True
        version = (state.authority_version if state else 0) + 1
        values = {
            "status": "success",
            "current_run_id": to,
            "schema_version": target.schema_version,
            "record_count": target.record_count,
            "error_message": None,
            "authority_version": version,
            "updated_at": now,
        }
        if state is None:
            raise ActRefused(f"{key} was never judged: there is nothing to return to")
        _update_state(connection, key, **values)
        if act is Act.APPROVE:
            connection.execute(
                sa.update(_ATTEMPT).where(*_is(_ATTEMPT, key), _ATTEMPT.c.run_id == to).values(approved_at=now)
            )
        else:  # the abandoned run is not to be read while the older one waits to be published again
            connection.execute(
                sa.update(_POINTER).where(*_is(_POINTER, key), _POINTER.c.run_id != to).values(available=False)
            )
        _hold(connection, key, entry.actor, reason or f"{act} to {to}", now)
        _publish_due(connection, key, version, now)
        changed = AuthorityChanged(to, key, version, act, target.contract_fingerprint, target.content_digest)
        append(connection, [changed], "operator", now)
        record_audit(connection, entry, 1, "done", now)
        return True


def _refuse_while_open(key: PartitionKey, attempts: dict[str, Any]) -> None:
    for row in attempts.values():
        if row.outcome is None:
            raise ActRefused(f"{key} is being worked on by run {row.run_id}: wait for its verdict")


def _refuse_rollback(key: PartitionKey, state: Any, target: Any, attempts: dict[str, Any]) -> None:
    if target.outcome != Outcome.SUCCEEDED and target.approved_at is None:
        trusted = [run for run, row in sorted(attempts.items()) if row.outcome == Outcome.SUCCEEDED or row.approved_at]
        raise ActRefused(
            f"{key}: run {target.run_id} was never accepted ({target.outcome}); accepted ones:"
            f" {', '.join(trusted) or 'none'}"
        )
    if target.demoted_at is not None:
        raise ActRefused(
            f"{key}: run {target.run_id} was demoted at {target.demoted_at:%Y-%m-%d %H:%M}; take another run"
        )
    if state is not None and state.schema_version not in (None, target.schema_version):
        raise ActRefused(
            f"{key}: run {target.run_id} is of schema version {target.schema_version}, the partition of"
            f" {state.schema_version}: fetch it again with `penstock run {key} --reprocess`"
        )
    _refuse_deleted(key, target)


def _refuse_approval(key: PartitionKey, state: Any, target: Any, attempts: dict[str, Any]) -> None:
    if target.outcome != Outcome.FAILED or target.payload_digest is None or target.content_digest is None:
        raise ActRefused(f"{key}: run {target.run_id} was not held back by the shrink guard ({target.outcome})")
    current = attempts.get(state.current_run_id) if state is not None and state.current_run_id else None
    if current is not None and current.attempt_no > target.attempt_no:
        raise ActRefused(
            f"{key}: attempt {current.attempt_no} holds authority and is newer than attempt {target.attempt_no};"
            " an older run never takes it away"
        )
    _refuse_deleted(key, target)


def _refuse_deleted(key: PartitionKey, target: Any) -> None:
    if target.raw_deleted_at is not None:
        raise ActRefused(f"{key}: the raw data of run {target.run_id} was deleted at {target.raw_deleted_at:%Y-%m-%d}")


def _locked_state(connection: Connection, key: PartitionKey) -> Any:
    return connection.execute(sa.select(_STATE).where(*_is(_STATE, key)).with_for_update()).one_or_none()


def _update_state(connection: Connection, key: PartitionKey, **values: Any) -> None:
    connection.execute(sa.update(_STATE).where(*_is(_STATE, key)).values(**values))


def _hold(connection: Connection, key: PartitionKey, actor: str, reason: str, now: datetime) -> None:
    """What a person decided is not overwritten by the next restatement, nor by a retry of what failed before."""
    values = {"held_at": now, "held_by": actor, "held_reason": reason, "failures": 0}
    cleared = ("failing_since", "next_run_at", "strategy", "terminal_at", "terminal_by", "terminal_reason")
    _upsert(connection, schema.partition_control, key, values | dict.fromkeys(cleared))
    due = schema.retry_due
    connection.execute(sa.delete(due).where(*_is(due, key)))


def _publish_due(connection: Connection, key: PartitionKey, version: int, now: datetime) -> None:
    _upsert(connection, schema.publish_due, key, {"authority_version": version, "since": now})


def _upsert(connection: Connection, table: sa.Table, key: PartitionKey, values: dict[str, Any]) -> None:
    dialect: Any = postgresql if connection.dialect.name == "postgresql" else sqlite
    statement = dialect.insert(table).values(**key._asdict(), **values)
    connection.execute(statement.on_conflict_do_update(index_elements=list(schema.KEY), set_=values))


def _is(table: sa.Table, key: PartitionKey) -> list[sa.ColumnElement[bool]]:
    return [table.c[name] == getattr(key, name) for name in schema.KEY]
