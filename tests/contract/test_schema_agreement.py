"""The migrations, the tables declared in code and the triggers agree, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

import penstock.db
from penstock.db import schema
from penstock.db.engine import Database
from penstock.db.migrate import HEAD
from penstock.db.triggers import (
    FROZEN_COLUMNS,
    MARKS_OF_ATTEMPTS,
    REFUSALS,
    exported_events_may_go,
    freeze_closed_attempts,
    protect_tokens_and_orders,
    statements,
)
from support import builders

SCRIPTS = Path(penstock.db.__file__).with_name("migrations")


@pytest.fixture(scope="module", params=builders.BACKENDS)
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """Created by the migrations."""
    folder = tmp_path_factory.mktemp("migrated")
    opened = builders.open_database(request.param, folder, lambda: request.getfixturevalue("postgres_url"))
    builders.migrated(opened)
    # A handle that was opened when the schema was there: SQLAlchemy remembers the schema of its first connection.
    yield (handle := builders.another_handle(opened))
    for engine in (opened.engine, handle.engine):
        engine.dispose()


@pytest.fixture(scope="module")
def declared(database: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """Created from the tables declared in code."""
    if database.dialect == "sqlite":
        made = Database(f"sqlite:///{tmp_path_factory.mktemp('declared') / 'state.db'}")
    else:
        made = Database(database.url.render_as_string(hide_password=False), f"{database.schema}_declared")
        made.transact(lambda connection: connection.execute(sa.schema.CreateSchema(made.schema or "")))
    made.transact(schema.metadata.create_all)
    yield (handle := builders.another_handle(made))
    for engine in (made.engine, handle.engine):
        engine.dispose()


def test_the_head_in_the_code_is_the_head_of_the_scripts() -> None:
    assert ScriptDirectory(str(SCRIPTS)).get_heads() == [HEAD]


def test_alembic_finds_no_difference_between_migrations_and_tables(database: Database) -> None:
    with database.snapshot() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, schema.metadata) == []


def shape(database: Database) -> dict[str, Any]:
    """Everything that Alembic does not compare as well: CHECK constraints, conditions of indexes, names of keys."""
    with database.snapshot() as connection:
        inspector = sa.inspect(connection)
        tables = [name for name in inspector.get_table_names() if name != "alembic_version"]
        return {
            name: {
                "columns": {c["name"]: (str(c["type"]), c["nullable"]) for c in inspector.get_columns(name)},
                "primary key": inspector.get_pk_constraint(name)["constrained_columns"],
                "unique": named(inspector.get_unique_constraints(name), "column_names"),
                "foreign": named(inspector.get_foreign_keys(name), "constrained_columns"),
                "checks": named(inspector.get_check_constraints(name), "sqltext"),
                "indexes": {
                    i["name"]: (i["column_names"], i["unique"], where(i.get("dialect_options", {})))
                    for i in inspector.get_indexes(name)
                },
            }
            for name in tables
        }


def named(constraints: Any, fact: str) -> dict[str, str]:
    return {constraint["name"]: " ".join(str(constraint[fact]).split()) for constraint in constraints}


def where(options: dict[str, Any]) -> str:
    return " ".join(str(value) for name, value in options.items() if name.endswith("_where"))


def test_migrations_and_tables_have_the_same_constraints_and_indexes(database: Database, declared: Database) -> None:
    migrated = shape(database)
    assert set(migrated) == set(schema.metadata.tables)
    assert migrated == shape(declared)
    assert migrated["partition_attempt"]["indexes"]["one_open_attempt_per_partition"][2]


def test_every_refusal_is_a_trigger_of_the_database(database: Database) -> None:
    catalog = {
        "sqlite": "SELECT name, tbl_name FROM sqlite_master WHERE type = 'trigger'",
        "postgresql": "SELECT t.tgname, c.relname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid"
        " JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = current_schema() AND NOT t.tgisinternal AND t.tgenabled = 'O'",
    }
    with database.snapshot() as connection:
        found = {tuple(row) for row in connection.execute(sa.text(catalog[database.dialect]))}
    wanted = {(refusal.name, refusal.table) for refusal in REFUSALS} | {("hide_what_is_not_success", "partition_state")}
    assert wanted <= found


def test_every_column_of_an_attempt_is_frozen_or_set_once() -> None:
    """A new column of the table needs a place in one of the two triggers."""
    assert sorted((*FROZEN_COLUMNS, *MARKS_OF_ATTEMPTS)) == sorted(schema.partition_attempt.c.keys())


def test_the_triggers_of_the_database_are_those_that_the_code_would_make(
    database: Database, declared: Database
) -> None:
    """A changed answer or condition needs a migration of its own."""
    catalog = {
        "sqlite": "SELECT sql FROM sqlite_master WHERE type = 'trigger' ORDER BY name",
        "postgresql": "SELECT pg_get_triggerdef(t.oid) || p.prosrc FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid"
        " JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = current_schema() ORDER BY t.tgname",
    }

    def definitions(of: Database) -> list[str]:
        with of.snapshot() as connection:
            found = connection.execute(sa.text(catalog[of.dialect])).scalars().all()
        return [str(text).replace(f"{of.schema}.", "") for text in found]

    def make(connection: sa.Connection) -> None:
        for make in (statements, exported_events_may_go, freeze_closed_attempts, protect_tokens_and_orders):
            for statement in make(declared.dialect):
                connection.exec_driver_sql(statement)

    declared.transact(make)
    assert len(definitions(database)) > len(REFUSALS)
    assert definitions(database) == definitions(declared)
