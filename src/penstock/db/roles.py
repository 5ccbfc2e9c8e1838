"""Who may do what, said to PostgreSQL: five roles, their grants, and the two rules that grants cannot say.

The objects of `penstock.state` have only their own verbs; these roles hold whoever goes around them to the same.
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
    Role.EXTRACTOR: "fetches from sources into the lake; the state is none of its business",
    Role.VALIDATOR: "judges issued attempts, and withdraws what it vouched for",
    Role.CONTROL: "issues and cancels attempts, requeues what failed, keeps marks, breakers and backfills",
    Role.LOADER: "publishes what is vouched for, and moves the pointers",
    Role.CONSUMER: "reads what is vouched for, and its state",
}

_READ = ("SELECT",)
_APPEND = ("SELECT", "INSERT")
_WRITE = ("SELECT", "INSERT", "UPDATE")
_QUEUE = (*_WRITE, "DELETE")
# A fact that was told before is left out of the ledger; to see that, its key must be readable.
_TELL = ("INSERT", "SELECT (idempotency_key)")
_NOTE = ("INSERT",)


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
_CONTENT = ("contract_fingerprint", "content_digest")  # of attempts whose events, by the first releases, lack them
_DISPLAY = (
    *schema.KEY, "run_id", "attempt_no", "outcome", "error_class", "error_message", "finished_at", "demoted_at",
    "backfill_id", *_CONTENT,
)  # fmt: skip
_RETRY = ("failures", "failing_since", "next_run_at", "strategy")

_EVERYBODY = {"alembic_version": _READ, "workspace": _READ}  # whose schema it is, and of which version

GRANTS: Mapping[Role, Mapping[str, tuple[str, ...]]] = {
    Role.EXTRACTOR: {},
    Role.VALIDATOR: {
        **_EVERYBODY,
        "contract": _READ,
        "worker": _READ,
        "partition_attempt": (*_READ, _only("UPDATE", *_CLOSE, "demoted_at")),
        "partition_state": (*_APPEND, _only("UPDATE", *_STATE)),
        # What a verdict says about retries. The marks of operators (terminal, paused, held) are not its own.
        "partition_control": (*_READ, _only("INSERT", *schema.KEY, *_RETRY), _only("UPDATE", *_RETRY)),
        "retry_due": _QUEUE,  # an acceptance strikes the partition from the list: the only rows it ever deletes
        "publish_due": _WRITE,
        "attempt_input": _READ,
        "event": _TELL,
        "audit": _NOTE,  # a re-check that a person asked for says so where it demotes
    },
    Role.CONTROL: {
        **_EVERYBODY,
        "contract": _APPEND,
        "worker": _WRITE,
        "run": _WRITE,
        "partition_attempt": (
            *_READ,
            _only("INSERT", *_ISSUE),
            # Cancelling closes an attempt; a resumed run adopts it; operators approve runs, and old raw data goes.
            _only("UPDATE", *_CLOSE, "worker_token", "approved_at", "raw_deleted_at"),
        ),
        # Closing is one set of statements for verdicts and cancellations, so both need the same grants here: a trigger
        # says that the control plane moves failed to pending and nothing else.
        "partition_state": (*_APPEND, _only("UPDATE", *_STATE)),
        "partition_control": _WRITE,
        "pause_selector": _WRITE,
        "retry_due": _QUEUE,
        "source_breaker": _WRITE,
        "backfill": _WRITE,
        "backfill_chunk": _WRITE,
        "publish_due": _WRITE,
        "event": (*_APPEND, "DELETE"),  # only what stands in an exported segment: a trigger says so
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
        **_EVERYBODY,
        "contract": _READ,
        "worker": _WRITE,
        "partition_attempt": _READ,
        # Locking rows against a change of authority needs UPDATE on one column; a trigger refuses to use it.
        "partition_state": (*_READ, _only("UPDATE", "updated_at")),
        "publish_due": _QUEUE,
        "warehouse_table": _WRITE,
        "warehouse_pointer": _WRITE,
        "load_record": _APPEND,
        "load_batch": _WRITE,
        "load_batch_item": _QUEUE,
        "event": _TELL,
        "audit": _NOTE,  # reconcile, compact, vacuum
    },
    Role.CONSUMER: {
        **_EVERYBODY,
        "contract": _READ,
        "partition_state": _READ,
        "partition_control": _READ,
        "pause_selector": _READ,
        # Enough for a partition's display status, and to find what was made from demoted runs. Complaints quote rows
        # that were rejected, and stay unread.
        "partition_attempt": (_only("SELECT", *_DISPLAY),),
        # The projections are read together with the events that they do not hold yet.
        "projection_head": _READ,
        "ledger_segment": _READ,
        "attempt_input": _READ,
        "event": _READ,
        "publish_due": _READ,
        "source_breaker": _READ,
        "warehouse_table": _READ,
        "warehouse_pointer": _READ,
        "load_record": _READ,
    },
}

_STAGING = (Role.VALIDATOR, Role.CONTROL, Role.LOADER)  # they write in bulk, through temporary tables
_PREFIX = re.compile(r"[a-z][a-z0-9_]*")
_LONGEST_NAME = 63  # PostgreSQL cuts longer names without a word
_ONE_AT_A_TIME = 7366453  # PostgreSQL advisory lock: GRANTs on the same database trip over each other


@dataclass(frozen=True, slots=True)
class Place:
    """Where the tables are, and whose they are."""

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
    """What `db roles` does: the same statements for an administrator to read and for us to execute."""

    names: Mapping[Role, str]
    place: Place
    statements: tuple[str, ...]


def role_names(prefix: str) -> dict[Role, str]:
    """The five roles by their names in the cluster."""
    names = {role: f"{prefix}_{role}" for role in Role}
    if not _PREFIX.fullmatch(prefix):
        raise UsageError(f"the prefix {prefix!r} must be lower-case letters, digits and _, and begin with a letter")
    if too_long := [name for name in names.values() if len(name) > _LONGEST_NAME]:
        raise UsageError(f"{too_long[0]} is longer than {_LONGEST_NAME} characters: give a shorter --prefix")
    return names


def plan_roles(database: Database, prefix: str) -> RolePlan:
    """The statements for this schema. Executing them again converges to the same rights."""
    names = role_names(prefix)
    if database.dialect != "postgresql":
        raise ConfigError(f"roles need PostgreSQL: whoever may open {database} may do everything in it")
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
    """Carry out the plan in one transaction: all rights are as they should be, or all are as they were."""
    database.transact(lambda connection: _make(connection, plan))


def _make(connection: Connection, plan: RolePlan) -> None:
    connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ONE_AT_A_TIME})
    _require_power(connection, plan)
    for statement in plan.statements:
        connection.exec_driver_sql(statement, execution_options={"no_parameters": True})
    _require_reach(connection, plan)


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
    """Roles belong to the whole cluster, their rights to one schema: a comment says whose roles they are."""
    whose = "'" + str(place).replace("'", "''") + "'"
    return [_CREATED.format(name=name, whose=whose) for name in names.values()]


def _revoked(names: Mapping[Role, str], place: Place) -> list[str]:
    """Rights that a role should not have go, also those that it would have as one of the public."""
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
    """The sequences that number rows, by table."""
    numbered = ((table, table.autoincrement_column) for table in schema.metadata.sorted_tables)
    return {table.name: f"{table.name}_{column.name}_seq" for table, column in numbered if column is not None}


def _hiding(place: Place) -> list[str]:
    """Whoever withdraws a run also hides its pointer, without any right to touch pointers otherwise: the trigger does
    it as the owner of the tables. It looks up names in this schema before temporary tables, which anybody may create,
    and nobody else may hang it on a table of their own."""
    hide = place.named("hide_what_is_not_success()")
    return [
        f"ALTER FUNCTION {hide} SECURITY DEFINER SET search_path = {_quoted(place.schema)}, pg_temp",
        f"REVOKE ALL ON FUNCTION {hide} FROM PUBLIC",
    ]


# `current_user` is who sends the statement, so these functions run as the sender. Their names are looked up in the
# catalog only, where a sender can put nothing.
_GUARD = """CREATE OR REPLACE FUNCTION {function} RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $guard$
DECLARE
{declared};
    owns boolean := pg_has_role(current_user, (SELECT relowner FROM pg_class WHERE oid = TG_RELID), 'MEMBER');
BEGIN
    IF owns OR {allowed} THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege', MESSAGE = '{name}: ' || {words};
END $guard$"""

_MOVE = """    judges boolean := {judges};
    plans boolean := {plans};
    earlier text := CASE TG_OP WHEN 'INSERT' THEN 'pending' ELSE OLD.status END;
    judging boolean := (earlier, NEW.status) IN ({judging});
    planning boolean := (earlier, NEW.status) IN ({planning}) AND ({new}) IS NOT DISTINCT FROM ({old})"""


def _state_guard(names: Mapping[Role, str], place: Place) -> list[str]:
    """Each role makes the moves that the state machine gives its actor; no row means pending. The control plane's moves
    leave authority and counts alone. A member of both roles acts for an operator, who may make every move."""
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
    words = (
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
        words=words,
    )


def _attempt_guard(names: Mapping[Role, str], place: Place) -> list[str]:
    """The control plane closes attempts too, but without a verdict."""
    validator, attempts = names[Role.VALIDATOR], place.named("partition_attempt")
    return _guarded(
        place,
        "only_the_validator_judges",
        f"UPDATE ON {attempts} FOR EACH ROW WHEN (OLD.outcome IS NULL AND NEW.outcome <> 'CANCELLED')",
        declared=f"    judges boolean := {_is_member(validator)}",
        allowed="judges",
        words=f"current_user || ' may not close an attempt as ' || NEW.outcome || ': members of {validator} may'",
    )


# Which acts of the audit log these roles carry out, by their names in `state/audited.py`; the control plane does all.
NOTED = {
    Role.VALIDATOR: ("validate",),
    Role.LOADER: ("warehouse reconcile", "warehouse compact", "warehouse vacuum"),
}


def _audit_guard(names: Mapping[Role, str], place: Place) -> list[str]:
    """A role writes only lines of its own acts: an act that it could imitate otherwise (a demotion by an operator) is
    refused together with its line."""
    own = " OR ".join(
        f"({_is_member(names[role])} AND NEW.command IN ({', '.join(repr(act) for act in acts)}))"
        for role, acts in NOTED.items()
    )
    control = names[Role.CONTROL]
    return _guarded(
        place,
        "each_role_notes_its_own_acts",
        f"INSERT ON {place.named('audit')} FOR EACH ROW",
        declared=f"    notes boolean := {_is_member(control)} OR {own}",
        allowed="notes",
        words=f"current_user || ' may not record ' || NEW.command || ': members of {control} may'",
    )


def _guarded(place: Place, name: str, when: str, **body: str) -> list[str]:
    function = place.named(f"{name}()")
    return [
        _GUARD.format(function=function, name=name, **body),
        # An administrator may have made it: whoever owns the tables must be able to make it again.
        f"ALTER FUNCTION {function} OWNER TO {_quoted(place.owner)}",
        f"CREATE OR REPLACE TRIGGER {name} BEFORE {when} EXECUTE FUNCTION {function}",
    ]


def _is_member(name: str) -> str:
    """True for superusers as well; false, not an error, when the role was dropped."""
    return f"pg_has_role(current_user, to_regrole('{name}'), 'MEMBER') IS TRUE"


def _moves(actor: Actor) -> str:
    moves = dict.fromkeys((move.before, move.after) for move in TRANSITIONS if move.actor is actor)
    return ", ".join(f"('{before}', '{after}')" for before, after in moves)


_POWER = """
SELECT rolname AS me, rolsuper OR rolcreaterole AS creates, pg_has_role(rolname, :owner, 'USAGE') AS owns
FROM pg_roles WHERE rolname = current_user
"""
_FOUND = """
SELECT rolname AS name, rolcanlogin OR rolsuper OR rolcreaterole AS is_somebody,
    shobj_description(oid, 'pg_authid') AS whose
FROM pg_roles WHERE rolname = ANY(:names) ORDER BY rolname
"""
_REACH = """
SELECT has_schema_privilege(:role, :schema, 'USAGE') AS enters,
    has_database_privilege(:role, :database, 'TEMPORARY') AS stages
"""


def _refuse_taken(connection: Connection, names: Mapping[Role, str], place: Place) -> None:
    """A role of that name may be somebody else's: then its members would get rights here that nobody meant."""
    for role in connection.execute(sa.text(_FOUND), {"names": list(names.values())}):
        if role.is_somebody or role.whose not in (None, str(place)):
            whose = "a login or an administrator" if role.is_somebody else role.whose
            raise ConfigError(f"the role {role.name} is taken ({whose}): choose another name with --prefix")


def _require_power(connection: Connection, plan: RolePlan) -> None:
    """Refuse before the first statement, in words that say which privilege is missing."""
    power = connection.execute(sa.text(_POWER), {"owner": plan.place.owner}).one()
    found = connection.execute(sa.text(_FOUND), {"names": list(plan.names.values())}).all()
    if not power.owns:
        raise ConfigError(f"{power.me} does not own the tables: run this as {plan.place.owner}, or as a superuser")
    if len(found) < len(plan.names) and not power.creates:
        raise ConfigError(
            f"{power.me} may not create roles: that needs CREATEROLE (`ALTER ROLE {power.me} CREATEROLE`);"
            " or let an administrator execute what --dry-run prints"
        )


def _require_reach(connection: Connection, plan: RolePlan) -> None:
    """PostgreSQL only warns when the grantor may not grant on the database or the schema: look what came of it."""
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
