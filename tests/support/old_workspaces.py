"""Workspaces of earlier releases, for versions 1 to 5 of the state schema; `tests/data/workspace-*.tar.xz`.

Each holds a penstock.yaml, a SQLite state.db and a local lake with two customers and two days of the demo source; those
from 0004 on also have a model. They were made with the sources of the last commit before the next version of the schema
(0001: 6ceecf1, 0002: fae6e0f, 0003: 4a296aa, 0004: 1706294,
0005: 332a2c9), in a folder outside of the repository:

    git archive COMMIT src | tar x -C /tmp/old
    cd /tmp/workspace  # with the penstock.yaml of the archive
    PYTHONPATH=/tmp/old/src python -m penstock db migrate
    PYTHONPATH=/tmp/old/src python -m penstock run --since 2024-06-01 --until 2024-06-02
    sqlite3 state.db 'PRAGMA wal_checkpoint(TRUNCATE); PRAGMA journal_mode = DELETE; VACUUM'
    tar cJf workspace-0001.tar.xz *
"""

from __future__ import annotations

import sqlite3
import tarfile
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from sqlalchemy.engine import Connection

import penstock.db
from penstock.db.engine import Database

DATA = Path(__file__).parents[1] / "data"
VERSIONS = sorted(file.name.split("-")[1].split(".")[0] for file in DATA.glob("workspace-*.tar.xz"))
_SCRIPTS = Path(penstock.db.__file__).with_name("migrations")


def unpack(version: str, folder: Path) -> Path:
    """The workspace of this version of the schema, on SQLite."""
    with tarfile.open(DATA / f"workspace-{version}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


def move_to_postgres(folder: Path, version: str, url: str, schema: str) -> None:
    """Copies the rows of state.db into a PostgreSQL schema of the same version, and points the workspace at it."""
    state = folder / "state.db"
    database = Database(url, schema)
    try:
        database.transact(lambda connection: _create(connection, schema, version))
        with sqlite3.connect(state) as rows:
            database.transact(lambda connection: _copy(rows, connection))
        rows.close()
    finally:
        database.close()
    state.unlink()
    file = folder / "penstock.yaml"
    file.write_text(file.read_text().replace("state: sqlite:///state.db", f"state: {url}\nschema: {schema}"))


def _create(connection: Connection, schema: str, version: str) -> None:
    connection.execute(sa.schema.CreateSchema(schema))
    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS))
    config.attributes["connection"] = connection
    command.upgrade(config, version)


def _copy(old: sqlite3.Connection, new: Connection) -> None:
    """Every row as text: PostgreSQL reads the dates, times and documents of SQLite as they are written there."""
    new.exec_driver_sql("SET LOCAL session_replication_role = replica")  # rows come in any order of their tables
    inspector, cursor = sa.inspect(new), new.connection.cursor()
    for (table,) in old.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"):
        if table == "alembic_version":
            continue
        there = {c["name"]: c for c in inspector.get_columns(table)}
        names = [c[1] for c in old.execute(f"PRAGMA table_info({table})") if not there[c[1]].get("computed")]
        rows = old.execute(f"SELECT {', '.join(names)} FROM {table}").fetchall()
        # A column that SQLite leaves empty and PostgreSQL fills by itself, such as the number of the transaction.
        kept = [at for at, name in enumerate(names) if any(row[at] is not None for row in rows)]
        if not rows:
            continue
        with cursor.copy(f"COPY {table} ({', '.join(names[at] for at in kept)}) FROM STDIN") as copy:
            for row in rows:
                copy.write_row([row[at] for at in kept])
        for name in (n for n in names if there[n].get("identity") or "nextval" in str(there[n].get("default"))):
            new.execute(
                sa.text(f"SELECT setval(pg_get_serial_sequence('{table}', '{name}'), max({name})) FROM {table}")
            )
