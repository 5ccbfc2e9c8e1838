"""Migrates the state schema, and refuses a schema of another version."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.db import schema
from penstock.db.engine import Database
from penstock.errors import ConfigError
from penstock.partition import new_ulid

HEAD = "0012"
_SCRIPTS = Path(__file__).with_name("migrations")
# True if events have transaction numbers that this cluster has not assigned yet: they come from the dump of another
# one.
FOREIGN_EVENTS = sa.text(
    "SELECT EXISTS (SELECT 1 FROM event WHERE transaction_id >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint)"
)
_ONE_AT_A_TIME = 7366452  # PostgreSQL advisory lock: two migrations never run at once


def migrate(
    database: Database,
    tenant: str,
    workspace: str,
    check: Callable[[Connection], None] | None = None,
    identity: str | None = None,
) -> tuple[str | None, str]:
    """Apply the missing migrations in one transaction. Returns the version before and after; safe to repeat.

    A schema without an identity gets `identity`, or a new one. `check` runs on the migrated schema in the same
    transaction; if it raises, nothing changes.
    """
    if database.dialect == "sqlite":
        Path(str(database.url.database)).parent.mkdir(parents=True, exist_ok=True)

    def work(connection: Connection) -> tuple[str | None, str]:
        versions = _migrate(connection, database.schema, tenant, workspace)
        connection.execute(
            sa.text("UPDATE workspace SET identity = :identity WHERE identity IS NULL"),
            {"identity": identity or new_ulid()},
        )
        if check is not None:
            check(connection)
        return versions

    return database.transact(work)


def ensure_current(database: Database, tenant: str, workspace: str) -> None:
    """Raise ConfigError for a missing schema, one of another version, or one of another workspace."""
    if database.dialect == "sqlite" and not Path(str(database.url.database)).exists():
        raise ConfigError(f"there is no state database at {database} yet: run `penstock db migrate`")
    with database.snapshot() as connection:
        found = current_version(connection)
        if found != HEAD:
            raise ConfigError(
                f"the state database {database} has schema version {found or 'none'}, this Penstock needs {HEAD}:"
                " run `penstock db migrate`"
            )
        _check_owner(connection, tenant, workspace)


def version_of(database: Database) -> str | None:
    """The schema version of a database; None if it does not exist or has no schema."""
    if database.dialect == "sqlite" and not Path(str(database.url.database)).exists():
        return None
    with database.snapshot() as connection:
        return current_version(connection)


def current_version(connection: Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    version: str | None = connection.scalar(sa.text("SELECT version_num FROM alembic_version"))
    return version


def _migrate(connection: Connection, schema_name: str | None, tenant: str, workspace: str) -> tuple[str | None, str]:
    from alembic import command
    from alembic.config import Config

    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ONE_AT_A_TIME})
        if schema_name:
            connection.execute(sa.schema.CreateSchema(schema_name, if_not_exists=True))
    before = current_version(connection)
    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS))
    config.attributes["connection"] = connection
    command.upgrade(config, HEAD)
    connection.execute(
        sa.text("INSERT INTO workspace (one, tenant_id, workspace_id) VALUES (1, :t, :w) ON CONFLICT DO NOTHING"),
        {"t": tenant, "w": workspace},
    )
    _check_owner(connection, tenant, workspace)
    if connection.dialect.name == "postgresql" and connection.scalar(FOREIGN_EVENTS):
        _adopt_foreign_events(connection)
    return before, HEAD


def _adopt_foreign_events(connection: Connection) -> None:
    """After a restore into another cluster: mark all events as committed and rebuild the projections."""
    connection.exec_driver_sql("ALTER TABLE event DISABLE TRIGGER events_are_never_changed")
    connection.exec_driver_sql("UPDATE event SET transaction_id = 0")
    connection.exec_driver_sql("ALTER TABLE event ENABLE TRIGGER events_are_never_changed")
    connection.exec_driver_sql("DELETE FROM projection_head")
    connection.exec_driver_sql("UPDATE alert_cursor SET ledger_transaction = 0 WHERE ledger_position IS NOT NULL")


def _check_owner(connection: Connection, tenant: str, workspace: str) -> None:
    owner = connection.execute(sa.select(schema.workspace.c.tenant_id, schema.workspace.c.workspace_id)).one_or_none()
    if owner is None:
        raise ConfigError("this state database has no owner recorded: run `penstock db migrate`")
    if tuple(owner) != (tenant, workspace):
        raise ConfigError(
            f"this state database belongs to workspace {owner.tenant_id}/{owner.workspace_id},"
            f" not to {tenant}/{workspace}: give each workspace its own SQLite file or its own PostgreSQL schema"
            " (`schema:` in penstock.yaml)"
        )
