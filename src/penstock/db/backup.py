"""Consistent copies of the state database, made while other processes use it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock import interrupts
from penstock.db import schema
from penstock.db.engine import Database
from penstock.db.migrate import HEAD
from penstock.errors import ConfigError, DatabaseUnavailable

SQLITE_FILE, POSTGRES_FILE = "state.db", "state.dump"


def copy_database(database: Database, folder: Path) -> tuple[Path, dict[str, Any]]:
    """Write a copy of the database into the folder. Returns the file and its facts as of one moment: identity, schema
    version, table heads and the last event. The file appears atomically. Raises DatabaseUnavailable if it fails."""
    copy = _copy_sqlite if database.dialect == "sqlite" else _dump_postgresql
    return copy(database, folder)


def described(connection: Connection) -> dict[str, Any]:
    """The facts of a backup: owner, identity, schema version, last event and table heads."""
    table, workspace = schema.warehouse_table.c, schema.workspace.c
    owner = connection.execute(sa.select(workspace.tenant_id, workspace.workspace_id, workspace.identity)).one()
    heads = connection.execute(sa.select(table.table_name, table.version, table.publication).order_by(table.table_name))
    return {
        "tenant": owner.tenant_id,
        "workspace": owner.workspace_id,
        "identity": owner.identity,
        "schema": HEAD,
        "position": connection.scalar(sa.select(sa.func.max(schema.event.c.position))) or 0,
        "partitions": connection.scalar(sa.select(sa.func.count()).select_from(schema.partition_state)) or 0,
        "tables": [{"table": row.table_name, "version": row.version, "publication": row.publication} for row in heads],
    }


def _copy_sqlite(database: Database, folder: Path) -> tuple[Path, dict[str, Any]]:
    """Copies with SQLite's online backup, and reads the heads from the copy, so that both are of the same moment."""
    target, unfinished = folder / SQLITE_FILE, folder / f".{SQLITE_FILE}.unfinished"
    unfinished.unlink(missing_ok=True)
    try:
        with _opened(str(database.url.database)) as source, _opened(str(unfinished)) as copy:
            source.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")  # a single file, without a WAL
    except sqlite3.Error as error:
        raise DatabaseUnavailable(f"the state database {database} could not be copied: {error}") from error
    finished = Database(f"sqlite:///{unfinished}")
    with finished.snapshot() as connection:
        facts = described(connection)
    finished.close()
    for beside in folder.glob(f".{SQLITE_FILE}.unfinished-*"):
        beside.unlink()
    with unfinished.open("rb") as file:
        os.fsync(file.fileno())
    unfinished.replace(target)
    return target, facts


class _opened:
    """A SQLite connection that is closed at the end of the block; sqlite3's own context manager only ends a
    transaction."""

    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(path, timeout=30)

    def __enter__(self) -> sqlite3.Connection:
        return self._connection

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def _dump_postgresql(database: Database, folder: Path) -> tuple[Path, dict[str, Any]]:
    """Runs `pg_dump` on the snapshot in which the heads are read."""
    program = shutil.which("pg_dump")
    if program is None:
        raise ConfigError("a backup of PostgreSQL needs pg_dump: install postgresql-client (Debian, Ubuntu)")
    target, unfinished = folder / POSTGRES_FILE, folder / f".{POSTGRES_FILE}.unfinished"
    url = database.url
    with database.snapshot() as connection:
        facts = described(connection)
        snapshot = connection.scalar(sa.text("SELECT pg_export_snapshot()"))
        name = connection.scalar(sa.text("SELECT current_schema()"))
        places = {"--host": url.host, "--port": url.port, "--username": url.username, "--dbname": url.database}
        options = [f"{option}={value}" for option, value in places.items() if value is not None]
        command = [
            program,
            "--format=custom",
            "--no-owner",
            f"--schema={name}",
            f"--snapshot={snapshot}",
            f"--file={unfinished}",
            *options,
        ]
        code, errors = _run(command, {"PGPASSWORD": str(url.password)} if url.password else {})
    if code != 0:
        unfinished.unlink(missing_ok=True)
        raise DatabaseUnavailable(f"pg_dump of {database} failed: {errors.strip()}")
    unfinished.replace(target)
    return target, facts


def _run(command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str]:
    """The exit code and the stderr of a program. Kills it on an interrupt."""
    process = None
    try:
        with interrupts.delayed():
            process = subprocess.Popen(
                command, env={**os.environ, **environment}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
            )
        errors = process.communicate()[1]
    except BaseException:
        if process is not None:
            process.kill()
            process.wait()
        raise
    return process.returncode, errors
