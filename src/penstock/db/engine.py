"""Opens the state database. All access is a write transaction (`transact`) or a read-only snapshot (`snapshot`)."""

from __future__ import annotations

import os
import sqlite3
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from penstock.db import sqlite_read_only
from penstock.db.constraints import constraint_error
from penstock.db.schema import add_postgresql_options
from penstock.errors import ActRefused, ConfigError, DatabaseUnavailable, PenstockError

T = TypeVar("T")

_BUSY_TIMEOUT_MS = 30_000
_RETRIED_SQLSTATES = {"40001", "40P01", "23505"}  # serialization failure, deadlock, concurrent insert of the same key
_NO_SCHEMA = {"42P01", "42703", "3F000"}  # undefined table, column, schema
_TRIES = 5


class Database:
    """The state schema of a workspace. Threads may share it: it has no open transaction between calls."""

    def __init__(self, url: str, schema: str | None = None, *, read_only: bool = False) -> None:
        self.url = sa.make_url(url)
        self.schema = schema
        self.read_only = read_only
        if self.dialect == "sqlite":
            self.engine = _sqlite_to_read(self.url) if read_only else _sqlite(self.url)
        else:
            self.engine = _postgresql(self.url, schema, read_only)
            # A workspace that nobody closed returns its connections with its memory. A process that ends closes them
            # anyway, and in a forked one they belong to its parent.
            weakref.finalize(self, _dispose_in, os.getpid(), self.engine).atexit = False

    @property
    def dialect(self) -> str:
        return self.url.get_backend_name()

    def __str__(self) -> str:
        return self.url.render_as_string(hide_password=True)

    def transact(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in one write transaction and return its result. Runs it again after a serialization failure, a
        deadlock or a unique violation, at most five times. Raises ActRefused if the database was opened read-only."""
        if self.read_only:
            raise ActRefused(f"the state database {self} was opened read-only")
        for attempt in range(1, _TRIES + 1):
            try:
                with self.engine.begin() as connection:
                    return work(connection)
            except (DBAPIError, self._driver_error) as error:
                if attempt < _TRIES and _sqlstate(error) in _RETRIED_SQLSTATES:
                    time.sleep(0.05 * 2**attempt)
                    continue
                raise translated(error, self) from error
        raise AssertionError("unreachable")

    def transact_if_free(self, work: Callable[[Connection], object]) -> bool:
        """Run `work` in one write transaction, unless another one holds a lock that it needs. Returns False, without
        waiting and without a change, if that is so or if the database does not respond."""
        if self.read_only:
            return False
        try:
            impatient = self.engine.connect().execution_options(penstock_waits=False)
            with impatient as connection, connection.begin():
                if self.dialect != "sqlite":
                    connection.exec_driver_sql("SET LOCAL lock_timeout = '10ms'")
                work(connection)
        except (DBAPIError, self._driver_error) as error:
            found = translated(error, self)
            if isinstance(found, DatabaseUnavailable):
                return False
            raise found from error
        return True

    def close(self) -> None:
        """Close the pooled connections."""
        self.engine.dispose()

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """One consistent, read-only view of all tables, for the length of the block."""
        try:
            reading = self.engine.connect().execution_options(**self._reading())
            with reading as connection, connection.begin(), _unchanged(connection):
                yield connection
        except (DBAPIError, self._driver_error) as error:
            raise translated(error, self) from error

    @property
    def _driver_error(self) -> type[Exception]:
        """The driver's own error class: bulk copies use the driver without SQLAlchemy."""
        found: type[Exception] = self.engine.dialect.loaded_dbapi.Error
        return found

    def _reading(self) -> dict[str, Any]:
        if self.dialect == "sqlite":
            return {"penstock_begin": "BEGIN"}
        return {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}


def _dispose_in(process: int, engine: Engine) -> None:
    if os.getpid() == process:
        engine.dispose()


def translated(error: Exception, database: object) -> PenstockError:
    """The domain error for an error of the driver, with the command that fixes it."""
    original = getattr(error, "orig", None) or error
    text = str(original).strip()
    if _sqlstate(error) in _NO_SCHEMA or "no such table" in text or "no such column" in text:
        return ConfigError(f"the state database {database} has no (or an old) schema: run `penstock db migrate`")
    if "readonly" in text or "does not exist" in text or "authentication failed" in text:
        return ConfigError(f"the state database {database} cannot be used: {text}")
    if any(kind.__name__ == "OperationalError" for kind in type(original).__mro__):  # of either driver
        return DatabaseUnavailable(f"the state database {database} did not respond: {text}")
    if violation := constraint_error(original, database):
        return violation
    return PenstockError(f"the state database {database} refused a change: {text}")


def _sqlstate(error: Exception) -> str | None:
    return getattr(getattr(error, "orig", None) or error, "sqlstate", None)


def _sqlite(url: sa.URL) -> Engine:
    # A new connection per transaction takes microseconds and is safe after a fork and among threads.
    engine = sa.create_engine(url, poolclass=NullPool)

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # the driver would send BEGIN too late, so `begin` below sends it
        connection.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")
        _switch_to_wal(connection)
        for pragma in (
            "synchronous = FULL",
            "foreign_keys = ON",
            "recursive_triggers = ON",  # otherwise INSERT OR REPLACE bypasses the triggers on DELETE
            "temp_store = MEMORY",
            "cache_size = -65536",
        ):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        options = connection.get_execution_options()
        if not options.get("penstock_waits", True):
            connection.exec_driver_sql("PRAGMA busy_timeout = 0")
        connection.exec_driver_sql(options.get("penstock_begin", "BEGIN IMMEDIATE"))

    return engine


def _sqlite_to_read(url: sa.URL) -> Engine:
    """An engine whose connections cannot change the file."""

    def connect() -> sqlite3.Connection:
        connection = sqlite_read_only.connect(Path(str(url.database)).absolute())
        for pragma in (f"busy_timeout = {_BUSY_TIMEOUT_MS}", "temp_store = MEMORY", "cache_size = -65536"):
            connection.execute(f"PRAGMA {pragma}")
        return connection

    engine = sa.create_engine("sqlite://", creator=connect, poolclass=NullPool)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    return engine


@contextmanager
def _unchanged(connection: Connection) -> Iterator[None]:
    """Raises DatabaseUnavailable at the end of a snapshot without locks if the file changed during it."""
    driver: object = connection.connection.dbapi_connection
    if not isinstance(driver, sqlite_read_only.UnlockedConnection):
        yield
        return
    try:
        yield
    except Exception:
        driver.require_unchanged()  # a half-written change can cause any error
        raise
    driver.require_unchanged()


def _switch_to_wal(connection: Any) -> None:
    """Needed only on the first connection to a new file. SQLite ignores its busy timeout here, so this function
    waits."""
    deadline = time.monotonic() + _BUSY_TIMEOUT_MS / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


def _postgresql(url: sa.URL, schema: str | None, read_only: bool) -> Engine:
    add_postgresql_options()
    options = f"-csearch_path={schema}" if schema else ""
    options += " -cdefault_transaction_read_only=on" if read_only else ""
    try:
        return sa.create_engine(
            url,
            pool_pre_ping=True,
            # also for the connection itself: after a READ ONLY snapshot the driver sets READ WRITE
            execution_options={"postgresql_readonly": True} if read_only else {},
            connect_args={"options": f"{options} -ctimezone=UTC -cjit=off", "connect_timeout": 10},
        )
    except ModuleNotFoundError as error:
        raise ConfigError("PostgreSQL needs the driver psycopg: install `penstock[postgres]`") from error
