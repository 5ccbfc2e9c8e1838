"""Connections that only read a SQLite file, also for a process that cannot write to the file's folder.

Readers and writers of a WAL database share two files beside it, which SQLite creates if they are missing. A process
that cannot create them (on a read-only mount, or without the permission) uses those of a writer. If no writer has the
database open and the WAL has no commits, every commit is in the file itself: then the file is read without SQLite's
locks (`immutable=1`), and each snapshot checks at its end that the file did not change.
"""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from urllib.parse import quote

from penstock.errors import ConfigError, DatabaseUnavailable

_TRIES = 10
_PAUSE_SECONDS = 0.05  # a writer that closes removes its two files one after the other
_TICK_NS = 20_000_000  # file times move in ticks of the kernel: two changes in one tick have the same time
_CANNOT_SHARE = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}


class UnlockedConnection(sqlite3.Connection):
    """Reads the file without locks. A writer may change it at the same time, through another mount or as another
    user."""

    path: Path
    opened: tuple[int, int, int]

    def require_unchanged(self) -> None:
        """Raise DatabaseUnavailable if the file changed since the connection was opened: the rows that were read may be
        inconsistent."""
        if _holds_commits(self.path) or _stamp(self.path) != self.opened:
            raise DatabaseUnavailable(_changed(self.path))


def connect(path: Path) -> sqlite3.Connection:
    """A connection that cannot change the file. Raises ConfigError if the file cannot be read without write access to
    the folder."""
    path = path.resolve()  # SQLite keeps the files beside the one that a link points to
    if not path.exists() or _may_write(path.parent):
        return _opened(path, "mode=ro")
    for _ in range(_TRIES):
        try:
            return _shared(path)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in _CANNOT_SHARE:
                raise
        if not os.access(path, os.R_OK):
            raise ConfigError(f"the state database {path} cannot be read: allow this process to read the file")
        if (found := _unlocked(path)) is not None:
            return found
        time.sleep(_PAUSE_SECONDS)
    if _holds_commits(path):
        raise ConfigError(
            f"the state database {path} has commits in {path.name}-wal that this process cannot read: allow it to read"
            f" {path.name}* and to write to {path.parent}, or run `penstock status` once as a user who can"
        )
    raise DatabaseUnavailable(_changed(path))


def _shared(path: Path) -> sqlite3.Connection:
    """A connection that uses the files of a writer; they exist while this connection is open."""
    connection = _opened(path, "mode=ro")
    try:
        connection.execute("PRAGMA schema_version").fetchone()
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _unlocked(path: Path) -> UnlockedConnection | None:
    """A connection without locks; None if the file does not contain every commit, or changed just now."""
    opened = _stamp(path)
    if _holds_commits(path) or abs(time.time_ns() - opened[2]) < _TICK_NS:
        return None
    connection = _opened(path, "mode=ro&immutable=1", UnlockedConnection)
    assert isinstance(connection, UnlockedConnection)
    connection.path, connection.opened = path, opened
    return connection


def _opened(path: Path, how: str, kind: type[sqlite3.Connection] = sqlite3.Connection) -> sqlite3.Connection:
    return sqlite3.connect(
        f"file:{quote(str(path))}?{how}", uri=True, check_same_thread=False, isolation_level=None, factory=kind
    )


def _may_write(folder: Path) -> bool:
    """Whether SQLite can create files in the folder. False on a read-only mount, for every user."""
    return os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids)


def _holds_commits(path: Path) -> bool:
    """Whether the WAL may have commits that are not in the file."""
    try:
        return path.with_name(f"{path.name}-wal").stat().st_size > 0
    except FileNotFoundError:
        return False


def _changed(path: Path) -> str:
    return (
        f"the state database {path} was changed while it was read; to read it beside a writer at any time, allow this"
        f" process to write to {path.parent}, or keep the state in PostgreSQL"
    )


def _stamp(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns
