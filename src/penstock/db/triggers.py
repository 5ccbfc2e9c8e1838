"""What no statement may do, whoever sends it: rewrite history, forget a partition, count backwards."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Refusal:
    """A row change that the database itself refuses, with the words it answers."""

    name: str
    table: str
    event: str
    answer: str
    when: str | None = None


REFUSALS = (
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

_LEAVES_SUCCESS = "OLD.status = 'success' AND NEW.status <> 'success'"

# A partition that stops being success takes its rows away from readers in the same statement, whoever wrote it.
_HIDE = (
    "UPDATE warehouse_pointer SET available = {false} WHERE source = NEW.source AND customer_id = NEW.customer_id"
    " AND query_name = NEW.query_name AND logical_date = NEW.logical_date"
)


def statements(dialect: str) -> list[str]:
    """The DDL of every trigger for one dialect."""
    return _sqlite() if dialect == "sqlite" else _postgresql()


def _sqlite() -> list[str]:
    ddl = []
    for refusal in REFUSALS:
        when = f" WHEN {refusal.when}" if refusal.when else ""
        ddl.append(
            f"CREATE TRIGGER {refusal.name} BEFORE {refusal.event} ON {refusal.table} FOR EACH ROW{when}"
            f" BEGIN SELECT RAISE(ABORT, '{refusal.name}: {refusal.answer}'); END"
        )
    ddl.append(
        f"CREATE TRIGGER hide_what_is_not_success AFTER UPDATE OF status ON partition_state FOR EACH ROW"
        f" WHEN {_LEAVES_SUCCESS} BEGIN {_HIDE.format(false='0')}; END"
    )
    return ddl


def _postgresql() -> list[str]:
    ddl = []
    for refusal in REFUSALS:
        when = f" WHEN ({refusal.when})" if refusal.when else ""
        ddl.append(
            f"CREATE FUNCTION {refusal.name}() RETURNS trigger LANGUAGE plpgsql AS $$"
            f" BEGIN RAISE EXCEPTION '{refusal.name}: {refusal.answer}' USING ERRCODE = 'check_violation'; END $$"
        )
        ddl.append(
            f"CREATE TRIGGER {refusal.name} BEFORE {refusal.event} ON {refusal.table}"
            f" FOR EACH ROW{when} EXECUTE FUNCTION {refusal.name}()"
        )
        if refusal.event == "DELETE":
            ddl.append(
                f"CREATE TRIGGER {refusal.name}_at_once BEFORE TRUNCATE ON {refusal.table}"
                f" FOR EACH STATEMENT EXECUTE FUNCTION {refusal.name}()"
            )
    ddl.append(
        f"CREATE FUNCTION hide_what_is_not_success() RETURNS trigger LANGUAGE plpgsql AS $$"
        f" BEGIN {_HIDE.format(false='false')}; RETURN NULL; END $$"
    )
    ddl.append(
        "CREATE TRIGGER hide_what_is_not_success AFTER UPDATE OF status ON partition_state"
        f" FOR EACH ROW WHEN ({_LEAVES_SUCCESS}) EXECUTE FUNCTION hide_what_is_not_success()"
    )
    return ddl


_IN_A_SEGMENT = (
    "EXISTS (SELECT 1 FROM ledger_segment g WHERE OLD.position BETWEEN g.first_position AND g.last_position)"
)


def exported_events_may_go(dialect: str) -> list[str]:
    """The one exception: an event that stands in an exported segment of the ledger may leave the database."""
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
