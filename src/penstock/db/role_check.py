"""Checks that the roles that `db roles` created are complete and have exactly the rights of this release."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.db.engine import Database
from penstock.db.roles import GRANTS, Role, RolePlan, plan_roles


class Right(NamedTuple):
    """A privilege of a role on a table, or on one column of it."""

    role: str
    table: str
    privilege: str
    column: str | None = None

    def __str__(self) -> str:
        column = f" ({self.column})" if self.column else ""
        return f"{self.privilege}{column} on {self.table}"


def role_prefixes(database: Database) -> list[str]:
    """The prefixes of the roles of this workspace, which are identified by their comments."""
    with database.snapshot() as connection:
        names = list(connection.scalars(sa.text(_OWN)))
    ends = tuple(f"_{role}" for role in Role)
    return sorted({name.rpartition("_")[0] for name in names if name.endswith(ends)})


def role_problems(database: Database, prefix: str) -> list[str]:
    """Missing and surplus rights of the roles of this prefix, and missing or outdated triggers."""
    plan = plan_roles(database, prefix)
    with database.snapshot() as connection:
        there = set(connection.scalars(sa.text(_THERE), {"names": list(plan.names.values())}))
        if absent := [name for name in plan.names.values() if name not in there]:
            return [f"the role {name} is missing" for name in absent]
        found = {Right(*row) for row in connection.execute(sa.text(_RIGHTS))}
        wanted = set(_wanted(plan.names))
        ours = {right for right in found if right.role in {*plan.names.values(), "public"}}
        problems = [f"{right.role} lacks {right}" for right in sorted(wanted - ours, key=str)]
        problems += [f"{right.role} has {right}, which is not its own" for right in sorted(ours - wanted, key=str)]
        return problems + list(_guard_problems(connection, plan))


_OWN = """
SELECT r.rolname FROM pg_roles r, workspace w
WHERE shobj_description(r.oid, 'pg_authid') = 'Penstock workspace ' || w.tenant_id || '/' || w.workspace_id || ' in '
    || current_database() || '.' || current_schema()
"""
_THERE = "SELECT rolname FROM pg_roles WHERE rolname = ANY(:names)"
_RIGHTS = """
WITH tables AS (
    SELECT c.oid, c.relname, c.relacl FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = current_schema() AND c.relkind = 'r'
), rights AS (
    SELECT t.relname, a.grantee, a.privilege_type, NULL::text AS column_name FROM tables t, aclexplode(t.relacl) a
    UNION ALL
    SELECT t.relname, a.grantee, a.privilege_type, c.attname::text
    FROM tables t JOIN pg_attribute c ON c.attrelid = t.oid, aclexplode(c.attacl) a
)
SELECT COALESCE(r.rolname, 'public')::text, x.relname::text, x.privilege_type::text, x.column_name
FROM rights x LEFT JOIN pg_roles r ON r.oid = x.grantee
"""
_BODY = """
SELECT p.prosrc FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE n.nspname = current_schema() AND p.proname = :name
"""
_TRIGGER = """
SELECT count(*) FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = current_schema() AND t.tgname = :name AND t.tgenabled <> 'D'
"""
_HIDES_AS_OWNER = """
SELECT COALESCE(bool_and(p.prosecdef), false) FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE n.nspname = current_schema() AND p.proname = 'hide_what_is_not_success'
"""
_PRIVILEGE = re.compile(r"(\w+)(?: \((.*)\))?")
_GUARD = re.compile(r"CREATE OR REPLACE FUNCTION \S*?(\w+)\(\).*?\$guard\$(.*)\$guard\$", re.DOTALL)


def _wanted(names: Mapping[Role, str]) -> Iterator[Right]:
    for role, tables in GRANTS.items():
        for table, privileges in tables.items():
            for written in privileges:
                found = _PRIVILEGE.fullmatch(written)
                assert found is not None  # GRANTS is a constant
                columns: Sequence[str | None] = found[2].split(", ") if found[2] else [None]
                yield from (Right(names[role], table, found[1], column) for column in columns)


def _guard_problems(connection: Connection, plan: RolePlan) -> Iterator[str]:
    """Problems of the triggers for the rules that grants cannot express."""
    for name, body in (found.groups() for found in map(_GUARD.match, plan.statements) if found):
        if connection.scalar(sa.text(_BODY), {"name": name}) != body:
            yield f"the rule {name} is missing or of another release"
        elif not connection.scalar(sa.text(_TRIGGER), {"name": name}):
            yield f"the trigger {name} is missing or disabled"
    if not connection.scalar(sa.text(_HIDES_AS_OWNER)):
        yield "the function hide_what_is_not_success does not run as the owner of the tables"
