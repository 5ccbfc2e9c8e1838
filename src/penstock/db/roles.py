"""PostgreSQL roles: five roles, their grants, and triggers for the rules that grants cannot express.

Each store of `penstock.state` has only the operations of its actor. These roles enforce the same for clients that do
not use the stores.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.db import schema
from penstock.db.engine import Database
from penstock.errors import ConfigError, UsageError
from penstock.lifecycle import TRANSITIONS, Actor


class Role(StrEnum):
    EXTRACTOR = "extractor"
    VALIDATOR = "validator"
    CONTROL = "control"
    LOADER = "loader"
    CONSUMER = "consumer"


PURPOSES: Mapping[Role, str] = {
    Role.EXTRACTOR: "fetches from sources into the lake; has no access to the state",
    Role.VALIDATOR: "closes issued attempts with a verdict, and withdraws runs that fail a re-check",
    Role.CONTROL: "issues and cancels attempts, requeues failed partitions; marks, quotas, backfills, orders, alerts",
    Role.LOADER: "publishes trusted runs, and moves the pointers",
    Role.CONSUMER: "reads trusted rows and their state",
}

_READ = ("SELECT",)
_APPEND = ("SELECT", "INSERT")
_WRITE = ("SELECT", "INSERT", "UPDATE")
_QUEUE = (*_WRITE, "DELETE")
# The ledger skips events that it has already; to detect them, their keys must be readable.
_APPEND_EVENTS = ("INSERT", "SELECT (idempotency_key)")
_APPEND_AUDIT = ("INSERT",)


def _only(privilege: str, *columns: str) -> str:
    return f"{privilege} ({', '.join(columns)})"


_STATE = tuple(column.name for column in schema.partition_state.c if column.name not in schema.KEY)
_ISSUE = (
    *schema.KEY, "run_id", "attempt_no", "reason", "contract_fingerprint", "schema_version", "worker_token",
    "lost_count", "issued_at", "backfill_id",
)  # fmt: skip
_CLOSE = (
    "outcome", "stage", "error_class", "error_message", "complaints", "record_count", "payload_digest",
    "payload_bytes", "content_digest", "measures", "finished_at", "lost_count",
)  # fmt: skip
_CONTENT = ("contract_fingerprint", "content_digest")  # the events of the first releases lack these columns
_DISPLAY = (
    *schema.KEY, "run_id", "attempt_no", "outcome", "error_class", "error_message", "finished_at", "demoted_at",
    "backfill_id", *_CONTENT,
)  # fmt: skip
_RETRY = ("failures", "failing_since", "next_run_at", "strategy")

_ALL_ROLES = {"alembic_version": _READ, "workspace": _READ}  # the owner of the schema, and its version
_QUOTA = {"source_quota": _READ, "source_pace": _READ, "source_share": _READ}  # only the control plane claims

GRANTS: Mapping[Role, Mapping[str, tuple[str, ...]]] = {
    Role.EXTRACTOR: {},
    Role.VALIDATOR: {
        **_ALL_ROLES,
        "contract": _READ,
        "worker": _READ,
        "partition_attempt": (*_READ, _only("UPDATE", *_CLOSE, "demoted_at")),
        "partition_state": (*_APPEND, _only("UPDATE", *_STATE)),
        # Retry columns that a verdict writes. The validator does not write the marks of operators (terminal, paused,
        # held).
        "partition_control": (*_READ, _only("INSERT", *schema.KEY, *_RETRY), _only("UPDATE", *_RETRY)),
        "retry_due": _QUEUE,  # an acceptance deletes from the queue; the validator deletes no other rows
        "publish_due": _WRITE,
        "attempt_input": _READ,
        "event": _APPEND_EVENTS,
        "audit": _APPEND_AUDIT,  # a re-check by an operator is in the audit log if it demotes
        **_QUOTA,
    },
    Role.CONTROL: {
        **_ALL_ROLES,
        "contract": _APPEND,
        "worker": _WRITE,
        "run": _WRITE,
        "partition_attempt": (
            *_READ,
            _only("INSERT", *_ISSUE),
            # Cancelling closes an attempt, a resumed run adopts it, operators approve runs, and cleanup deletes old raw
            # data.
            _only("UPDATE", *_CLOSE, "worker_token", "approved_at", "raw_deleted_at"),
        ),
        # Verdicts and cancellations close attempts with the same statements, so both need the same grants here. A
        # trigger allows the control plane only the move from failed to pending.
        "partition_state": (*_APPEND, _only("UPDATE", *_STATE)),
        "partition_control": _WRITE,
        "pause_selector": _WRITE,
        "retry_due": _QUEUE,
        "source_breaker": _WRITE,
        "source_quota": _QUEUE,  # a claim deletes old windows
        "source_pace": _WRITE,
        "source_share": _QUEUE,
        "backfill": _WRITE,
        "backfill_chunk": _WRITE,
        # The API and its orders: the server changes state only through the control plane and the operator's stores.
        "api_token": _WRITE,
        "login_session": _QUEUE,
        "login_failure": _QUEUE,
        "run_order": _WRITE,
        "action_plan": _QUEUE,
        "idempotency_key": _QUEUE,
        # A control loop evaluates alerts and sends notifications, and deletes those of long ago.
        "alert": _QUEUE,
        "alert_delivery": _QUEUE,
        "alert_cursor": _WRITE,
        "publish_due": _WRITE,
        "event": (*_APPEND, "DELETE"),  # a trigger allows it only for events in an exported segment
        "ledger_segment": _APPEND,
        "projection_head": _WRITE,
        "attempt_input": _APPEND,
        "audit": _APPEND,
        "warehouse_table": _READ,
        "warehouse_pointer": _READ,
        "load_record": _READ,
        "load_batch": _READ,
        "load_batch_item": _READ,
    },
    Role.LOADER: {
        **_ALL_ROLES,
        "contract": _READ,
        "worker": _WRITE,
        "partition_attempt": _READ,
        # Row locks against a change of authority need UPDATE on one column; a trigger refuses actual updates.
        "partition_state": (*_READ, _only("UPDATE", "updated_at")),
        "publish_due": _QUEUE,
        "warehouse_table": _WRITE,
        "warehouse_pointer": _WRITE,
        "load_record": _APPEND,
        "load_batch": _WRITE,
        "load_batch_item": _QUEUE,
        "event": _APPEND_EVENTS,
        "audit": _APPEND_AUDIT,  # reconcile, compact, vacuum
        **_QUOTA,
    },
    Role.CONSUMER: {
        **_ALL_ROLES,
        "contract": _READ,
        "partition_state": _READ,
        "partition_control": _READ,
        "pause_selector": _READ,
        # The columns for the display status of a partition and for partitions derived from demoted runs. Complaints are
        # not readable, because they quote rejected rows.
        "partition_attempt": (_only("SELECT", *_DISPLAY),),
        # Readers combine the projections with the events that are not in them yet.
        "projection_head": _READ,
        "ledger_segment": _READ,
        "attempt_input": _READ,
        "event": _READ,
        "publish_due": _READ,
        "source_breaker": _READ,
        **_QUOTA,
        "warehouse_table": _READ,
        "warehouse_pointer": _READ,
        "load_record": _READ,
    },
}

_STAGING = (Role.VALIDATOR, Role.CONTROL, Role.LOADER)  # they write in bulk, through temporary tables
_PREFIX = re.compile(r"[a-z][a-z0-9_]*")
_LONGEST_NAME = 63  # PostgreSQL truncates longer names silently
_ONE_AT_A_TIME = 7366453  # PostgreSQL advisory lock: concurrent GRANTs on the same database fail


@dataclass(frozen=True, slots=True)
class Place:
    """The schema of the tables, and its owner."""

    database: str
    schema: str
    owner: str
    tenant_id: str
    workspace_id: str

    def __str__(self) -> str:
        return f"Penstock workspace {self.tenant_id}/{self.workspace_id} in {self.database}.{self.schema}"

    def named(self, thing: str) -> str:
        return f"{_quoted(self.schema)}.{thing}"


@dataclass(frozen=True, slots=True)
class RolePlan:
    """The statements of `db roles`: `--dry-run` prints the same ones that are executed."""

    names: Mapping[Role, str]
    place: Place
    statements: tuple[str, ...]


def role_names(prefix: str) -> dict[Role, str]:
    """The names of the five roles in the cluster. Raises UsageError if the prefix is not valid."""
    names = {role: f"{prefix}_{role}" for role in Role}
    if not _PREFIX.fullmatch(prefix):
        raise UsageError(f"the prefix {prefix!r} must be lower-case letters, digits and _, and begin with a letter")
    if too_long := [name for name in names.values() if len(name) > _LONGEST_NAME]:
        raise UsageError(f"{too_long[0]} is longer than {_LONGEST_NAME} characters: give a shorter --prefix")
    return names


def plan_roles(database: Database, prefix: str) -> RolePlan:
    """The statements for this schema. They are idempotent. Raises ConfigError on SQLite, and if a role name is
    taken."""
    names = role_names(prefix)
    if database.dialect != "postgresql":
        raise ConfigError(f"roles need PostgreSQL: a user who may open {database} may do everything in it")
    with database.snapshot() as connection:
        place = Place(**connection.execute(sa.text(_PLACE)).one()._mapping)
        _refuse_taken(connection, names, place)
    statements = (
        *_created(names, place),
        *_revoked(names, place),
        *_granted(names, place),
        *_hiding(place),
        *_state_guard(names, place),
        *_attempt_guard(names, place),
        *_audit_guard(names, place),
    )
    return RolePlan(names, place, statements)


def make_roles(database: Database, plan: RolePlan) -> None:
    """Execute the plan in one transaction: it grants all rights or changes none."""
    database.transact(lambda connection: _make(connection, plan))


def _make(connection: Connection, plan: RolePlan) -> None:
    connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ONE_AT_A_TIME})
    _require_privileges(connection, plan)
    for statement in plan.statements:
        connection.exec_driver_sql(statement, execution_options={"no_parameters": True})
    _require_effect(connection, plan)


_PLACE = """
SELECT current_database() AS database, current_schema() AS schema, pg_get_userbyid(c.relowner) AS owner,
    w.tenant_id, w.workspace_id
FROM workspace w, pg_class c WHERE c.oid = to_regclass('partition_state')
"""

_CREATED = """DO $do$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{name}') THEN
        CREATE ROLE {name} NOLOGIN;
        COMMENT ON ROLE {name} IS {whose};
    END IF;
END $do$"""


def _created(names: Mapping[Role, str], place: Place) -> list[str]:
    """Creates missing roles. Roles belong to the whole cluster, so a comment names the workspace of each."""
    whose = "'" + str(place).replace("'", "''") + "'"
    return [_CREATED.format(name=name, whose=whose) for name in names.values()]


def _revoked(names: Mapping[Role, str], place: Place) -> list[str]:
    """Revokes all rights of the roles, also those that they have through PUBLIC."""
    roles = ", ".join(names.values())
    tables = ", ".join(place.named(table) for table in (*sorted(schema.metadata.tables), "alembic_version"))
    sequences = ", ".join(place.named(sequence) for sequence in _sequences().values())
    return [
        f"REVOKE ALL ON TABLE {tables} FROM PUBLIC, {roles}",
        f"REVOKE ALL ON SEQUENCE {sequences} FROM PUBLIC, {roles}",
        f"REVOKE ALL ON SCHEMA {_quoted(place.schema)} FROM {roles}",
        f"REVOKE TEMPORARY ON DATABASE {_quoted(place.database)} FROM {roles}",
    ]


def _granted(names: Mapping[Role, str], place: Place) -> list[str]:
    sequences = _sequences()
    staging = ", ".join(names[role] for role in _STAGING)
    grants = [f"GRANT TEMPORARY ON DATABASE {_quoted(place.database)} TO {staging}"]
    for role, tables in GRANTS.items():
        if tables:
            grants.append(f"GRANT USAGE ON SCHEMA {_quoted(place.schema)} TO {names[role]}")
        for table, privileges in tables.items():
            grants.append(f"GRANT {', '.join(privileges)} ON TABLE {place.named(table)} TO {names[role]}")
            if table in sequences and "INSERT" in privileges:
                grants.append(f"GRANT USAGE ON SEQUENCE {place.named(sequences[table])} TO {names[role]}")
    return grants


def _sequences() -> dict[str, str]:
    """The sequences of autoincrement columns, by table."""
    numbered = ((table, table.autoincrement_column) for table in schema.metadata.sorted_tables)
    return {table.name: f"{table.name}_{column.name}_seq" for table, column in numbered if column is not None}


def _hiding(place: Place) -> list[str]:
    """A role that withdraws a run hides its pointer without a right on pointers: the trigger runs as the owner of the
    tables. It resolves names in this schema before temporary tables, which any role may create, and no other role
    may attach it to its own table."""
    hide = place.named("hide_what_is_not_success()")
    return [
        f"ALTER FUNCTION {hide} SECURITY DEFINER SET search_path = {_quoted(place.schema)}, pg_temp",
        f"REVOKE ALL ON FUNCTION {hide} FROM PUBLIC",
    ]


# These functions run as the sender of the statement, because they check `current_user`. They resolve names only in the
# catalog, where a sender cannot create objects.
_GUARD = """CREATE OR REPLACE FUNCTION {function} RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $guard$
DECLARE
{declared};
    owns boolean := pg_has_role(current_user, (SELECT relowner FROM pg_class WHERE oid = TG_RELID), 'MEMBER');
BEGIN
    IF owns OR {allowed} THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege', MESSAGE = '{name}: ' || {message};
END $guard$"""

_MOVE = """    judges boolean := {judges};
    plans boolean := {plans};
    earlier text := CASE TG_OP WHEN 'INSERT' THEN 'pending' ELSE OLD.status END;
    judging boolean := (earlier, NEW.status) IN ({judging});
    planning boolean := (earlier, NEW.status) IN ({planning}) AND ({new}) IS NOT DISTINCT FROM ({old})"""


def _state_guard(names: Mapping[Role, str], place: Place) -> list[str]:
    """Each role makes only the transitions that the state machine assigns to its actor; no row means pending. The
    transitions of the control plane do not change authority and counts. A member of both roles acts for an operator,
    who may make every transition."""
    validator, control = names[Role.VALIDATOR], names[Role.CONTROL]
    kept = [column for column in _STATE if column not in ("status", "updated_at", "error_message")]
    declared = _MOVE.format(
        judges=_is_member(validator),
        plans=_is_member(control),
        judging=_moves(Actor.VALIDATOR),
        planning=_moves(Actor.CONTROL),
        new=", ".join(f"NEW.{column}" for column in kept),
        old=", ".join(f"OLD.{column}" for column in kept),
    )
    message = (
        "current_user || ' may not move a partition from ' || earlier || ' to ' || NEW.status || ': members of '"
        f" || CASE WHEN judging THEN '{validator}' WHEN planning THEN '{control}'"
        f" ELSE 'both {validator} and {control}' END || ' may'"
    )
    allowed = "(judging AND judges) OR (planning AND plans) OR (judges AND plans)"
    return _guarded(
        place,
        "each_role_makes_its_own_moves",
        f"INSERT OR UPDATE ON {place.named('partition_state')} FOR EACH ROW",
        declared=declared,
        allowed=allowed,
        message=message,
    )


def _attempt_guard(names: Mapping[Role, str], place: Place) -> list[str]:
    """Only the validator closes attempts with a verdict; the control plane cancels them."""
    validator, attempts = names[Role.VALIDATOR], place.named("partition_attempt")
    return _guarded(
        place,
        "only_the_validator_judges",
        f"UPDATE ON {attempts} FOR EACH ROW WHEN (OLD.outcome IS NULL AND NEW.outcome <> 'CANCELLED')",
        declared=f"    judges boolean := {_is_member(validator)}",
        allowed="judges",
        message=f"current_user || ' may not close an attempt as ' || NEW.outcome || ': members of {validator} may'",
    )


# The acts in the audit log that these roles carry out, by their names in `state/audited.py`. The control plane may all.
AUDITED_ACTS = {
    Role.VALIDATOR: ("validate",),
    Role.LOADER: ("warehouse reconcile", "warehouse compact", "warehouse vacuum"),
}


def _audit_guard(names: Mapping[Role, str], place: Place) -> list[str]:
    """A role writes only audit rows of its own acts. An act that it could imitate (a demotion by an operator) fails
    together with its audit row."""
    own = " OR ".join(
        f"({_is_member(names[role])} AND NEW.command IN ({', '.join(repr(act) for act in acts)}))"
        for role, acts in AUDITED_ACTS.items()
    )
    control = names[Role.CONTROL]
    return _guarded(
        place,
        "each_role_notes_its_own_acts",
        f"INSERT ON {place.named('audit')} FOR EACH ROW",
        declared=f"    notes boolean := {_is_member(control)} OR {own}",
        allowed="notes",
        message=f"current_user || ' may not record ' || NEW.command || ': members of {control} may'",
    )


def _guarded(place: Place, name: str, when: str, **body: str) -> list[str]:
    function = place.named(f"{name}()")
    return [
        _GUARD.format(function=function, name=name, **body),
        # An administrator may have created it; the owner of the tables must be able to replace it.
        f"ALTER FUNCTION {function} OWNER TO {_quoted(place.owner)}",
        f"CREATE OR REPLACE TRIGGER {name} BEFORE {when} EXECUTE FUNCTION {function}",
    ]


def _is_member(name: str) -> str:
    """The SQL condition that the user is a member: true for superusers, and false if the role does not exist."""
    return f"pg_has_role(current_user, to_regrole('{name}'), 'MEMBER') IS TRUE"


def _moves(actor: Actor) -> str:
    moves = dict.fromkeys((move.before, move.after) for move in TRANSITIONS if move.actor is actor)
    return ", ".join(f"('{before}', '{after}')" for before, after in moves)


_POWER = """
SELECT rolname AS me, rolsuper OR rolcreaterole AS creates, pg_has_role(rolname, :owner, 'USAGE') AS owns
FROM pg_roles WHERE rolname = current_user
"""
_FOUND = """
SELECT rolname AS name, rolcanlogin OR rolsuper OR rolcreaterole AS is_privileged,
    shobj_description(oid, 'pg_authid') AS whose
FROM pg_roles WHERE rolname = ANY(:names) ORDER BY rolname
"""
_REACH = """
SELECT has_schema_privilege(:role, :schema, 'USAGE') AS enters,
    has_database_privilege(:role, :database, 'TEMPORARY') AS stages
"""


def _refuse_taken(connection: Connection, names: Mapping[Role, str], place: Place) -> None:
    """Raise ConfigError if a role of that name belongs to something else: its members would get rights here."""
    for role in connection.execute(sa.text(_FOUND), {"names": list(names.values())}):
        if role.is_privileged or role.whose not in (None, str(place)):
            whose = "a login or an administrator" if role.is_privileged else role.whose
            raise ConfigError(f"the role {role.name} is taken ({whose}): choose another name with --prefix")


def _require_privileges(connection: Connection, plan: RolePlan) -> None:
    """Raise ConfigError with the missing privilege before the first statement."""
    power = connection.execute(sa.text(_POWER), {"owner": plan.place.owner}).one()
    found = connection.execute(sa.text(_FOUND), {"names": list(plan.names.values())}).all()
    if not power.owns:
        raise ConfigError(f"{power.me} does not own the tables: run this as {plan.place.owner}, or as a superuser")
    if len(found) < len(plan.names) and not power.creates:
        raise ConfigError(
            f"{power.me} may not create roles: that needs CREATEROLE (`ALTER ROLE {power.me} CREATEROLE`);"
            " or let an administrator execute what --dry-run prints"
        )


def _require_effect(connection: Connection, plan: RolePlan) -> None:
    """Raise ConfigError if a grant had no effect: PostgreSQL only warns if the grantor may not grant."""
    place = plan.place
    for role, name in plan.names.items():
        asked = {"role": name, "schema": place.schema, "database": place.database}
        reach = connection.execute(sa.text(_REACH), asked).one()
        if GRANTS[role] and not reach.enters:
            raise _may_not_grant("USAGE", f"SCHEMA {_quoted(place.schema)}", place.owner)
        if role in _STAGING and not reach.stages:
            raise _may_not_grant("TEMPORARY", f"DATABASE {_quoted(place.database)}", place.owner)


def _may_not_grant(privilege: str, on: str, owner: str) -> ConfigError:
    return ConfigError(
        f"the roles need {privilege}, which {owner} may not grant: let an administrator execute"
        f" `GRANT {privilege} ON {on} TO {owner} WITH GRANT OPTION`"
    )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
