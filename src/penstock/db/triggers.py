"""Triggers that refuse changes of history for every user: of events, audit rows, closed attempts, counts,
revoked tokens and ended orders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Refusal:
    """A row change that a trigger refuses, with its message. Names and messages are part of the schema."""

    name: str
    table: str
    event: str
    answer: str
    when: str | None = None


_FOUNDATION = (
    Refusal("events_are_never_changed", "event", "UPDATE", "events are append-only"),
    Refusal("events_are_never_deleted", "event", "DELETE", "events are append-only"),
    Refusal("audit_is_never_changed", "audit", "UPDATE", "the audit log is append-only"),
    Refusal("audit_is_never_deleted", "audit", "DELETE", "the audit log is append-only"),
    Refusal("contracts_are_never_changed", "contract", "UPDATE", "contracts are append-only"),
    Refusal("contracts_are_never_deleted", "contract", "DELETE", "contracts are append-only"),
    Refusal("partitions_are_never_deleted", "partition_state", "DELETE", "partition_state rows are never deleted"),
    Refusal(
        "attempt_count_never_falls",
        "partition_state",
        "UPDATE",
        "attempt_count and authority_version never fall",
        "NEW.attempt_count < OLD.attempt_count OR NEW.authority_version < OLD.authority_version",
    ),
    Refusal(
        "authority_changes_by_version",
        "partition_state",
        "UPDATE",
        "current_run_id changes only together with authority_version",
        "NEW.current_run_id <> OLD.current_run_id AND NEW.authority_version = OLD.authority_version",
    ),
    Refusal(
        "closed_attempts_stay_closed",
        "partition_attempt",
        "UPDATE",
        "a closed attempt keeps its outcome, number, digest and count",
        "OLD.outcome IS NOT NULL AND (NEW.outcome IS NULL OR NEW.outcome <> OLD.outcome"
        " OR NEW.attempt_no <> OLD.attempt_no OR COALESCE(NEW.payload_digest, '') <> COALESCE(OLD.payload_digest, '')"
        " OR COALESCE(NEW.record_count, -1) <> COALESCE(OLD.record_count, -1))",
    ),
    Refusal("attempts_are_never_deleted", "partition_attempt", "DELETE", "attempts are never deleted"),
)

# Each of these is set once, on a closed attempt, by the act that it records; it is never cleared.
MARKS_OF_ATTEMPTS = ("raw_deleted_at", "approved_at", "demoted_at")
FROZEN_COLUMNS = (
    "source", "customer_id", "query_name", "logical_date", "run_id", "attempt_no", "reason", "contract_fingerprint",
    "schema_version", "worker_token", "lost_count", "issued_at", "stage", "outcome", "error_class", "error_message",
    "complaints", "record_count", "payload_digest", "payload_bytes", "content_digest", "finished_at", "backfill_id",
    "measures",
)  # fmt: skip

_REPLACED = "closed_attempts_stay_closed"  # protected four columns only
_FREEZING = (
    Refusal(
        "closed_attempts_are_frozen",
        "partition_attempt",
        "UPDATE",
        "a closed attempt keeps every column that its verdict or its cancellation left",
        "OLD.outcome IS NOT NULL AND (" + " OR ".join(f"NEW.{c} {{differs}} OLD.{c}" for c in FROZEN_COLUMNS) + ")",
    ),
    Refusal(
        "marks_of_attempts_are_set_once",
        "partition_attempt",
        "UPDATE",
        "raw_deleted_at, approved_at and demoted_at are set once and never cleared or changed",
        " OR ".join(f"(OLD.{c} IS NOT NULL AND NEW.{c} {{differs}} OLD.{c})" for c in MARKS_OF_ATTEMPTS),
    ),
)

_ACCESS = (
    Refusal("tokens_are_never_deleted", "api_token", "DELETE", "the audit log names tokens: revoke a token instead"),
    Refusal(
        "revoked_tokens_stay_revoked",
        "api_token",
        "UPDATE",
        "a revoked token is not changed",
        "OLD.revoked_at IS NOT NULL",
    ),
    Refusal("orders_are_never_deleted", "run_order", "DELETE", "orders are never deleted"),
    Refusal(
        "ended_orders_stay_ended", "run_order", "UPDATE", "an ended order is not changed", "OLD.finished_at IS NOT NULL"
    ),
)

REFUSALS = (*(refusal for refusal in _FOUNDATION if refusal.name != _REPLACED), *_FREEZING, *_ACCESS)

# A comparison that treats NULL as a value; SQLite has the standard operator only since 3.39.
_DIFFERS = {"sqlite": "IS NOT", "postgresql": "IS DISTINCT FROM"}

_LEAVES_SUCCESS = "OLD.status = 'success' AND NEW.status <> 'success'"

# A partition that leaves success hides its rows from readers in the same statement, for every writer.
_HIDE = (
    "UPDATE warehouse_pointer SET available = {false} WHERE source = NEW.source AND customer_id = NEW.customer_id"
    " AND query_name = NEW.query_name AND logical_date = NEW.logical_date"
)


def statements(dialect: str) -> list[str]:
    """The DDL of the triggers of the first migration, for one dialect."""
    return [*_refusing(_FOUNDATION, dialect), *_hiding(dialect)]


def freeze_closed_attempts(dialect: str) -> list[str]:
    """The DDL that protects every column of a closed attempt; before, it protected four."""
    if dialect == "sqlite":
        return [f"DROP TRIGGER {_REPLACED}", *_refusing(_FREEZING, dialect)]
    return [
        f"DROP TRIGGER {_REPLACED} ON partition_attempt",
        f"DROP FUNCTION {_REPLACED}()",
        *_refusing(_FREEZING, dialect),
    ]


def protect_tokens_and_orders(dialect: str) -> list[str]:
    """The DDL that protects revoked tokens and ended orders."""
    return _refusing(_ACCESS, dialect)


def _refusing(refusals: Sequence[Refusal], dialect: str) -> list[str]:
    make = _sqlite if dialect == "sqlite" else _postgresql
    return [statement for refusal in refusals for statement in make(refusal)]


def _when(refusal: Refusal, dialect: str) -> str:
    return f" WHEN ({refusal.when.format(differs=_DIFFERS[dialect])})" if refusal.when else ""


def _sqlite(refusal: Refusal) -> list[str]:
    return [
        f"CREATE TRIGGER {refusal.name} BEFORE {refusal.event} ON {refusal.table} FOR EACH ROW"
        f"{_when(refusal, 'sqlite')} BEGIN SELECT RAISE(ABORT, '{refusal.name}: {refusal.answer}'); END"
    ]


def _postgresql(refusal: Refusal) -> list[str]:
    ddl = [
        f"CREATE FUNCTION {refusal.name}() RETURNS trigger LANGUAGE plpgsql AS $$"
        f" BEGIN RAISE EXCEPTION '{refusal.name}: {refusal.answer}' USING ERRCODE = 'check_violation'; END $$",
        f"CREATE TRIGGER {refusal.name} BEFORE {refusal.event} ON {refusal.table}"
        f" FOR EACH ROW{_when(refusal, 'postgresql')} EXECUTE FUNCTION {refusal.name}()",
    ]
    if refusal.event == "DELETE":
        ddl.append(
            f"CREATE TRIGGER {refusal.name}_at_once BEFORE TRUNCATE ON {refusal.table}"
            f" FOR EACH STATEMENT EXECUTE FUNCTION {refusal.name}()"
        )
    return ddl


def _hiding(dialect: str) -> list[str]:
    if dialect == "sqlite":
        return [
            f"CREATE TRIGGER hide_what_is_not_success AFTER UPDATE OF status ON partition_state FOR EACH ROW"
            f" WHEN {_LEAVES_SUCCESS} BEGIN {_HIDE.format(false='0')}; END"
        ]
    return [
        f"CREATE FUNCTION hide_what_is_not_success() RETURNS trigger LANGUAGE plpgsql AS $$"
        f" BEGIN {_HIDE.format(false='false')}; RETURN NULL; END $$",
        "CREATE TRIGGER hide_what_is_not_success AFTER UPDATE OF status ON partition_state"
        f" FOR EACH ROW WHEN ({_LEAVES_SUCCESS}) EXECUTE FUNCTION hide_what_is_not_success()",
    ]


_IN_A_SEGMENT = (
    "EXISTS (SELECT 1 FROM ledger_segment g WHERE OLD.position BETWEEN g.first_position AND g.last_position)"
)


def exported_events_may_go(dialect: str) -> list[str]:
    """The DDL of the one exception: an event in an exported segment of the ledger may be deleted."""
    name, answer = "events_are_never_deleted", "events are append-only; only exported segments leave the database"
    if dialect == "sqlite":
        return [
            f"DROP TRIGGER {name}",
            f"CREATE TRIGGER {name} BEFORE DELETE ON event FOR EACH ROW WHEN NOT {_IN_A_SEGMENT}"
            f" BEGIN SELECT RAISE(ABORT, '{name}: {answer}'); END",
        ]
    return [
        f"CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF TG_OP = 'DELETE' THEN IF {_IN_A_SEGMENT} THEN RETURN OLD; END IF; END IF;"
        f" RAISE EXCEPTION '{name}: {answer}' USING ERRCODE = 'check_violation'; END $$"
    ]
