"""The source of kind sql: rows of any database that SQLAlchemy supports, one streamed SELECT for each span."""

from __future__ import annotations

import atexit
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import pydantic

from penstock.config.assets import Query
from penstock.config.settings import Customer
from penstock.config.values import KeyDoc
from penstock.errors import AuthFailed, ConfigError, DataError, PenstockError, SourceUnavailable
from penstock.source.connectivity import within
from penstock.source.days import Days
from penstock.source.options import Options, naming_query, read_options
from penstock.source.protocol import Row, RunContext
from penstock.source.values import json_line

if TYPE_CHECKING:
    from sqlalchemy import URL
    from sqlalchemy.engine import Connection, CursorResult, Engine
    from sqlalchemy.sql.expression import TextClause

_ROWS_AT_A_TIME = 2_000
_CONNECT_SECONDS = 10
_PARAMETERS = ("customer_id", "first_date", "last_date", "dates")
_IN_BRACKETS = re.compile(r"\(\s*(:dates)\s*\)")
_SECRET_NAMES = re.compile(r"pass|pwd|secret|token|key", re.IGNORECASE)

# Error classes by the class of a SQLSTATE. All others are errors of the statement.
_BY_STATE: dict[str, type[PenstockError]] = {
    "08": SourceUnavailable,  # connection
    "22": DataError,  # a value that the database cannot work with
    "28": AuthFailed,
    "40": SourceUnavailable,  # serialization, deadlock
    "53": SourceUnavailable,  # out of memory, disk, connections
    "55": SourceUnavailable,  # locked
    "57": SourceUnavailable,  # shut down, cancelled, timed out
    "58": SourceUnavailable,
    "XX": SourceUnavailable,
}
# The same for the error codes of SQLite.
_BY_SQLITE_CODE: dict[int, type[PenstockError]] = {
    5: SourceUnavailable,  # busy
    6: SourceUnavailable,  # locked
    10: SourceUnavailable,  # input or output
    11: DataError,  # damaged
    13: SourceUnavailable,  # full
    14: SourceUnavailable,  # cannot be opened
}
# Drivers give no code if the connection failed.
_REFUSED_LOGIN = re.compile(
    r'authentication failed|no password supplied|role ".*" does not exist|access denied for user|login failed', re.I
)
_NO_DATABASE = re.compile(r'database ".*" does not exist|unknown database', re.I)


class SqlOptions(Options):
    """Options of `sources.<name>` for kind sql."""

    url: str = pydantic.Field(repr=False, min_length=1)

    documentation: ClassVar = {
        "url": KeyDoc("The SQLAlchemy URL of the database. It is never shown.", "${SHOP_URL:-sqlite:///shop.db}"),
    }


class SqlQueryOptions(Options):
    """Options of `queries.<name>` for kind sql."""

    sql: str = pydantic.Field(min_length=1)
    date_field: str = "logical_date"

    documentation: ClassVar = {
        "sql": KeyDoc(
            "One SELECT, with `:customer_id`, and `:first_date` and `:last_date`, or `:dates`.",
            "SELECT day, clicks FROM t WHERE day IN :dates",
        ),
        "date_field": KeyDoc("The column with the day of a row.", "day"),
    }


class SqlSource:
    """Implements the source protocol with one statement for each span."""

    in_date_order = False
    api_version = "sql-1"

    @staticmethod
    def requests_in_flight(options: Mapping[str, Any]) -> int | None:
        """Few: each is a connection, and a statement that uses the cores of the database."""
        return 4

    def __init__(self, options: Mapping[str, Any], context: RunContext) -> None:
        self._url = _parsed(read_options(SqlOptions, options).url)
        self._budget = context.budget

    def refuse(self, query: Query) -> None:
        _statement(read_options(SqlQueryOptions, query.options).sql)

    def extract(self, query: Query, customer: Customer, dates: Sequence[date]) -> Iterator[tuple[date, Row]]:
        with naming_query(query.name):
            asked = read_options(SqlQueryOptions, query.options)
            statement = _bound(_statement(asked.sql), customer, dates)
        self._budget.spend()
        days = Days(dates, asked.date_field)
        with (
            self._translated_errors(query.name),
            self._connection() as connection,
            connection.execute(statement) as result,
        ):
            yield from _rows(result, query, asked.date_field, days)

    def probe(self, queries: Sequence[Query], seconds: float) -> list[str]:
        def connect() -> None:
            with self._translated_errors(queries[0].name if queries else "NAME"), self._connection():
                pass

        try:
            within(seconds, connect, self._database)
        except PenstockError as error:
            return [f"{error}; check `url`, and that the database accepts connections from this machine"]
        return []

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        """A read-only connection that streams results, and is rolled back at the end."""
        reading = {"stream_results": True, "yield_per": _ROWS_AT_A_TIME, "postgresql_readonly": True}
        self._refuse_missing_file()
        with _engine(os.getpid(), self._url).connect().execution_options(**reading) as connection:
            yield connection

    def _refuse_missing_file(self) -> None:
        """Raise SourceUnavailable for a missing SQLite file: SQLite would create an empty database."""
        file = self._url.database or ""
        named = (
            self._url.get_backend_name() == "sqlite" and file not in ("", ":memory:") and "uri" not in self._url.query
        )
        if named and not os.path.isfile(file):
            raise SourceUnavailable(f"there is no SQLite file {file}")

    @contextmanager
    def _translated_errors(self, query: str) -> Iterator[None]:
        """Translate errors of the database to ours, without secrets."""
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        except SQLAlchemyError as error:
            kind, text = _kind_of(error), " ".join(str(getattr(error, "orig", None) or error).split())
            translated = kind(f"{self._database}: {self._hidden(text)}{_advice(kind, query)}")
            raise translated from (error if self._hidden(str(error)) == str(error) else None)

    @property
    def _database(self) -> str:
        """The name of the database, without login and parameters."""
        where = self._url.host or self._url.database or ""
        return f"the {self._url.get_backend_name()} database {os.path.basename(where)}".rstrip()

    def _hidden(self, text: str) -> str:
        for secret in _secrets(self._url):
            text = text.replace(secret, "***")
        return text


def _parsed(url: str) -> URL:
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

    hint = "write dialect+driver://user:password@host/database, with special characters percent-encoded"
    try:
        parsed = make_url(url)
        parsed.get_dialect().import_dbapi()
    except NoSuchModuleError:
        raise ConfigError(f"url: SQLAlchemy knows no such kind of database; {hint}") from None
    except (ArgumentError, ValueError):  # their text may contain the address with its password
        raise ConfigError(f"url: is not the address of a database; {hint}") from None
    except ModuleNotFoundError as error:
        raise ConfigError(f"url: needs the driver {error.name}: pip install {error.name}") from error
    return parsed


def _secrets(url: URL) -> Iterator[str]:
    if url.password:
        yield str(url.password)
    for name, value in url.query.items():
        if _SECRET_NAMES.search(name):
            yield from [value] if isinstance(value, str) else value


@lru_cache(maxsize=8)
def _engine(process: int, url: URL) -> Engine:
    """One engine for each process and database. Threads share its connections; a forked process creates its own."""
    import sqlalchemy as sa

    dialect = url.get_backend_name()
    if dialect == "sqlite":
        engine = sa.create_engine(url, poolclass=sa.NullPool)
        sa.event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA query_only = ON"))
        return engine
    defaults = {"connect_timeout": _CONNECT_SECONDS} if dialect == "postgresql" else {}
    arguments = {name: value for name, value in defaults.items() if name not in url.query}
    engine = sa.create_engine(url, pool_pre_ping=True, max_overflow=-1, connect_args=arguments)
    atexit.register(engine.dispose)
    return engine


def _statement(sql: str) -> TextClause:
    """The SELECT as a statement. Raises ConfigError for unknown parameters."""
    import sqlalchemy as sa

    statement = sa.text(_IN_BRACKETS.sub(r"\1", sql.strip().rstrip(";")))
    if unknown := sorted(set(statement.compile().params) - set(_PARAMETERS)):
        known = ", ".join(f":{name}" for name in _PARAMETERS)
        raise ConfigError(
            f"sql: there is no parameter :{unknown[0]} (parameters: {known}); write \\:{unknown[0]} if a colon is meant"
        )
    return statement


def _bound(statement: TextClause, customer: Customer, dates: Sequence[date]) -> TextClause:
    """The statement with the values of one span as bound parameters."""
    import sqlalchemy as sa

    named = statement.compile().params
    bound = (
        sa.bindparam("customer_id", customer.id, sa.String()),
        sa.bindparam("first_date", min(dates), sa.Date()),
        sa.bindparam("last_date", max(dates), sa.Date()),
        sa.bindparam("dates", list(dates), sa.Date(), expanding=True),
    )
    return statement.bindparams(*(parameter for parameter in bound if parameter.key in named))


def _rows(result: CursorResult[Any], query: Query, date_field: str, days: Days) -> Iterator[tuple[date, Row]]:
    with naming_query(query.name):
        columns = _columns(result, date_field)
    place = columns.index(date_field)
    keeps_day = any(field.name == date_field for field in query.fields)
    for number, values in enumerate(result, start=1):
        try:
            day = days.of(values[place])
            if day is None:
                continue
            row = dict(zip(columns, values, strict=True))
            if not keeps_day:
                del row[date_field]
            yield day, json_line(row)
        except DataError as error:
            raise DataError(f"row {number} of the answer: {error}") from error
        except TypeError as error:
            raise DataError(f"row {number} of the answer: {error}; cast it to text in the SQL") from error


def _columns(result: CursorResult[Any], date_field: str) -> list[str]:
    if not result.returns_rows:
        raise ConfigError("sql: must be a SELECT: this statement returns no rows")
    columns = list(result.keys())
    if twice := [name for name in columns if columns.count(name) > 1]:
        raise ConfigError(f"sql: the column {twice[0]} occurs twice: rename one with AS")
    if date_field not in columns:
        raise ConfigError(
            f"date_field: {date_field} is not a column of the result (columns: {', '.join(columns)});"
            " it must be the column with the day of a row"
        )
    return columns


def _kind_of(error: Exception) -> type[PenstockError]:
    """The class of our error for one of the database."""
    from sqlalchemy import exc

    original = getattr(error, "orig", None)
    if original is None:
        return ConfigError
    if state := getattr(original, "sqlstate", None):
        return _BY_STATE.get(state[:2], ConfigError)
    if code := getattr(original, "sqlite_errorcode", None):
        return _BY_SQLITE_CODE.get(code & 0xFF, ConfigError)
    if _REFUSED_LOGIN.search(str(original)):
        return AuthFailed
    if _NO_DATABASE.search(str(original)):
        return ConfigError
    if "Could not decode" in str(original):  # sqlite3 gives no code for text that is not UTF-8
        return DataError
    if isinstance(error, exc.DataError):
        return DataError
    if isinstance(error, exc.OperationalError | exc.InterfaceError | exc.InternalError):
        return SourceUnavailable
    return ConfigError


def _advice(kind: type[PenstockError], query: str) -> str:
    if kind is AuthFailed:
        return "; check the login in the source's url"
    return f"; see the source's url and queries.{query}.options.sql" if kind is ConfigError else ""
